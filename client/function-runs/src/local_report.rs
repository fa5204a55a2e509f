//! Local files as objects of functions, and runs on them as text and JSON.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sealstone_failure::text::{ShownPath as _, human_bytes, set_bytes, set_path};
use sealstone_failure::{Failure, Outcome};
use sealstone_function_service::LocalFileObject;
use sealstone_osd::Permissions;
use sealstone_osd::function::{OBJECTS_MAX, ReplyHeader};
use sealstone_osd_device::GrantedObject;
use serde_json::{Value, json};

use crate::library::{end_text, json_name};
use crate::local_engine::{LocalRunEnd, READS};

/// Returns the local files of each run: one run for each file, or one with all files. Without files
/// there is one run without objects.
///
/// # Errors
/// A run would have more than [`OBJECTS_MAX`] files.
pub fn group_local_files(files: &[PathBuf], together: bool) -> Outcome<Vec<Vec<PathBuf>>> {
    if together && files.len() > OBJECTS_MAX {
        return Err(Failure::usage(format!("a run has at most {OBJECTS_MAX} files")));
    }
    Ok(match files.len() {
        0 => vec![Vec::new()],
        _ if together => vec![files.to_vec()],
        _ => files.iter().map(|file| vec![file.clone()]).collect(),
    })
}

/// Opens a local file as an object of a function, which may change it with `update`.
///
/// # Errors
/// It cannot be opened, or is no regular file.
pub fn open_local_object(path: &Path, number: usize, update: bool) -> Outcome<Arc<dyn GrantedObject>> {
    let file = OpenOptions::new().read(true).write(update).open(path);
    let file = file.map_err(|error| Failure::from(error).at(path.shown()))?;
    let is_file = file.metadata().map_err(|error| Failure::from(error).at(path.shown()))?.is_file();
    if !is_file {
        return Err(Failure::usage("not a regular file").at(path.shown()));
    }
    let writes = Permissions::WRITE | Permissions::OBJ_MGMT;
    let rights = if update { READS | writes } else { READS };
    Ok(Arc::new(LocalFileObject::new(file, u32::try_from(number).unwrap_or(u32::MAX), rights)))
}

/// Returns a run as `--json` prints it.
#[must_use]
pub fn local_run_json(files: &[PathBuf], end: &LocalRunEnd, has_result: bool) -> Value {
    let header = &end.header;
    let files: Vec<Value> = files
        .iter()
        .map(|path| {
            let mut value = json!({});
            set_path(&mut value, "path", path);
            value
        })
        .collect();
    let mut value = json!({
        "files": files, "state": json_name(header.state.name()), "exit": json_name(header.exit.name()),
        "code": header.error, "log": end.log, "result_bytes": end.result.len(),
        "bytes_read": header.bytes_read, "bytes_written": header.bytes_written, "calls": header.calls,
        "cpu_us": header.cpu_us, "wall_us": header.wall_us, "peak_memory": header.peak_memory,
        "progress": { "done": header.progress_done, "total": header.progress_total },
    });
    if has_result {
        set_bytes(&mut value, "result", &end.result);
    }
    value
}

/// Returns one line about a run.
#[must_use]
pub fn local_run_line(header: &ReplyHeader) -> String {
    let milliseconds = |us: u64| format!("{}.{:03} ms", us / 1000, us % 1000);
    format!(
        "{}; CPU time {}, wall time {}, memory {}, read {}, wrote {}, {} calls",
        end_text(header),
        milliseconds(header.cpu_us),
        milliseconds(header.wall_us),
        human_bytes(header.peak_memory),
        human_bytes(header.bytes_read),
        human_bytes(header.bytes_written),
        header.calls
    )
}

#[cfg(test)]
mod tests {
    use sealstone_osd::function::{JobId, JobState};

    use super::*;

    #[test]
    fn summary_has_figures_with_units() {
        let mut header = ReplyHeader::new(JobId([1; 16]), JobState::Done);
        (header.cpu_us, header.peak_memory) = (1002, 3 << 20);
        let line = local_run_line(&header);
        assert!(line.contains("CPU time 1.002 ms") && line.contains("memory 3.0 MiB"), "{line}");
    }
}
