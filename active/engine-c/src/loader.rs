//! Loading shared objects and calling their entry points.
#![allow(unsafe_code, reason = "the dynamic linker, and calls into loaded code")]

use std::ffi::{CStr, CString, OsString, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use sealstone_function_abi::{GuestCall, GuestObject, OwnedCallDescriptor};
use zeroize::Zeroizing;

/// Entry points in the order in which they are searched. `start` is that of the ASF paper.
const ENTRY_POINTS: [&CStr; 2] = [c"osd_main", c"start"];

/// Signature of the entry points.
type EntryPoint = unsafe extern "C" fn(*const AlignedCall) -> i64;

/// A call at an address that suits C.
#[repr(C, align(8))]
struct AlignedCall(GuestCall);

/// An object description at an address that suits C.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct AlignedObject(GuestObject);

const _: () = assert!(size_of::<AlignedCall>() == 64 && size_of::<AlignedObject>() == 32);

/// Why a function cannot be loaded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LoadError {
    /// The path has a zero byte.
    Path(OsString),
    /// The dynamic linker refused the file.
    Linker(String),
    /// The file exports no entry point.
    NoEntryPoint,
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => write!(f, "path {} has a zero byte", path.display()),
            Self::Linker(text) => f.write_str(text),
            Self::NoEntryPoint => {
                f.write_str("it exports neither osd_main nor start; build it with cc -shared -fPIC")
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// A function that is loaded. It stays loaded until the process ends.
#[derive(Debug)]
pub(crate) struct LoadedFunction {
    entry: EntryPoint,
}

/// Loads the math library, which functions may need and an engine without files cannot find. A
/// failure shows when a function needs it.
pub(crate) fn preload_math_library() {
    // SAFETY: the name is a C string, and the constructors of the C library's own parts are benign.
    unsafe { libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
}

/// Sorts once, before the confinement. `qsort` of glibc 2.36 and before reads the size of the
/// memory with `sysinfo` in its first call and keeps it; the filter of system calls kills that.
pub(crate) fn prepare_sorting() {
    /// Above 1024 bytes the library sorts in memory that it allocates, which needs the size.
    const VALUES: usize = 1024;
    unsafe extern "C" fn compare(left: *const c_void, right: *const c_void) -> libc::c_int {
        // SAFETY: qsort passes the addresses of two values of the array below.
        let (left, right) = unsafe { (*left.cast::<u32>(), *right.cast::<u32>()) };
        left.cmp(&right) as libc::c_int
    }
    let mut values = [0u32; VALUES];
    // SAFETY: the array has this number of values of this size, and `compare` only reads them.
    unsafe { libc::qsort(values.as_mut_ptr().cast(), VALUES, size_of::<u32>(), Some(compare)) };
}

impl LoadedFunction {
    /// Loads a shared object and finds its entry point.
    pub(crate) fn load(path: &Path) -> Result<Self, LoadError> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| LoadError::Path(path.as_os_str().to_owned()))?;
        // SAFETY: the name is a C string. Constructors of the object run here; they can do anything
        // that the confined process can, which is the reason for its confinement.
        let object = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if object.is_null() {
            return Err(LoadError::Linker(linker_error()));
        }
        let symbols = ENTRY_POINTS.iter().map(|symbol| {
            // SAFETY: the handle is one that dlopen returned and nothing closed; the name is a C
            // string.
            unsafe { libc::dlsym(object, symbol.as_ptr()) }
        });
        let address =
            symbols.into_iter().find(|address| !address.is_null()).ok_or(LoadError::NoEntryPoint)?;
        // SAFETY: a function of the interface has this signature. An object that exports something
        // else under the name does what a hostile function could do anyway: it stays confined.
        let entry = unsafe { std::mem::transmute::<*mut c_void, EntryPoint>(address) };
        Ok(Self { entry })
    }

    /// Calls the function; returns its status.
    pub(crate) fn run(&self, call: &OwnedCallDescriptor) -> i64 {
        let mut method = call.method.as_bytes().to_vec();
        method.push(0);
        let mut arguments = Zeroizing::new(Vec::with_capacity(call.arguments.len() + 1));
        arguments.extend_from_slice(&call.arguments);
        arguments.push(0);
        let objects: Vec<_> = call.objects.iter().copied().map(AlignedObject).collect();
        let address = |pointer: *const u8| pointer as usize as u64;
        let guest = AlignedCall(GuestCall::new(
            &call.borrow(),
            address(method.as_ptr()),
            address(arguments.as_ptr()),
            address(objects.as_ptr().cast()),
        ));
        // SAFETY: the structure and what it points to live until the call returns. The rest is up
        // to the function, which is confined.
        unsafe { (self.entry)(&raw const guest) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_malformed_files_are_refused() {
        let missing = LoadedFunction::load(Path::new("/no/such/function.so")).unwrap_err();
        assert!(matches!(missing, LoadError::Linker(text) if text.contains("No such file")));
        let text = LoadedFunction::load(Path::new(file!())).unwrap_err();
        assert!(matches!(text, LoadError::Linker(_)));
        let zero = LoadedFunction::load(Path::new("a\0b")).unwrap_err();
        assert!(matches!(zero, LoadError::Path(_)));
        let library = LoadedFunction::load(Path::new("libm.so.6")).unwrap_err();
        assert_eq!(library, LoadError::NoEntryPoint);
    }
}
