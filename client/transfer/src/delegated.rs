//! Writes of local files by capability files.

use std::ffi::OsStr;
use std::path::Path;

use sealstone_client::{Delegated, Progress};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};
use tokio::fs::File;

/// Writes a local file in place, from `offset` on; returns the number of bytes when they are
/// durable. `capability`: the capability file, which failures name.
///
/// # Errors
/// The file is longer than the permitted range, of which nothing is written then; it cannot be
/// read, or a device refuses.
pub async fn put_delegated(
    (delegated, capability): (&Delegated, &Path),
    offset: u64,
    source: &OsStr,
    progress: Progress<'_>,
) -> Outcome<u64> {
    let at = |error: std::io::Error| Failure::from(error).at(source.shown());
    let file = File::open(source).await.map_err(at)?;
    let length = file.metadata().await.map_err(at)?.len();
    let end = delegated.range().end;
    if offset.saturating_add(length) > end {
        let allowed = end.saturating_sub(offset);
        let what = format!("has {length} bytes, but the range allows {allowed} from offset {offset}");
        return Err(Failure::operation(what)
            .at(source.shown())
            .hint("`sealstone cap show FILE` shows the range"));
    }
    delegated.write(offset, file, progress).await.map_err(|error| Failure::from(error).at(capability.shown()))
}
