//! Logging in and out: the paper's login and the modern one, each through sockets of a metadata server of its own process.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sealstone_client::{
    Client, Mds, MdsOptions, PaperGroup, PaperOptions, PlainDial, TlsDial, UserName, tls::Fingerprint,
};
use sealstone_initiator::{Environment, SystemEnvironment};
use sealstone_login::{ChannelBinding, LoginContext, ServerKeys, start_login, start_registration};
use sealstone_mds_protocol::login::SUITE_STANDARD;
use serde::Serialize;
use tokio::runtime::Builder;

use crate::Outcome;
use crate::daemon::MdsDaemon;
use crate::latency::Latency;
use crate::machine::Machine;
use crate::settings::Logins;

/// The limiter of the server lets 20 logins a second through from one source; a sample waits for its turn.
const PACE: Duration = Duration::from_millis(55);
const PASSPHRASE: &str = "of the benchmark, nowhere else";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Aims, and what the OBS paper measured, microseconds.
const PAPER_LOGIN_US: f64 = 5_000.0;
const MODERN_LOGIN_US: f64 = 2_000.0;
const OBS_LOGIN_US: f64 = 20_500.0;
const OBS_LOGOUT_US: f64 = 270.0;

#[derive(Serialize)]
struct Findings {
    machine: Machine,
    rows: Vec<Latency>,
    /// Median of a modern login without the median of its password hashing, microseconds.
    modern_beside_hashing_us: f64,
}

/// Times of logins and of logouts.
#[derive(Default)]
struct Times {
    logins: Vec<Duration>,
    logouts: Vec<Duration>,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Logins) -> Outcome {
    if !(10..=100_000).contains(&arguments.samples) {
        return Err("--samples is not between 10 and 100000".into());
    }
    let binary = arguments.binary()?;
    let mut machine = Machine::look();
    let folder = tempfile::tempdir()?;
    let mds = MdsDaemon::new(&binary, &folder.path().join("mds"))?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let rows = runtime.block_on(measure(&mds, arguments.samples))?;
    mds.stop()?;
    machine.look_again();
    let median =
        |name: &str| rows.iter().find(|row| row.name == name).map_or(f64::NAN, |row: &Latency| row.median_us);
    let modern_beside_hashing_us = median(MODERN) - median(HASHING);
    println!("{:44} {:>10} {:>10} {:>10}", "", "median us", "p99 us", "least us");
    for row in &rows {
        let Latency { name, median_us, p99_us, least_us, note, .. } = row;
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
    if let Some(file) = &arguments.json {
        let findings = Findings { machine, rows, modern_beside_hashing_us };
        std::fs::write(file, serde_json::to_vec_pretty(&findings)?)?;
    }
    Ok(())
}

const MODERN: &str = "modern login, hashing included";
const HASHING: &str = "modern login, the client's hashing alone";

async fn measure(mds: &MdsDaemon, samples: usize) -> Outcome<Vec<Latency>> {
    let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment);
    let pin: Fingerprint = mds.pin.parse().map_err(|_| "the daemon's pin does not parse")?;
    let admin = Client::connect(&mds.address, pin, "admin", &admin_password(&mds.admin_secret)?).await?;
    admin.add_user("bench", PASSPHRASE.as_bytes(), false).await?;
    admin.set_paper_passphrase("bench", Some(PASSPHRASE)).await?;
    let user = UserName::new("bench")?;
    let mut rows = Vec::new();

    for (group, number) in [(PaperGroup::Modp1024, 2), (PaperGroup::Modp2048, 14)] {
        for conservative in [false, true] {
            let options = PaperOptions { group, conservative, address: None };
            let mut times = Times::default();
            for _ in 0..samples {
                tokio::time::sleep(PACE).await;
                let dial = PlainDial { address: mds.paper.clone(), timeout: CONNECT_TIMEOUT };
                let begin = Instant::now();
                let session = Mds::login_paper(
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
            let note = "TCP connect to SESSION_OK, the session durable";
            rows.push(Latency::of(&format!("paper login, group {number}, {mode}"), note, times.logins));
            if number == 2 && !conservative {
                rows.push(Latency::of("paper logout", "its end durable", times.logouts));
            }
        }
    }

    let mut times = Times::default();
    for _ in 0..samples {
        tokio::time::sleep(PACE).await;
        let dial = TlsDial { address: mds.address.clone(), pin, timeout: CONNECT_TIMEOUT };
        let begin = Instant::now();
        let options = MdsOptions::default();
        let session =
            Mds::login(Arc::new(dial), environment.clone(), options, &user, PASSPHRASE.as_bytes()).await?;
        times.logins.push(begin.elapsed());
        let begin = Instant::now();
        session.logout().await?;
        times.logouts.push(begin.elapsed());
    }
    rows.push(Latency::of(MODERN, "TCP connect, TLS 1.3, OPAQUE, the session durable", times.logins));
    rows.push(Latency::of("modern logout", "its end durable", times.logouts));
    let hashing = thread::spawn(move || hashing(samples)).join().map_err(|_| "the hashing panicked")??;
    rows.push(Latency::of(HASHING, "Argon2id, 64 MiB, 3 passes, and the client's part of OPAQUE", hashing));
    Ok(rows)
}

fn admin_password(file: &Path) -> Outcome<Vec<u8>> {
    Ok(std::fs::read_to_string(file)?.trim_end().as_bytes().to_vec())
}

/// The client's answer to a challenge: what it costs by itself, without a server.
fn hashing(samples: usize) -> Outcome<Vec<Duration>> {
    let mut rng = rand::rngs::OsRng;
    let (user, password) = (UserName::new("bench")?, PASSPHRASE.as_bytes());
    let keys = ServerKeys::generate(&mut rng);
    let (request, started) = start_registration(&mut rng, &user, password)?;
    let record = started.finish(&mut rng, SUITE_STANDARD, &keys.register(&user, &request)?)?;
    let record = sealstone_login::AccountRecord::parse(&record)?;
    let context = || LoginContext::new(&[0; 16], &ChannelBinding([0; 32]));
    (0..samples)
        .map(|_| {
            let (start, client) = start_login(&mut rng, SUITE_STANDARD, &user, password, context())?;
            let (challenge, _) = keys.challenge(&mut rng, Some(&record), &start, context(), [0; 16], 0, 0)?;
            let begin = Instant::now();
            client.challenge(&mut rng, challenge)?;
            Ok(begin.elapsed())
        })
        .collect()
}
