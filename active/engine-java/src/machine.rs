//! The virtual machine: loading its library, starting it, and the calls of its native interface.
//!
//! Does: own references to objects of Java, and convert exceptions.
//! Contract: one thread starts the machine and uses [`JavaMachine`]; native methods get an
//! environment of their own thread.
//! Truth: the JNI specification of Java 17, docs.oracle.com/en/java/javase/17/docs/specs/jni.
#![allow(unsafe_code, reason = "the dynamic linker, and the native interface of the virtual machine")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use jni_sys::{
    JNI_ERR, JNI_OK, JNI_TRUE, JNIEnv, JNINativeMethod, JavaVM, JavaVMInitArgs, JavaVMOption, jarray,
    jbyteArray, jclass, jint, jlong, jlongArray, jmethodID, jobject, jstring, jvalue,
};

use crate::runtime;

/// `JNI_VERSION_10`, which `jni-sys` does not define.
const JNI_VERSION: jint = 0x000a_0000;
/// Local references of one call from Rust.
const FRAME_REFERENCES: jint = 64;

/// Libraries of the machine that a start needs, and those of the C and C++ language that they link.
/// They are loaded before the confinement, so that a start needs no search.
const MACHINE_LIBRARIES: [&str; 6] =
    ["libjimage.so", "libjava.so", "libverify.so", "libzip.so", "libnet.so", "libnio.so"];
const SYSTEM_LIBRARIES: [&CStr; 3] = [c"libz.so.1", c"libm.so.6", c"libgcc_s.so.1"];

type CreateMachine = unsafe extern "system" fn(*mut *mut JavaVM, *mut *mut c_void, *mut c_void) -> jint;

/// Why the virtual machine cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MachineError {
    /// The dynamic linker refused the library.
    #[error("cannot load libjvm: {0}")]
    Linker(String),
    /// A function is absent.
    #[error("libjvm has no JNI_CreateJavaVM")]
    Symbol,
    /// A path or option has a zero byte.
    #[error("a path or option has a zero byte")]
    ZeroByte,
    /// No library is loaded.
    #[error("libjvm is not loaded, or loaded twice")]
    NotLoaded,
    /// The machine did not start.
    #[error("the virtual machine does not start (error {0})")]
    Start(jint),
    /// The classes of the SDK cannot be used.
    #[error("the SDK {0}")]
    Sdk(String),
}

static CREATE: OnceLock<CreateMachine> = OnceLock::new();

fn open(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string. The constructors of the library run here; it is an installed
    // library of the machine, not code of a function.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    (!handle.is_null()).then_some(handle)
}

/// Returns the last error of the dynamic linker.
fn linker_error() -> String {
    // SAFETY: the result is null or a C string, which is valid until the next call of the linker in
    // this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}

/// Loads the library of the virtual machine of an installation. It starts no thread.
pub(crate) fn load(home: &Path) -> Result<(), MachineError> {
    let c_path = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(|_| MachineError::ZeroByte);
    let library = open(&c_path(&runtime::library(home))?);
    let library = library.ok_or_else(|| MachineError::Linker(linker_error()))?;
    // SAFETY: the handle is open and the name is a C string.
    let address = unsafe { libc::dlsym(library, c"JNI_CreateJavaVM".as_ptr()) };
    if address.is_null() {
        return Err(MachineError::Symbol);
    }
    // SAFETY: the specification gives the function of this name this signature.
    let create = unsafe { std::mem::transmute::<*mut c_void, CreateMachine>(address) };
    // A library that is missing shows when the machine needs it.
    for name in SYSTEM_LIBRARIES {
        open(name);
    }
    for name in MACHINE_LIBRARIES {
        open(&c_path(&home.join("lib").join(name))?);
    }
    CREATE.set(create).map_err(|_| MachineError::NotLoaded)
}

/// An exception was thrown; it is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThrownException {
    /// Whether it is an `OutOfMemoryError`.
    pub(crate) is_memory: bool,
}

/// A global reference. Those of classes are never released; that of a function is, by
/// [`JavaMachine::release`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct JavaReference(jobject);

/// A method that Java code calls.
#[derive(Clone, Copy)]
pub(crate) struct NativeMethod {
    /// Name of the method.
    pub(crate) name: &'static CStr,
    /// Its signature.
    pub(crate) signature: &'static CStr,
    /// The function, whose parameters match the signature.
    pub(crate) function: *const (),
}

// SAFETY: the pointer is that of a function.
unsafe impl Sync for NativeMethod {}

/// Hooks that the virtual machine calls to end the process.
pub(crate) struct MachineHooks {
    /// Called with the code of `System.exit`.
    pub(crate) exit: extern "system" fn(jint),
    /// Called after a fatal error.
    pub(crate) abort: extern "system" fn(),
}

/// Calls a function of the native interface.
macro_rules! jni {
    ($env:expr, $name:ident $(, $argument:expr)*) => {
        ((**$env).$name.expect("the interface has all functions"))($env $(, $argument)*)
    };
}

/// A running virtual machine, used by the thread that started it.
#[derive(Debug)]
pub(crate) struct JavaMachine {
    env: *mut JNIEnv,
    memory_error: jclass,
}

impl JavaMachine {
    /// Starts the machine of the loaded library.
    pub(crate) fn start(options: &[String], hooks: &MachineHooks) -> Result<Self, MachineError> {
        let create = CREATE.get().ok_or(MachineError::NotLoaded)?;
        let texts = options.iter().map(|option| CString::new(option.as_str()));
        let texts = texts.collect::<Result<Vec<_>, _>>().map_err(|_| MachineError::ZeroByte)?;
        let option = |text: &CStr, extra: *mut c_void| JavaVMOption {
            optionString: text.as_ptr().cast_mut(),
            extraInfo: extra,
        };
        let mut options: Vec<JavaVMOption> = texts.iter().map(|text| option(text, ptr::null_mut())).collect();
        options.push(option(c"exit", hooks.exit as *mut c_void));
        options.push(option(c"abort", hooks.abort as *mut c_void));
        let mut arguments = JavaVMInitArgs {
            version: JNI_VERSION,
            nOptions: jint::try_from(options.len()).map_err(|_| MachineError::NotLoaded)?,
            options: options.as_mut_ptr(),
            ignoreUnrecognized: JNI_TRUE,
        };
        // The handlers of Rust's standard library report an overflow of a stack. The machine
        // expects none, and has its own.
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: no code of this process depends on a handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        let (mut machine, mut env) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the arguments and all strings outlive the call, which copies them; the results
        // are written to variables of these types.
        let status = unsafe { create(&raw mut machine, &raw mut env, (&raw mut arguments).cast()) };
        if status != JNI_OK || env.is_null() {
            return Err(MachineError::Start(if status == JNI_OK { JNI_ERR } else { status }));
        }
        let mut started = Self { env: env.cast(), memory_error: ptr::null_mut() };
        let name = c"java/lang/OutOfMemoryError";
        // SAFETY: the environment is that of this thread, and the name is a C string.
        let class = unsafe { jni!(started.env, FindClass, name.as_ptr()) };
        started.memory_error = started.global(class).map_err(|_| MachineError::Start(JNI_ERR))?.0;
        Ok(started)
    }

    /// Returns the exception that is set, after it was cleared.
    fn thrown(&self) -> ThrownException {
        // SAFETY: the environment is that of this thread; the class is a global reference or null,
        // and an exception is cleared before other calls.
        unsafe {
            let exception = jni!(self.env, ExceptionOccurred);
            jni!(self.env, ExceptionClear);
            let is_memory = !exception.is_null()
                && !self.memory_error.is_null()
                && jni!(self.env, IsInstanceOf, exception, self.memory_error) == JNI_TRUE;
            jni!(self.env, DeleteLocalRef, exception);
            ThrownException { is_memory }
        }
    }

    /// Returns an error if an exception is set.
    fn checked<T>(&self, value: T) -> Result<T, ThrownException> {
        // SAFETY: the environment is that of this thread.
        if unsafe { jni!(self.env, ExceptionCheck) } == JNI_TRUE { Err(self.thrown()) } else { Ok(value) }
    }

    /// Turns a local reference that a call returned into a global one; null is an exception.
    fn global(&self, local: jobject) -> Result<JavaReference, ThrownException> {
        if local.is_null() {
            return Err(self.thrown());
        }
        // SAFETY: the reference is a valid local one of this thread, and is not used afterwards.
        let global = unsafe {
            let global = jni!(self.env, NewGlobalRef, local);
            jni!(self.env, DeleteLocalRef, local);
            global
        };
        if global.is_null() { Err(self.thrown()) } else { Ok(JavaReference(global)) }
    }

    /// Releases a global reference, which is not used afterwards.
    pub(crate) fn release(&self, reference: JavaReference) {
        // SAFETY: the environment is that of this thread, since no other thread can have `self`.
        // The reference is a global one by its type, and is not used afterwards.
        unsafe { jni!(self.env, DeleteGlobalRef, reference.0) };
    }

    /// Runs `body` with room for local references, which are released afterwards.
    fn framed<T>(&self, body: impl FnOnce() -> Result<T, ThrownException>) -> Result<T, ThrownException> {
        // SAFETY: the frame is popped on each path, and `body` returns no local reference.
        unsafe {
            if jni!(self.env, PushLocalFrame, FRAME_REFERENCES) != JNI_OK {
                return Err(self.thrown());
            }
            let outcome = body();
            jni!(self.env, PopLocalFrame, ptr::null_mut());
            outcome
        }
    }

    /// Defines a class of the engine, which all class loaders see.
    pub(crate) fn define_class(&self, name: &CStr, code: &[u8]) -> Result<JavaReference, ThrownException> {
        let length = jint::try_from(code.len()).map_err(|_| ThrownException { is_memory: true })?;
        // SAFETY: the name is a C string, and address and length are those of a slice. The null
        // loader is the one of the machine's own classes.
        let class = unsafe {
            jni!(self.env, DefineClass, name.as_ptr(), ptr::null_mut(), code.as_ptr().cast(), length)
        };
        self.global(class)
    }

    /// Gives a class its native methods.
    pub(crate) fn register(
        &self,
        class: JavaReference,
        methods: &[NativeMethod],
    ) -> Result<(), ThrownException> {
        let rows: Vec<JNINativeMethod> = methods
            .iter()
            .map(|method| JNINativeMethod {
                name: method.name.as_ptr().cast_mut(),
                signature: method.signature.as_ptr().cast_mut(),
                fnPtr: method.function.cast_mut().cast(),
            })
            .collect();
        // SAFETY: the class is a valid reference, the rows have C strings, and the machine copies
        // them. The functions have the parameters of their signatures.
        let status = unsafe { jni!(self.env, RegisterNatives, class.0, rows.as_ptr(), rows.len() as jint) };
        if status == JNI_OK { Ok(()) } else { Err(self.thrown()) }
    }

    /// Returns a static method.
    pub(crate) fn static_method(
        &self,
        class: JavaReference,
        name: &CStr,
        signature: &CStr,
    ) -> Result<MethodHandle, ThrownException> {
        // SAFETY: the class is a valid reference, and both texts are C strings.
        let method = unsafe { jni!(self.env, GetStaticMethodID, class.0, name.as_ptr(), signature.as_ptr()) };
        if method.is_null() { Err(self.thrown()) } else { Ok(MethodHandle(method)) }
    }

    /// Returns a method of objects.
    pub(crate) fn method(
        &self,
        class: JavaReference,
        name: &CStr,
        signature: &CStr,
    ) -> Result<MethodHandle, ThrownException> {
        // SAFETY: as in `static_method`.
        let method = unsafe { jni!(self.env, GetMethodID, class.0, name.as_ptr(), signature.as_ptr()) };
        if method.is_null() { Err(self.thrown()) } else { Ok(MethodHandle(method)) }
    }

    /// Calls a static method with a string; it returns an object.
    pub(crate) fn call_static(
        &self,
        class: JavaReference,
        method: MethodHandle,
        text: &str,
    ) -> Result<JavaReference, ThrownException> {
        self.framed(|| {
            let arguments = [jvalue { l: self.string(text)? }];
            // SAFETY: class and method belong together, and the method has one string.
            let object =
                unsafe { jni!(self.env, CallStaticObjectMethodA, class.0, method.0, arguments.as_ptr()) };
            self.checked(())?;
            self.global(object)
        })
    }

    /// Calls `run` of the engine's Java code.
    pub(crate) fn call_run(
        &self,
        object: JavaReference,
        method: MethodHandle,
        run: &RunArguments<'_>,
    ) -> Result<i64, ThrownException> {
        self.framed(|| {
            let arguments = [
                jvalue { l: self.string(run.method)? },
                jvalue { l: self.bytes(run.arguments)? },
                jvalue { l: self.numbers(run.fields)? },
                jvalue { i: run.timeout_ms },
                jvalue { j: run.result_bytes_max },
                jvalue { z: run.is_secret.into() },
            ];
            // SAFETY: object and method belong together, and the values have the types of its
            // signature.
            let status = unsafe { jni!(self.env, CallLongMethodA, object.0, method.0, arguments.as_ptr()) };
            self.checked(status)
        })
    }

    /// Returns a string; characters beyond the basic plane are encoded as Java does.
    fn string(&self, text: &str) -> Result<jstring, ThrownException> {
        let units: Vec<u16> = text.encode_utf16().collect();
        // SAFETY: address and length are those of a slice, which is copied.
        let string = unsafe { jni!(self.env, NewString, units.as_ptr(), units.len() as jint) };
        if string.is_null() { Err(self.thrown()) } else { Ok(string) }
    }

    fn bytes(&self, content: &[u8]) -> Result<jbyteArray, ThrownException> {
        let array = NativeEnvironment(self.env).new_bytes(content);
        if array.is_null() { Err(self.thrown()) } else { Ok(array) }
    }

    fn numbers(&self, content: &[i64]) -> Result<jlongArray, ThrownException> {
        // SAFETY: the array has the length of the slice, which is copied.
        unsafe {
            let array = jni!(self.env, NewLongArray, content.len() as jint);
            if array.is_null() {
                return Err(self.thrown());
            }
            jni!(self.env, SetLongArrayRegion, array, 0, content.len() as jint, content.as_ptr());
            Ok(array)
        }
    }
}

/// A method of a class that stays loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MethodHandle(jmethodID);

/// The arguments of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunArguments<'a> {
    pub(crate) method: &'a str,
    pub(crate) arguments: &'a [u8],
    pub(crate) fields: &'a [i64],
    pub(crate) timeout_ms: i32,
    pub(crate) result_bytes_max: i64,
    pub(crate) is_secret: bool,
}

/// The environment of a native method, for the thread that called it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NativeEnvironment(*mut JNIEnv);

impl NativeEnvironment {
    /// Wraps the first parameter of a native method.
    ///
    /// # Safety
    ///
    /// The machine passed it to this thread, and the method has not returned.
    pub(crate) const unsafe fn new(env: *mut JNIEnv) -> Self {
        Self(env)
    }

    /// Returns the length of an array; `None` for null.
    fn array_length(self, array: jarray) -> Option<usize> {
        if array.is_null() {
            return None;
        }
        // SAFETY: the machine passed the array to this method.
        usize::try_from(unsafe { jni!(self.0, GetArrayLength, array) }).ok()
    }

    /// Returns a byte array that the machine passed; `None` for null.
    ///
    /// # Safety
    ///
    /// The machine passed the array to this method as a `byte[]`.
    pub(crate) unsafe fn byte_array(self, array: jbyteArray) -> Option<ByteArray> {
        self.array_length(array).map(|length| ByteArray { env: self, array, length })
    }

    /// Writes numbers to the start of an array; returns whether it is long enough.
    ///
    /// # Safety
    ///
    /// The machine passed the array to this method as a `long[]`.
    pub(crate) unsafe fn write_numbers(self, array: jlongArray, numbers: &[jlong]) -> bool {
        let fits = self.array_length(array).is_some_and(|length| numbers.len() <= length);
        if fits {
            // SAFETY: the array is one of numbers by the promise of the caller, and long enough.
            unsafe { jni!(self.0, SetLongArrayRegion, array, 0, numbers.len() as jint, numbers.as_ptr()) };
        }
        fits
    }

    /// Returns the number of elements of an array of numbers; 0 for null.
    pub(crate) fn count_numbers(self, array: jlongArray) -> usize {
        self.array_length(array).unwrap_or(0)
    }

    /// Returns a new `byte[]`, or null with an exception that is set.
    pub(crate) fn new_bytes(self, content: &[u8]) -> jbyteArray {
        let Ok(length) = jint::try_from(content.len()) else { return ptr::null_mut() };
        // SAFETY: the array has the length of the slice, which is copied.
        unsafe {
            let array = jni!(self.0, NewByteArray, length);
            if !array.is_null() {
                jni!(self.0, SetByteArrayRegion, array, 0, length, content.as_ptr().cast());
            }
            array
        }
    }

    /// Returns a string that the machine passed, if it has at most `bytes_max` bytes in UTF-8.
    ///
    /// # Safety
    ///
    /// The machine passed the reference to this method as a `String`.
    pub(crate) unsafe fn text(self, string: jstring, bytes_max: usize) -> Option<String> {
        if string.is_null() {
            return None;
        }
        // SAFETY: the string is valid. The machine writes the stated number of bytes and a zero.
        let mut bytes = unsafe {
            let length = usize::try_from(jni!(self.0, GetStringUTFLength, string)).ok()?;
            if length > bytes_max {
                return None;
            }
            let units = jni!(self.0, GetStringLength, string);
            let mut bytes = vec![0u8; length + 1];
            jni!(self.0, GetStringUTFRegion, string, 0, units, bytes.as_mut_ptr().cast::<c_char>());
            bytes
        };
        bytes.pop();
        String::from_utf8(bytes).ok()
    }

    /// Returns a new direct buffer over memory, or null with an exception that is set.
    ///
    /// # Safety
    ///
    /// The memory is mapped for `length` bytes until the process ends. Java code may write it.
    pub(crate) unsafe fn direct_buffer(self, address: ptr::NonNull<u8>, length: u32) -> jobject {
        // SAFETY: the promise of the caller.
        unsafe { jni!(self.0, NewDirectByteBuffer, address.as_ptr().cast(), length.into()) }
    }
}

/// A `byte[]` that a native method received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteArray {
    env: NativeEnvironment,
    array: jbyteArray,
    length: usize,
}

impl ByteArray {
    /// Returns the number of bytes.
    pub(crate) const fn length(self) -> usize {
        self.length
    }

    /// Whether a range is within the array.
    pub(crate) fn contains(self, start: usize, count: usize) -> bool {
        start.checked_add(count).is_some_and(|end| end <= self.length)
    }

    /// Copies bytes to the array, if they fit.
    pub(crate) fn store(self, start: usize, from: &[u8]) {
        if self.contains(start, from.len()) {
            // SAFETY: the array is valid, and the range is within it and within the slice.
            unsafe {
                let (start, count) = (start as jint, from.len() as jint);
                jni!(self.env.0, SetByteArrayRegion, self.array, start, count, from.as_ptr().cast());
            }
        }
    }

    /// Copies bytes out of the array, if it has them.
    pub(crate) fn load(self, start: usize, into: &mut [u8]) {
        // SAFETY: address and length are those of a slice.
        unsafe { self.load_to(start, into.len(), ptr::NonNull::from(into).cast()) };
    }

    /// Copies bytes out of the array to memory, if it has them.
    ///
    /// # Safety
    ///
    /// The memory is writable for `count` bytes.
    pub(crate) unsafe fn load_to(self, start: usize, count: usize, to: ptr::NonNull<u8>) {
        if self.contains(start, count) {
            // SAFETY: the array is valid, and the range is within it; the rest is the promise of
            // the caller.
            unsafe {
                let (start, count) = (start as jint, count as jint);
                jni!(self.env.0, GetByteArrayRegion, self.array, start, count, to.as_ptr().cast());
            }
        }
    }

    /// Returns a copy of a range, or `None` if it is not within the array.
    pub(crate) fn copied(self, start: usize, count: usize) -> Option<Vec<u8>> {
        self.contains(start, count).then(|| {
            let mut bytes = vec![0; count];
            self.load(start, &mut bytes);
            bytes
        })
    }
}

/// Ends the process at once. Destructors of libraries would run beside the threads of the machine.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: it has no requirement.
    unsafe { libc::_exit(code) }
}
