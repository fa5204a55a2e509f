//! Reduction of the results of jobs by a second function of the user.
//!
//! Does: collect the results in the order of the jobs, and run the function on all of them, on a
//! device or at the client.
//! Contract: the function has one object with the results one after the other. It runs only if no
//! job failed.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use sealstone_client::functions::{CallArguments, CallGroup, CallReply, FunctionRun, RESULTS_BYTES_MAX};
use sealstone_client::{Client, Devices, FilePath, Metadata};
use sealstone_failure::{Failure, Outcome};
use zeroize::Zeroizing;

use crate::client_engine::ClientEngine;
use crate::library::at_function;

/// Where a second function runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondPlace {
    /// On a device that has a copy of it.
    Device,
    /// In the engine of this machine.
    Client,
}

/// The function that reduces the results of all jobs of a run.
#[derive(Clone)]
pub struct SecondFunction {
    /// Stored path.
    pub path: FilePath,
    /// Where it runs.
    pub place: SecondPlace,
    /// Its arguments.
    pub arguments: CallArguments,
}

/// Results of jobs that wait for the second function.
#[derive(Default)]
pub(crate) struct CollectedResults {
    results: BTreeMap<usize, Vec<u8>>,
    bytes: usize,
}

impl CollectedResults {
    /// Adds the result of a job.
    pub(crate) fn add(&mut self, job: usize, result: Vec<u8>) -> Outcome {
        self.bytes = self.bytes.saturating_add(result.len());
        if self.bytes > RESULTS_BYTES_MAX {
            return Err(Failure::operation("the results to reduce have more than 256 MiB together")
                .hint("run it on fewer files"));
        }
        self.results.insert(job, result);
        Ok(())
    }

    fn joined(self) -> Vec<u8> {
        self.results.into_values().flatten().collect()
    }
}

/// Runs the second function on the results; returns its reply, and the log of a run at the client.
pub(crate) async fn reduce<M: Metadata, D: Devices>(
    client: &Client<M, D>,
    call: &FunctionRun,
    second: &SecondFunction,
    collected: CollectedResults,
    engines: Option<&Path>,
) -> Outcome<(CallReply, String)> {
    let mut run = FunctionRun::new(&second.path);
    run.arguments = second.arguments.clone();
    run.timeout_ms = call.timeout_ms;
    run.security = call.security;
    run.input_digests = call.input_digests;
    let bytes = collected.joined();
    match second.place {
        SecondPlace::Device => {
            let reply = run.run_on_bytes(client, &bytes).await;
            Ok((reply.map_err(|error| at_function(error, &second.path))?, String::new()))
        }
        SecondPlace::Client => reduce_here(client, &run, &second.path, &bytes, engines).await,
    }
}

async fn reduce_here<M: Metadata, D: Devices>(
    client: &Client<M, D>,
    run: &FunctionRun,
    path: &FilePath,
    bytes: &[u8],
    engines: Option<&Path>,
) -> Outcome<(CallReply, String)> {
    let engine = ClientEngine::start(client, run, path, engines).await?;
    let mut file = tempfile::tempfile()?;
    file.write_all(bytes)?;
    let arguments = Zeroizing::new(run.arguments.bytes().to_vec());
    let end = engine.run(run, arguments.clone(), vec![file]).await?;
    let reply = CallReply {
        number: 0,
        group: CallGroup { first_file: 0, replies: 1 },
        device: String::new(),
        parts: Vec::new(),
        arguments,
        outcome: Ok(end.header),
        handle: None,
        result: end.result,
        receipt: Vec::new(),
        reserved: None,
    };
    Ok((reply, end.log))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_joined_in_job_order() {
        let mut collected = CollectedResults::default();
        for (job, result) in [(2, "c"), (0, "a"), (1, "")] {
            collected.add(job, result.as_bytes().to_vec()).unwrap();
        }
        assert_eq!(collected.joined(), b"ac");
    }

    #[test]
    fn results_above_limit_are_refused() {
        let mut collected = CollectedResults { bytes: RESULTS_BYTES_MAX, ..CollectedResults::default() };
        collected.add(0, Vec::new()).unwrap();
        assert!(collected.add(1, vec![0]).unwrap_err().message.contains("256 MiB"));
    }
}
