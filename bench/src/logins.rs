//! Logins and logouts: the paper's login and the modern one, each through sockets of a separate
//! metadata server.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sealstone_client::{
    Client, MdsClient, MdsOptions, PaperGroup, PaperOptions, PlainDial, Proofs, Role, TlsDial, UserName,
    tls::Fingerprint,
};
use sealstone_initiator::{Environment, SystemEnvironment};
use sealstone_login::stretch_passphrase;
use serde::Serialize;
use tokio::runtime::Builder;

use crate::Outcome;
use crate::daemon;
use crate::latency::CommandLatency;
use crate::machine::{CoreWaker, MachineInfo};
use crate::settings::Logins;

/// Pause between logins: the server's limiter allows 20 per second from one source.
const PACE: Duration = Duration::from_millis(55);
const PASSPHRASE: &str = "of the benchmark, nowhere else";
/// Fraction of logins with password hashing that are run: each takes a large part of a second.
const HASHED_PART: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Targets, and measurements of the OBS paper, in microseconds.
const PAPER_LOGIN_US: f64 = 5_000.0;
const MODERN_LOGIN_US: f64 = 2_000.0;
const OBS_LOGIN_US: f64 = 20_500.0;
const OBS_LOGOUT_US: f64 = 270.0;

#[derive(Serialize)]
struct LoginResults {
    machine: MachineInfo,
    rows: Vec<CommandLatency>,
    /// Median of a modern login with a key that needs no hashing, in microseconds.
    modern_beside_hashing_us: f64,
}

/// Times of logins and of logouts.
#[derive(Default)]
struct LoginTimes {
    logins: Vec<Duration>,
    logouts: Vec<Duration>,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Logins) -> Outcome {
    if !(10..=100_000).contains(&arguments.samples) {
        return Err("--samples is not between 10 and 100000".into());
    }
    let binary = arguments.common.binary()?;
    let mut machine = MachineInfo::look();
    let folder = arguments.stage.scratch()?;
    // Both ends sleep between two messages: waking a core takes longer than the measured work.
    let awake = if arguments.stage.let_sleep { None } else { CoreWaker::new() };
    machine.kept_awake = awake.is_some();
    let mds = daemon::MdsDaemon::new(
        &binary,
        &folder.path().join("mds"),
        &["--insecure-paper-login", "127.0.0.1:0"],
    )?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let rows = runtime.block_on(measure(&mds, arguments.samples))?;
    mds.stop()?;
    machine.look_again();
    let median = |name: &str| {
        rows.iter().find(|row| row.name == name).map_or(f64::NAN, |row: &CommandLatency| row.median_us)
    };
    let modern_beside_hashing_us = median(BESIDE);
    println!("{:44} {:>10} {:>10} {:>10}", "", "median us", "p99 us", "least us");
    for row in &rows {
        let CommandLatency { name, median_us, p99_us, least_us, note, .. } = row;
        println!("{name:44} {median_us:10.0} {p99_us:10.0} {least_us:10.0}  {note}");
    }
    println!("OBS (its own machine): login {OBS_LOGIN_US:.0} us, logout {OBS_LOGOUT_US:.0} us");
    let verdict = |measured: f64, aim: f64| if measured < aim { "reached" } else { "not reached" };
    let paper = median("paper login, group 2, aggressive");
    println!("paper login under {PAPER_LOGIN_US:.0} us: {paper:.0} us, {}", verdict(paper, PAPER_LOGIN_US));
    println!(
        "modern login under {MODERN_LOGIN_US:.0} us beside its hashing: {modern_beside_hashing_us:.0} us, {}",
        verdict(modern_beside_hashing_us, MODERN_LOGIN_US)
    );
    arguments.common.save(&LoginResults { machine, rows, modern_beside_hashing_us })
}

const BESIDE: &str = "modern login beside its password hashing";

async fn measure(mds: &daemon::MdsDaemon, samples: usize) -> Outcome<Vec<CommandLatency>> {
    let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment);
    let (modern, paper) = (mds.field("address")?, mds.field("insecure_paper_login")?);
    let pin: Fingerprint = mds.field("pin")?.parse().map_err(|_| "the daemon's pin does not parse")?;
    let password = admin_password(Path::new(mds.field("admin_secret")?))?;
    let admin = Client::connect(modern, pin, "admin", &password).await?;
    admin.add_user("bench", PASSPHRASE.as_bytes(), Role::User).await?;
    admin.set_paper_passphrase("bench", Some(PASSPHRASE)).await?;
    let user = UserName::new("bench")?;
    let mut rows = Vec::new();

    for (group, number) in [(PaperGroup::Modp1024, 2), (PaperGroup::Modp2048, 14)] {
        for conservative in [false, true] {
            let options = PaperOptions { group, conservative, address: None };
            let mut times = LoginTimes::default();
            for _ in 0..samples {
                tokio::time::sleep(PACE).await;
                let dial = PlainDial { address: paper.to_owned(), timeout: CONNECT_TIMEOUT };
                let begin = Instant::now();
                let session = MdsClient::login_paper(
                    dial,
                    environment.clone(),
                    MdsOptions::default(),
                    options,
                    &user,
                    PASSPHRASE,
                )
                .await?;
                times.logins.push(begin.elapsed());
                let begin = Instant::now();
                session.logout().await?;
                times.logouts.push(begin.elapsed());
            }
            let mode = if conservative { "conservative" } else { "aggressive" };
            let note = "TCP connect to SESSION_OK";
            rows.push(CommandLatency::of(
                &format!("paper login, group {number}, {mode}"),
                note,
                times.logins,
            ));
            if number == 2 && !conservative {
                rows.push(CommandLatency::of("paper logout", "its end durable", times.logouts));
            }
        }
    }

    // A key file's suite hashes for a few microseconds, which leaves the login without its
    // deliberate hashing.
    let key = admin.add_service("bench-service", Role::User).await?;
    let mut times = LoginTimes::default();
    for _ in 0..samples {
        tokio::time::sleep(PACE).await;
        let begin = Instant::now();
        let session = Client::connect_with_key(modern, pin, &key, Proofs::default()).await?;
        times.logins.push(begin.elapsed());
        let begin = Instant::now();
        session.logout().await?;
        times.logouts.push(begin.elapsed());
    }
    rows.push(CommandLatency::of(BESIDE, "TCP connect, TLS 1.3, OPAQUE, the session open", times.logins));
    rows.push(CommandLatency::of("modern logout", "its end durable", times.logouts));

    let mut whole = Vec::new();
    for _ in 0..samples.div_ceil(HASHED_PART) {
        tokio::time::sleep(PACE).await;
        let dial = TlsDial { address: modern.to_owned(), pin, timeout: CONNECT_TIMEOUT };
        let begin = Instant::now();
        let options = MdsOptions::default();
        let session =
            MdsClient::login(Arc::new(dial), environment.clone(), options, &user, PASSPHRASE.as_bytes())
                .await?;
        whole.push(begin.elapsed());
        session.logout().await?;
    }
    rows.push(CommandLatency::of(
        "modern login with a password, hashing included",
        "the same, and Argon2id",
        whole,
    ));
    let count = samples.div_ceil(HASHED_PART);
    let hashing = thread::spawn(move || hashing(count)).join().map_err(|_| "the hashing panicked")??;
    let note = "Argon2id, 64 MiB, 3 passes, 4 lanes, at the client; deliberate";
    rows.push(CommandLatency::of("the password's hashing alone", note, hashing));
    Ok(rows)
}

fn admin_password(file: &Path) -> Outcome<Vec<u8>> {
    Ok(std::fs::read_to_string(file)?.trim_end().as_bytes().to_vec())
}

/// Measures the password hashing alone, as in suite 0001.
fn hashing(samples: usize) -> Outcome<Vec<Duration>> {
    let one = |_| {
        let begin = Instant::now();
        stretch_passphrase(PASSPHRASE.as_bytes(), &[0; 16], 64 << 10, 3, 4)?;
        Ok(begin.elapsed())
    };
    (0..samples).map(one).collect()
}
