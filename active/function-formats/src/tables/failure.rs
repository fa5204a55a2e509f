//! Failures of tables, and calls of the library, whose panics become failures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use parquet::errors::ParquetError;
use sealstone_function_host::{FunctionErrno, FunctionFailure};

/// The part of a file that the library decodes, for the log if it panics.
static POSITION: Mutex<String> = Mutex::new(String::new());

/// Returns the part of a file that is being decoded, for a handler of panics.
#[must_use]
pub fn parquet_position() -> String {
    POSITION.try_lock().map(|position| position.clone()).unwrap_or_default()
}

/// Returns the failure of malformed data.
pub(super) fn bad_data(object: u32, reason: impl core::fmt::Display) -> FunctionFailure {
    FunctionFailure::new(FunctionErrno::BAD_DATA, format!("object {object}: {reason}"))
}

/// Returns the failure of data beyond a limit.
pub(super) fn too_large(object: u32, reason: impl core::fmt::Display) -> FunctionFailure {
    FunctionFailure::new(FunctionErrno::TOO_LARGE, format!("object {object}: {reason}"))
}

/// Calls the library. It panics on some malformed data, which is an error here.
pub(super) fn guarded<T>(
    (object, place): (u32, &dyn core::fmt::Display),
    decode: impl FnOnce() -> Result<T, ParquetError>,
) -> Result<T, FunctionFailure> {
    if let Ok(mut position) = POSITION.lock() {
        *position = format!("object {object}, {place}");
    }
    match catch_unwind(AssertUnwindSafe(decode)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(bad_data(object, format!("{place}: {error}"))),
        Err(_) => Err(bad_data(object, format!("{place}: the data are malformed"))),
    }
}
