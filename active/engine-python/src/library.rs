//! The part of CPython's C interface that the engine uses, from a library loaded at run time.
//!
//! Does: load the library, find its functions, and own references to its objects.
//! Contract: the process has one thread that uses the interpreter, so the global interpreter lock
//! is always held. All functions belong to the stable ABI, and the switches are variables that
//! exist until Python 3.14, so one program serves Python 3.9 to 3.14.
//! Truth: docs.python.org/3/c-api/stable.html.
#![allow(unsafe_code, reason = "the dynamic linker, and the C interface of the interpreter")]

use std::ffi::{CStr, CString, c_char, c_int, c_longlong, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::OnceLock;

use libc::wchar_t;

/// Lowest supported minor version of Python 3.
pub(crate) const MINOR_MIN: u32 = 9;
/// Highest supported minor version: Python 3.15 removes the switches of [`initialize`].
pub(crate) const MINOR_MAX: u32 = 14;

/// Libraries that modules of the standard library link. They are loaded before the confinement,
/// because an engine cannot find them afterwards. One that is missing makes its module unavailable.
const MODULE_LIBRARIES: [&CStr; 6] =
    [c"libz.so.1", c"libbz2.so.1.0", c"liblzma.so.5", c"libexpat.so.1", c"libcrypto.so.3", c"libm.so.6"];

/// Switches of the interpreter, all set to 1: no variables, no folders of users, no `site`, no
/// compiled files, and UTF-8 whatever the locale is.
const SWITCHES: [&CStr; 6] = [
    c"Py_IsolatedFlag",
    c"Py_IgnoreEnvironmentFlag",
    c"Py_NoUserSiteDirectory",
    c"Py_NoSiteFlag",
    c"Py_DontWriteBytecodeFlag",
    c"Py_UTF8Mode",
];

/// Name of the program for the interpreter, which would search a relative one in folders.
const PROGRAM_NAME: &str = "/sealstone-engine-python";
/// `PyBUF_READ`: a read-only memory view.
const BUFFER_READ: c_int = 0x100;
/// `METH_VARARGS`: a function that receives a tuple.
const METH_VARARGS: c_int = 1;

/// An object of the interpreter; never read in Rust.
#[repr(C)]
pub(crate) struct RawObject {
    _opaque: [u8; 0],
}

type ObjectPointer = *mut RawObject;
type RawMethod = unsafe extern "C" fn(ObjectPointer, ObjectPointer) -> ObjectPointer;

/// `PyMethodDef`, whose layout the stable ABI fixes.
#[repr(C)]
struct MethodDefinition {
    name: *const c_char,
    method: RawMethod,
    flags: c_int,
    doc: *const c_char,
}

/// Why the library of the interpreter cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LibraryError {
    /// The path has a zero byte.
    #[error("the path of the library has a zero byte")]
    Path,
    /// The dynamic linker refused the file.
    #[error("cannot load libpython: {0}")]
    Linker(String),
    /// A function is absent.
    #[error("libpython has no {0}; Python 3.9 to 3.14 are supported")]
    Symbol(String),
    /// The interpreter has another version.
    #[error("libpython has version {0}; Python 3.9 to 3.14 are supported")]
    Version(String),
    /// A library is loaded already.
    #[error("libpython is loaded twice")]
    Twice,
}

macro_rules! python_functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library.
        #[allow(non_snake_case, reason = "the names of the C interface")]
        struct PythonFunctions {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            os_error: ObjectPointer,
            overflow_error: ObjectPointer,
            memory_error: ObjectPointer,
        }

        impl PythonFunctions {
            #[allow(non_snake_case, reason = "the names of the C interface")]
            fn find(library: LoadedLibrary) -> Result<Self, LibraryError> {
                $(
                    let address = library.symbol(stringify!($name))?;
                    // SAFETY: the stable ABI gives the function of this name this signature.
                    let $name = unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($argument),*) $(-> $result)?,
                        >(address)
                    };
                )*
                Ok(Self {
                    $($name,)*
                    os_error: ptr::null_mut(),
                    overflow_error: ptr::null_mut(),
                    memory_error: ptr::null_mut(),
                })
            }
        }
    };
}

python_functions! {
    Py_GetVersion: fn() -> *const c_char;
    Py_SetProgramName: fn(*const wchar_t);
    Py_SetPythonHome: fn(*const wchar_t);
    Py_InitializeEx: fn(c_int);
    Py_IncRef: fn(ObjectPointer);
    Py_DecRef: fn(ObjectPointer);
    Py_CompileString: fn(*const c_char, *const c_char, c_int) -> ObjectPointer;
    PyImport_AddModule: fn(*const c_char) -> ObjectPointer;
    PyImport_ExecCodeModuleEx: fn(*const c_char, ObjectPointer, *const c_char) -> ObjectPointer;
    PyCFunction_NewEx: fn(*mut MethodDefinition, ObjectPointer, ObjectPointer) -> ObjectPointer;
    PyObject_GetAttrString: fn(ObjectPointer, *const c_char) -> ObjectPointer;
    PyObject_SetAttrString: fn(ObjectPointer, *const c_char, ObjectPointer) -> c_int;
    PyObject_CallObject: fn(ObjectPointer, ObjectPointer) -> ObjectPointer;
    PyTuple_New: fn(isize) -> ObjectPointer;
    PyTuple_SetItem: fn(ObjectPointer, isize, ObjectPointer) -> c_int;
    PyTuple_GetItem: fn(ObjectPointer, isize) -> ObjectPointer;
    PyBool_FromLong: fn(std::ffi::c_long) -> ObjectPointer;
    PyLong_FromLongLong: fn(c_longlong) -> ObjectPointer;
    PyLong_FromUnsignedLongLong: fn(c_ulonglong) -> ObjectPointer;
    PyLong_AsLongLong: fn(ObjectPointer) -> c_longlong;
    PyLong_AsUnsignedLongLong: fn(ObjectPointer) -> c_ulonglong;
    PyBytes_FromStringAndSize: fn(*const c_char, isize) -> ObjectPointer;
    PyBytes_AsStringAndSize: fn(ObjectPointer, *mut *mut c_char, *mut isize) -> c_int;
    PyUnicode_FromStringAndSize: fn(*const c_char, isize) -> ObjectPointer;
    PyMemoryView_FromMemory: fn(*mut c_char, isize, c_int) -> ObjectPointer;
    PyErr_Occurred: fn() -> ObjectPointer;
    PyErr_ExceptionMatches: fn(ObjectPointer) -> c_int;
    PyErr_SetObject: fn(ObjectPointer, ObjectPointer);
    PyErr_Clear: fn();
}

// SAFETY: the pointers are functions and immortal exception types of a library that stays loaded;
// one thread uses them.
unsafe impl Send for PythonFunctions {}
// SAFETY: as above; the values are never changed after they were stored.
unsafe impl Sync for PythonFunctions {}

static LIBRARY: OnceLock<LoadedLibrary> = OnceLock::new();
static PYTHON: OnceLock<PythonFunctions> = OnceLock::new();

fn python() -> &'static PythonFunctions {
    PYTHON.get().expect("the interpreter is initialized before any object exists")
}

/// A library that stays loaded until the process ends.
#[derive(Clone, Copy, Debug)]
struct LoadedLibrary(usize);

impl LoadedLibrary {
    fn open(name: &CStr) -> Result<Self, LibraryError> {
        // SAFETY: the name is a C string. The constructors of the library run here; it is an
        // installed program of the machine, not code of a function.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() { Err(LibraryError::Linker(linker_error())) } else { Ok(Self(handle.addr())) }
    }

    fn symbol(self, name: &str) -> Result<*mut c_void, LibraryError> {
        let missing = || LibraryError::Symbol(name.to_owned());
        let text = CString::new(name).map_err(|_| missing())?;
        // SAFETY: the handle is one that dlopen returned, still open; the name is a C string.
        let address = unsafe { libc::dlsym(ptr::with_exposed_provenance_mut(self.0), text.as_ptr()) };
        if address.is_null() { Err(missing()) } else { Ok(address) }
    }
}

/// Returns the last error of the dynamic linker.
fn linker_error() -> String {
    // SAFETY: the result is null or a C string, which is valid until the next call of the linker in
    // this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "unknown error of the dynamic linker".to_owned()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

/// Loads the library of the interpreter, and those of its modules. Returns the version.
pub(crate) fn load(path: &Path) -> Result<String, LibraryError> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| LibraryError::Path)?;
    let library = LoadedLibrary::open(&name)?;
    let functions = PythonFunctions::find(library)?;
    // SAFETY: the function needs no interpreter, and returns a constant C string.
    let version = unsafe { CStr::from_ptr((functions.Py_GetVersion)()) }.to_string_lossy();
    let version = version.split_whitespace().next().unwrap_or_default().to_owned();
    if minor_version(&version).is_none() {
        return Err(LibraryError::Version(version));
    }
    for name in MODULE_LIBRARIES {
        // A failure shows when a function imports the module.
        let _ = LoadedLibrary::open(name);
    }
    LIBRARY.set(library).map_err(|_| LibraryError::Twice)?;
    Ok(version)
}

/// Returns the minor version of a supported version of Python 3.
pub(crate) fn minor_version(version: &str) -> Option<u32> {
    let minor: u32 = version.strip_prefix("3.")?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    (MINOR_MIN..=MINOR_MAX).contains(&minor).then_some(minor)
}

/// Starts the interpreter of a loaded library, isolated from everything but its standard library
/// below `home`. A failure of the interpreter ends the process.
pub(crate) fn initialize(home: &str) -> Result<(), LibraryError> {
    let library = *LIBRARY.get().ok_or_else(|| LibraryError::Linker("it is not loaded".to_owned()))?;
    let mut functions = PythonFunctions::find(library)?;
    for name in SWITCHES {
        let switch = library.symbol(&name.to_string_lossy())?;
        // SAFETY: each switch is a global `int`, which is written before the interpreter starts.
        unsafe { switch.cast::<c_int>().write(1) };
    }
    // SAFETY: both strings end with a zero and are never freed, as the interpreter keeps them. It
    // is started once, by the only thread, without handlers of signals.
    unsafe {
        (functions.Py_SetProgramName)(wide_string(PROGRAM_NAME));
        (functions.Py_SetPythonHome)(wide_string(home));
        (functions.Py_InitializeEx)(0);
    }
    let exception = |name| -> Result<ObjectPointer, LibraryError> {
        // SAFETY: the symbol is a global pointer to a type, which the interpreter has set.
        Ok(unsafe { library.symbol(name)?.cast::<ObjectPointer>().read() })
    };
    functions.os_error = exception("PyExc_OSError")?;
    functions.overflow_error = exception("PyExc_OverflowError")?;
    functions.memory_error = exception("PyExc_MemoryError")?;
    PYTHON.set(functions).map_err(|_| LibraryError::Twice)
}

/// Returns a string of wide characters that is never freed.
fn wide_string(text: &str) -> *const wchar_t {
    let characters = text.chars().map(|c| c as wchar_t).chain([0]);
    Box::leak(characters.collect::<Box<[wchar_t]>>()).as_ptr()
}

/// An exception is set in the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RaisedException;

impl RaisedException {
    /// Sets an `OSError` with an error number.
    pub(crate) fn os_error(errno: i64, text: &str) -> Self {
        let arguments = PythonObject::number(errno)
            .and_then(|errno| PythonObject::tuple(vec![errno, PythonObject::text(text)?]));
        if let Ok(arguments) = arguments {
            // SAFETY: both are valid objects; the function takes references of its own.
            unsafe { (python().PyErr_SetObject)(python().os_error, arguments.pointer()) };
        }
        Self
    }

    /// Whether the exception is an `OverflowError`.
    pub(crate) fn is_overflow(self) -> bool {
        self.is(python().overflow_error)
    }

    /// Whether the exception is a `MemoryError`.
    pub(crate) fn is_memory(self) -> bool {
        self.is(python().memory_error)
    }

    fn is(self, kind: ObjectPointer) -> bool {
        // SAFETY: the function must not be called without an exception, which is checked first.
        unsafe { !(python().PyErr_Occurred)().is_null() && (python().PyErr_ExceptionMatches)(kind) != 0 }
    }

    /// Clears the exception.
    pub(crate) fn clear(self) {
        // SAFETY: it has no requirement.
        unsafe { (python().PyErr_Clear)() };
    }
}

/// A reference to an object, released when it is dropped.
#[derive(Debug)]
pub(crate) struct PythonObject(NonNull<RawObject>);

impl Drop for PythonObject {
    fn drop(&mut self) {
        // SAFETY: the value owns one reference.
        unsafe { (python().Py_DecRef)(self.pointer()) };
    }
}

impl Clone for PythonObject {
    fn clone(&self) -> Self {
        // SAFETY: the object is alive; the new value owns the added reference.
        unsafe { (python().Py_IncRef)(self.pointer()) };
        Self(self.0)
    }
}

impl PythonObject {
    /// Takes a new reference that the interpreter returned; null is an exception.
    fn owned(pointer: ObjectPointer) -> Result<Self, RaisedException> {
        NonNull::new(pointer).map(Self).ok_or(RaisedException)
    }

    fn pointer(&self) -> ObjectPointer {
        self.0.as_ptr()
    }

    /// Gives the reference away.
    fn into_pointer(self) -> ObjectPointer {
        let pointer = self.pointer();
        std::mem::forget(self);
        pointer
    }

    /// Returns an `int`.
    pub(crate) fn number(value: i64) -> Result<Self, RaisedException> {
        // SAFETY: it returns a new reference or null.
        Self::owned(unsafe { (python().PyLong_FromLongLong)(value) })
    }

    /// Returns an `int` that is not negative.
    pub(crate) fn unsigned(value: u64) -> Result<Self, RaisedException> {
        // SAFETY: it returns a new reference or null.
        Self::owned(unsafe { (python().PyLong_FromUnsignedLongLong)(value) })
    }

    /// Returns a `bool`.
    pub(crate) fn flag(value: bool) -> Result<Self, RaisedException> {
        // SAFETY: it returns a new reference.
        Self::owned(unsafe { (python().PyBool_FromLong)(value.into()) })
    }

    /// Returns `None`.
    pub(crate) fn none() -> Result<Self, RaisedException> {
        // The stable ABI has no function for it; every interpreter has the name.
        Self::module("builtins")?.attribute("None")
    }

    /// Returns a `str`.
    pub(crate) fn text(value: &str) -> Result<Self, RaisedException> {
        // SAFETY: address and length are those of a string, which is copied.
        Self::owned(unsafe {
            (python().PyUnicode_FromStringAndSize)(value.as_ptr().cast(), signed(value.len()))
        })
    }

    /// Returns `bytes` with a copy of these bytes.
    pub(crate) fn bytes(value: &[u8]) -> Result<Self, RaisedException> {
        // SAFETY: address and length are those of a slice, which is copied.
        Self::owned(unsafe {
            (python().PyBytes_FromStringAndSize)(value.as_ptr().cast(), signed(value.len()))
        })
    }

    /// Returns `bytes` with a copy of memory that others may change meanwhile.
    ///
    /// # Safety
    ///
    /// The memory is mapped for `length` bytes.
    pub(crate) unsafe fn bytes_of_memory(address: NonNull<u8>, length: u32) -> Result<Self, RaisedException> {
        // SAFETY: the promise of the caller; the interpreter copies the memory once.
        Self::owned(unsafe { (python().PyBytes_FromStringAndSize)(address.as_ptr().cast(), length as isize) })
    }

    /// Returns a read-only `memoryview` of memory.
    ///
    /// # Safety
    ///
    /// The memory stays mapped for `length` bytes until the process ends.
    pub(crate) unsafe fn view_of_memory(address: NonNull<u8>, length: u32) -> Result<Self, RaisedException> {
        // SAFETY: the promise of the caller; the view never writes.
        Self::owned(unsafe {
            (python().PyMemoryView_FromMemory)(address.as_ptr().cast(), length as isize, BUFFER_READ)
        })
    }

    /// Returns `bytes` that `fill` writes; it returns their number.
    pub(crate) fn filled_bytes<E: From<RaisedException>>(
        capacity: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Self, E> {
        // SAFETY: without an address the interpreter allocates uninitialized bytes.
        let object =
            Self::owned(unsafe { (python().PyBytes_FromStringAndSize)(ptr::null(), signed(capacity)) })?;
        let (address, length) = object.bytes_address()?;
        // SAFETY: the bytes belong to the new object, which nothing else refers to (an empty one is
        // shared, and has no bytes); they are set to zero before a reference to them exists.
        let buffer = unsafe {
            address.write_bytes(0, length);
            slice::from_raw_parts_mut(address, length)
        };
        let count = fill(buffer)?.min(length);
        if count == length { Ok(object) } else { Ok(Self::bytes(&buffer[..count])?) }
    }

    /// Returns a tuple of these objects.
    pub(crate) fn tuple(items: Vec<Self>) -> Result<Self, RaisedException> {
        // SAFETY: it returns a new reference or null.
        let tuple = Self::owned(unsafe { (python().PyTuple_New)(signed(items.len())) })?;
        for (index, item) in items.into_iter().enumerate() {
            // SAFETY: the tuple is new, the index within its size, and the reference given away.
            unsafe { (python().PyTuple_SetItem)(tuple.pointer(), signed(index), item.into_pointer()) };
        }
        Ok(tuple)
    }

    /// Returns a module, which is created empty if it does not exist.
    fn module(name: &str) -> Result<Self, RaisedException> {
        // SAFETY: the name is a C string; the result is a borrowed reference or null, and the
        // reference that is added before any other code runs is owned.
        unsafe {
            let module = (python().PyImport_AddModule)(c_string(name).as_ptr());
            if !module.is_null() {
                (python().Py_IncRef)(module);
            }
            Self::owned(module)
        }
    }

    /// Executes source code as a module of this name.
    pub(crate) fn execute_module(name: &str, source: &str, path: &str) -> Result<Self, RaisedException> {
        /// `Py_file_input`: a whole file.
        const FILE_INPUT: c_int = 257;
        let (name, source, path) = (c_string(name), c_string(source), c_string(path));
        // SAFETY: all are C strings; both functions return a new reference or null.
        unsafe {
            let code = Self::owned((python().Py_CompileString)(source.as_ptr(), path.as_ptr(), FILE_INPUT))?;
            Self::owned((python().PyImport_ExecCodeModuleEx)(name.as_ptr(), code.pointer(), path.as_ptr()))
        }
    }

    /// Returns an attribute.
    pub(crate) fn attribute(&self, name: &str) -> Result<Self, RaisedException> {
        // SAFETY: the object is alive and the name is a C string.
        Self::owned(unsafe { (python().PyObject_GetAttrString)(self.pointer(), c_string(name).as_ptr()) })
    }

    /// Calls the object.
    pub(crate) fn call(&self, arguments: Vec<Self>) -> Result<Self, RaisedException> {
        let arguments = Self::tuple(arguments)?;
        // SAFETY: both are alive, and the second one is a tuple.
        Self::owned(unsafe { (python().PyObject_CallObject)(self.pointer(), arguments.pointer()) })
    }

    /// Returns the value of an `int`.
    pub(crate) fn to_number(&self) -> Result<i64, RaisedException> {
        // SAFETY: the object is alive; -1 is also a value, so the exception is checked.
        let value = unsafe { (python().PyLong_AsLongLong)(self.pointer()) };
        checked_number(value == -1, value)
    }

    /// Returns a copy of the content of `bytes`.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, RaisedException> {
        let (address, length) = self.bytes_address()?;
        // SAFETY: the object is alive, and `bytes` never change.
        Ok(unsafe { slice::from_raw_parts(address, length) }.to_vec())
    }

    fn bytes_address(&self) -> Result<(*mut u8, usize), RaisedException> {
        let (mut address, mut length) = (ptr::null_mut(), 0);
        // SAFETY: the object is alive, and both addresses are writable.
        let status =
            unsafe { (python().PyBytes_AsStringAndSize)(self.pointer(), &raw mut address, &raw mut length) };
        if status == 0 { Ok((address.cast(), length.unsigned_abs())) } else { Err(RaisedException) }
    }
}

/// Returns a value unless it is that of an exception and one is set.
fn checked_number<T>(may_be_exception: bool, value: T) -> Result<T, RaisedException> {
    // SAFETY: it has no requirement.
    if may_be_exception && !unsafe { (python().PyErr_Occurred)() }.is_null() {
        return Err(RaisedException);
    }
    Ok(value)
}

/// Returns a C string; a zero byte ends it.
fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).expect("the text has no zero byte")
}

fn signed(length: usize) -> isize {
    isize::try_from(length).expect("no allocation is longer")
}

/// The arguments of a call from Python.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallArguments<'a>(&'a PythonTuple);

/// A tuple that the interpreter passes.
#[derive(Debug)]
struct PythonTuple(ObjectPointer);

impl<'a> CallArguments<'a> {
    fn item(self, index: isize) -> Result<ObjectPointer, RaisedException> {
        // SAFETY: the tuple is alive during the call; a wrong index is an exception.
        let item = unsafe { (python().PyTuple_GetItem)(self.0.0, index) };
        if item.is_null() { Err(RaisedException) } else { Ok(item) }
    }

    /// Returns an `int` of 0 to 2^64 - 1.
    pub(crate) fn number(self, index: isize) -> Result<u64, RaisedException> {
        let item = self.item(index)?;
        // SAFETY: the item is alive; the greatest value is also that of an exception.
        let value = unsafe { (python().PyLong_AsUnsignedLongLong)(item) };
        checked_number(value == u64::MAX, value)
    }

    /// Returns the content of `bytes`, which cannot change.
    pub(crate) fn bytes(self, index: isize) -> Result<&'a [u8], RaisedException> {
        let item = self.item(index)?;
        let (mut address, mut length) = (ptr::null_mut::<c_char>(), 0);
        // SAFETY: the item is alive, and both addresses are writable.
        let status = unsafe { (python().PyBytes_AsStringAndSize)(item, &raw mut address, &raw mut length) };
        if status != 0 {
            return Err(RaisedException);
        }
        // SAFETY: the tuple keeps the item alive during the call, and `bytes` never change.
        Ok(unsafe { slice::from_raw_parts(address.cast(), length.unsigned_abs()) })
    }
}

/// A function that Python code can call.
#[derive(Clone, Copy)]
pub(crate) struct BuiltinFunction {
    /// Name in its module.
    pub(crate) name: &'static CStr,
    /// The function. An error is a set exception.
    pub(crate) body: fn(CallArguments<'_>) -> Result<PythonObject, RaisedException>,
}

static BUILTINS: OnceLock<&'static [BuiltinFunction]> = OnceLock::new();

/// Creates a module of builtin functions. It can be called once.
pub(crate) fn create_module(
    name: &str,
    functions: &'static [BuiltinFunction],
) -> Result<(), RaisedException> {
    let _ = BUILTINS.set(functions);
    let module = PythonObject::module(name)?;
    for (index, function) in functions.iter().enumerate() {
        let definition = Box::leak(Box::new(MethodDefinition {
            name: function.name.as_ptr(),
            method: call_builtin,
            flags: METH_VARARGS,
            doc: ptr::null(),
        }));
        // The number of the function is its first argument.
        let number = PythonObject::unsigned(index as u64)?;
        // SAFETY: the definition is never freed; the objects are alive.
        let status = unsafe {
            let object = (python().PyCFunction_NewEx)(definition, number.pointer(), ptr::null_mut());
            let object = PythonObject::owned(object)?;
            (python().PyObject_SetAttrString)(module.pointer(), function.name.as_ptr(), object.pointer())
        };
        if status != 0 {
            return Err(RaisedException);
        }
    }
    Ok(())
}

/// Calls a builtin function for the interpreter. A panic ends the process.
///
/// # Safety
///
/// The interpreter calls it, with the number of the function and a tuple.
unsafe extern "C" fn call_builtin(number: ObjectPointer, arguments: ObjectPointer) -> ObjectPointer {
    // SAFETY: the interpreter passes the number of `create_module`.
    let number = unsafe { (python().PyLong_AsUnsignedLongLong)(number) };
    let function = BUILTINS.get().and_then(|functions| functions.get(number as usize));
    let arguments = PythonTuple(arguments);
    let result =
        function.ok_or(RaisedException).and_then(|function| (function.body)(CallArguments(&arguments)));
    result.map_or(ptr::null_mut(), PythonObject::into_pointer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_versions_are_refused() {
        assert_eq!(minor_version("3.9.18"), Some(9));
        assert_eq!(minor_version("3.14.0rc1"), Some(14));
        for version in ["3.8.10", "3.15.0", "2.7.18", "3.", ""] {
            assert_eq!(minor_version(version), None, "{version}");
        }
    }

    #[test]
    fn missing_and_foreign_libraries_are_refused() {
        let missing = load(Path::new("/no/such/libpython3.11.so")).unwrap_err();
        assert!(matches!(missing, LibraryError::Linker(text) if text.contains("No such file")));
        let other = load(Path::new("libm.so.6")).unwrap_err();
        assert!(matches!(other, LibraryError::Symbol(name) if name == "Py_GetVersion"));
    }
}
