//! Runs of a function in an engine of this machine, on data that the client reads.
//!
//! Used for shipped functions whose code is not part of this program, where a device cannot run
//! them. The code is that of the devices, and the sandbox too.

use std::path::PathBuf;

use sealstone_client::functions::FUNCTION_CODE_MAX;
use sealstone_client::{Client, Devices, FilePath, GetOptions, Metadata, Method};
use tempfile::TempDir;
use zeroize::Zeroizing;

use crate::command::function_test::{failure_of, open};
use crate::command::functions::recognized_engine;
use crate::command::local_engine::{LocalCall, LocalEngine};
use crate::failure::{Failure, Outcome};

/// Maximum bytes of a file that is copied for a run.
const FILE_BYTES_MAX: u64 = 4 << 30;

/// A function and its engine, started for the files of a command.
pub(super) struct EngineRun {
    engine: LocalEngine,
    arguments: Zeroizing<Vec<u8>>,
    timeout_ms: u32,
    folder: TempDir,
    method: Method,
}

impl EngineRun {
    /// Fetches the code, and starts the engine.
    pub(super) async fn start<M: Metadata, D: Devices>(
        client: &Client<M, D>,
        function: &FilePath,
        method: Method,
        arguments: Zeroizing<Vec<u8>>,
        timeout_ms: u32,
    ) -> Outcome<Self> {
        let stat = client.stat(function).await.map_err(|error| Failure::from(error).at(function))?;
        if stat.size > FUNCTION_CODE_MAX as u64 {
            return Err(Failure::operation("its code is too long").at(function));
        }
        let options = GetOptions { method, ..GetOptions::default() };
        let mut code = Vec::new();
        client.get(function, &mut code, options).await.map_err(|error| Failure::from(error).at(function))?;
        let engine = recognized_engine(&code)
            .ok_or_else(|| Failure::operation("the beginning of its code names no engine").at(function))?;
        let folder = tempfile::tempdir()?;
        let engine = LocalEngine::start(engine, None, code, timeout_ms)?;
        Ok(Self { engine, arguments, timeout_ms, folder, method })
    }

    /// Runs the function on a stored file; returns the result of the job.
    pub(super) async fn run<M: Metadata, D: Devices>(
        &self,
        client: &Client<M, D>,
        path: &FilePath,
    ) -> Outcome<Vec<u8>> {
        let at = |failure: Failure| failure.at(path);
        let stat = client.stat(path).await.map_err(|error| at(error.into()))?;
        if stat.size > FILE_BYTES_MAX {
            return Err(at(Failure::operation("a local run is for files of at most 4 GiB")));
        }
        let local: PathBuf = self.folder.path().join("input");
        let file = tokio::fs::File::create(&local).await?;
        let options = GetOptions { method: self.method, ..GetOptions::default() };
        client.get(path, file, options).await.map_err(|error| at(error.into()))?;
        let call = LocalCall {
            objects: vec![open(&local, 0, false).map_err(at)?],
            method: String::new(),
            arguments: self.arguments.clone(),
            secret_arguments: false,
            commit_on_success: false,
            timeout_ms: self.timeout_ms,
        };
        let end = tokio::task::block_in_place(|| self.engine.run(call));
        std::fs::remove_file(&local)?;
        let end = end.map_err(at)?;
        match failure_of("a local engine", &end.header) {
            None => Ok(end.result),
            Some(failure) if end.log.is_empty() => Err(at(failure)),
            Some(failure) => Err(at(failure.hint(end.log.trim_end().replace('\n', "; ")))),
        }
    }
}
