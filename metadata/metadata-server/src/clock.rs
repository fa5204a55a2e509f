//! The clock of a metadata server: its time service, and the time server that it follows.

use std::path::Path;
use std::sync::Arc;

use sealstone_daemon::AuditLog;
use sealstone_daemon::machine_clock::{self, MACHINE_CLOCK_FILE};
use sealstone_daemon::time::{self, FollowedClock, Following, ResponseAuth};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, FailureKind, Outcome};
use sealstone_sntp::FollowPolicy;
use tokio::net::UdpSocket;

use crate::config::{MetadataServerConfig, is_host_and_port};

/// Binds the port of the time service.
pub(crate) async fn bind_time(address: &str) -> Outcome<UdpSocket> {
    UdpSocket::bind(address).await.map_err(|error| {
        let kind = error.kind();
        let failure = Failure::operation(error).at(format!("time_listen {address}"));
        match kind {
            std::io::ErrorKind::AddrInUse => {
                failure.hint("another time server uses it; choose another port, and set it on the devices")
            }
            std::io::ErrorKind::PermissionDenied => {
                failure.hint("ports below 1024 need root; choose another one, and set it on the devices")
            }
            std::io::ErrorKind::InvalidInput => {
                Failure { kind: FailureKind::Usage, ..failure }.hint("use HOST:PORT")
            }
            _ => failure,
        }
    })
}

/// The time server that the clock follows, its authentication, and the limits of corrections.
pub(crate) struct TimeSource {
    server: String,
    proof: ResponseAuth,
    policy: FollowPolicy,
}

/// Returns the time server of the configuration; a clear-text one must be on this machine.
pub(crate) async fn time_source(config: &MetadataServerConfig) -> Outcome<Option<TimeSource>> {
    let Some(server) = config.time_source.clone() else {
        if config.time_key_file.is_some() {
            return Err(Failure::usage("--time-key-file requires --time-source"));
        }
        return Ok(None);
    };
    if !is_host_and_port(&server) {
        return Err(Failure::usage("not HOST:PORT").at(format!("time_source {server}")));
    }
    if let Some(path) = &config.time_key_file {
        let key = time::key_file(path)?;
        let proof = ResponseAuth::Key(Arc::new(move || Some(key.clone())));
        return Ok(Some(TimeSource { server, proof, policy: FollowPolicy::SIGNED }));
    }
    if !time::is_here(&server).await {
        if !config.insecure_time {
            return Err(Failure::usage("the time server is not authenticated")
                .at(format!("time_source {server}"))
                .hint(
                    "use --time-key-file, or a time server on this machine, such as chrony with NTS; \
                       --insecure-time accepts it",
                ));
        }
        tracing::warn!("--insecure-time: a man in the middle can move this clock, within limits");
    }
    Ok(Some(TimeSource { server, proof: ResponseAuth::None, policy: FollowPolicy::UNSIGNED }))
}

/// Starts to follow the time source and waits for its first answer. Refuses a clock that would make
/// expired sessions and credentials valid again.
pub(crate) async fn follow(
    source: TimeSource,
    data: &Path,
    audit: Arc<AuditLog>,
) -> Outcome<(Arc<Following>, Arc<FollowedClock>)> {
    let clock = FollowedClock::open(data, source.policy)?;
    let following = Following::new(&source.server, source.proof, Arc::clone(&clock), audit);
    following.first().await;
    let behind_ms = clock.behind_ms();
    if behind_ms > sealstone_sntp::BEHIND_MAX_MS {
        let message =
            format!("the clock is {} s before the last time that this server served", behind_ms / 1000);
        return Err(Failure::operation(message).at(clock.file().shown()).hint(reset_hint(data)));
    }
    clock.begin();
    Ok((following, clock))
}

/// Refuses a machine clock that was set back: expired sessions and credentials would be valid
/// again.
pub(crate) fn check_machine_clock(data: &Path) -> Outcome {
    if machine_clock::is_sound() {
        return Ok(());
    }
    let behind_s = sealstone_initiator::machine::behind_ms() / 1000;
    let message = format!("the clock is {behind_s} s before an earlier time of this server");
    Err(Failure::operation(message).at(data.join(MACHINE_CLOCK_FILE).shown()).hint(reset_hint(data)))
}

fn reset_hint(data: &Path) -> String {
    format!(
        "set the clock of this machine; if the earlier time was wrong: `sealstone mds clock reset --data {}`",
        data.shown()
    )
}
