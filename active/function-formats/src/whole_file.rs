//! Files that a function needs as a whole.

use sealstone_function_host::{FunctionCall, FunctionErrno, FunctionFailure};

/// Returns the length of a file in one object; one in stripes is the error ENOSYS.
pub(crate) fn open_whole(
    call: &mut FunctionCall<'_>,
    object: u32,
    function: &str,
) -> Result<u64, FunctionFailure> {
    let geometry = call.geometry(object)?;
    if geometry.unit_count() > 1 {
        let message = format!("{function} of object {object}: the file is striped; read it at the client");
        return Err(FunctionFailure::new(FunctionErrno::UNSUPPORTED, message));
    }
    Ok(geometry.file_length())
}

/// Reads a file of limited length.
pub(crate) fn read_whole(
    call: &mut FunctionCall<'_>,
    object: u32,
    length: u64,
    length_max: u64,
) -> Result<Vec<u8>, FunctionFailure> {
    if length > length_max {
        let message = format!("object {object} has {length} bytes; at most {length_max}");
        return Err(FunctionFailure::new(FunctionErrno::TOO_LARGE, message));
    }
    call.read_ahead(object, 0, length);
    let mut file = vec![0; length as usize];
    call.read_zero_filled(object, 0, &mut file)?;
    Ok(file)
}
