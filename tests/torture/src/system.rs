//! A whole system: metadata server and devices as processes, repeated puts, and kills of any
//! process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sealstone_tests::{CommandResult, Signal, System, run, run_with_input, text};

use crate::RunReport;

/// Number of devices.
const OSDS: usize = 2;
/// Files that are put repeatedly, each by one writer at a time.
const FILES: usize = 4;
/// Longest file in bytes: above half a MiB it is striped.
const LENGTH_MAX: usize = 6 << 20;
/// Downtime of a daemon in milliseconds; clients wait seven seconds for one.
const AWAY_MS: (u64, u64) = (0, 1500);

/// Possible content of a path; `None` if it does not exist.
type PathContent = Option<Vec<u8>>;

/// The system and the expected content of its files.
pub struct SystemDrill {
    system: System,
    files: BTreeMap<String, Vec<PathContent>>,
    random: StdRng,
}

impl SystemDrill {
    /// Starts a system.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            system: System::start_with(OSDS, "512M", &["--group-s-max", "2"]),
            files: (0..FILES).map(|number| (format!("/file-{number}"), vec![None])).collect(),
            random: StdRng::seed_from_u64(seed),
        }
    }

    fn folder(&self, index: usize) -> PathBuf {
        self.system.path(&format!("osd{index}"))
    }

    /// Runs rounds until the time is over.
    ///
    /// # Errors
    /// A violation, with details.
    pub fn torture(&mut self, until: Instant, report: &mut RunReport) -> Result<(), String> {
        while Instant::now() < until {
            self.round(report)?;
            report.rounds += 1;
            self.compare()?;
        }
        for index in 0..OSDS {
            let code = self.system.end_osd(index, Signal::Terminate);
            if code != 0 {
                return Err(format!("osd{index}: the last end has exit code {code}"));
            }
            let checked = run(&["--json", "osd", "check", "--data", text(&self.folder(index))]);
            if checked.code != 0 {
                return Err(format!("osd{index}: osd check: {} {}", checked.text(), checked.stderr));
            }
            report.checks += 1;
        }
        Ok(())
    }

    /// Puts all files concurrently, and kills a process meanwhile.
    fn round(&mut self, report: &mut RunReport) -> Result<(), String> {
        let contents: Vec<(String, Vec<u8>)> = self
            .files
            .keys()
            .map(|path| {
                let most = if self.random.gen_bool(0.5) { 300_000 } else { LENGTH_MAX };
                let mut bytes = vec![0; self.random.gen_range(1..most)];
                self.random.fill(&mut bytes[..]);
                (path.clone(), bytes)
            })
            .collect();
        let puts: Vec<_> = contents
            .into_iter()
            .map(|(path, bytes)| {
                let command = self.system.command(&["put", "-", &path]);
                std::thread::spawn(move || {
                    let ended = run_with_input(command, &bytes);
                    (path, bytes, ended)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(self.random.gen_range(0..1200)));
        let (mds, osds) = match self.random.gen_range(0..6) {
            0 | 1 => (true, vec![]),
            2 | 3 => (false, vec![self.random.gen_range(0..OSDS)]),
            4 => (true, vec![self.random.gen_range(0..OSDS)]),
            _ => (true, (0..OSDS).collect()),
        };
        if mds {
            self.system.end_mds(Signal::Kill);
            report.kills += 1;
        }
        for &index in &osds {
            self.system.end_osd(index, Signal::Kill);
            report.kills += 1;
        }
        std::thread::sleep(Duration::from_millis(self.random.gen_range(AWAY_MS.0..AWAY_MS.1)));
        for &index in &osds {
            self.system.start_osd(index);
        }
        if mds {
            self.system.start_mds();
        }
        for put in puts {
            let (path, bytes, ended) = put.join().map_err(|_| "a writer panicked".to_owned())?;
            self.note(&path, bytes, &ended, mds, report)?;
        }
        Ok(())
    }

    fn note(
        &mut self,
        path: &str,
        bytes: Vec<u8>,
        ended: &CommandResult,
        mds: bool,
        report: &mut RunReport,
    ) -> Result<(), String> {
        let states = self.files.get_mut(path).ok_or("an unknown path")?;
        if ended.code == 0 {
            *states = vec![Some(bytes)];
            report.puts += 1;
            return Ok(());
        }
        // A restarted device gets unflushed data again: only a killed metadata server fails a put.
        if !mds {
            return Err(format!("{path}: put ends with {}: {}", ended.code, ended.stderr));
        }
        if ended.stderr.trim_end().lines().count() != 1 || ended.stderr.contains("panicked") {
            return Err(format!("{path}: put fails with {:?}", ended.stderr));
        }
        states.push(Some(bytes));
        report.puts_failed += 1;
        Ok(())
    }

    /// Checks that every path has one of its possible contents, which is then its only one.
    fn compare(&mut self) -> Result<(), String> {
        let paths: Vec<String> = self.files.keys().cloned().collect();
        for path in paths {
            let got = self.system.run(&["cat", &path]);
            let found = match got.code {
                0 => Some(got.stdout),
                4 => None,
                code => return Err(format!("{path} cannot be read: {code}: {}", got.stderr)),
            };
            let states = self.files.get_mut(&path).ok_or("an unknown path")?;
            if !states.contains(&found) {
                let lengths: Vec<_> = states.iter().map(|state| state.as_ref().map(Vec::len)).collect();
                return Err(format!(
                    "{path} holds {:?} bytes, and should hold one of {lengths:?}, with the right bytes",
                    found.map(|bytes| bytes.len())
                ));
            }
            *states = vec![found];
        }
        Ok(())
    }
}
