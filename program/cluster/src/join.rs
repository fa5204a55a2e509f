//! Devices join a metadata server.

use std::path::Path;
use std::time::{Duration, Instant};

use sealstone_channel::Pin;
use sealstone_client::{Client, Metadata};
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, FailureKind, Outcome, chain, secret_file};
use sealstone_mds_protocol::{
    Device, DeviceState, Name, NewDevice, ProblemKind, Request, Response, SYSTEM_ID_BYTES, Secret, Text,
};
use sealstone_osd_device::provision::InitialKeyFile;

/// Time in which a device that was added becomes usable, in seconds.
pub const JOIN_S_MAX: u64 = 30;

/// Reads a device's key file.
pub(crate) fn read_key_file(path: &Path) -> Outcome<InitialKeyFile> {
    InitialKeyFile::parse(&secret_file::read(path)?).map_err(|error| Failure::usage(error).at(path.shown()))
}

/// Adds a device to the metadata server. Waits until it is in use, unless an administrator must
/// approve it first.
///
/// # Errors
/// The key file or the URL is wrong, the server refused, or the device is not usable in time.
pub async fn add_osd(
    client: &Client,
    url: &str,
    key: &Path,
    pin: Option<Pin>,
    speed: u64,
    wait_s: u64,
) -> Outcome<Device> {
    let file = read_key_file(key)?;
    let system_id = file.system_id;
    url.parse::<sealstone_initiator::TargetUrl>().map_err(|error| Failure::usage(error).at(url))?;
    let invalid = |error: sealstone_mds_protocol::WireError| Failure::usage(chain(&error));
    let device = NewDevice {
        name: Name::new(file.name.clone()).map_err(invalid)?,
        system_id,
        url: Text::new(url).map_err(invalid)?,
        pin: pin.map(Into::into),
        capacity: 0,
        speed,
        master_key: Secret::new(file.key.0.to_vec()).map_err(invalid)?,
    };
    let added = client
        .metadata()
        .call(Request::DeviceAdd { device })
        .await
        .map_err(|error| Failure::from(error).at(&file.name))?;
    match added {
        Response::Device { device } if device.state == DeviceState::Pending => Ok(device),
        _ => wait_until_joined(client, system_id, &file.name, pin.is_some(), wait_s).await,
    }
}

/// Waits until a device that was added is in use.
///
/// # Errors
/// A problem that waiting does not solve, or the time is over.
pub async fn wait_until_joined(
    client: &Client,
    system_id: [u8; SYSTEM_ID_BYTES],
    name: &str,
    has_pin: bool,
    wait_s: u64,
) -> Outcome<Device> {
    let started = Instant::now();
    loop {
        let devices = client.device_list().await?;
        // A device that is not approved yet may claim the same system id.
        let pending = |device: &&Device| device.state == DeviceState::Pending;
        let found = devices.iter().filter(|device| device.system_id == system_id).min_by_key(pending);
        if let Some(outcome) = found.and_then(|device| join_result(device, name)) {
            return outcome;
        }
        if started.elapsed() > Duration::from_secs(wait_s) {
            let why =
                found.and_then(|device| device.problem.as_ref()).map_or("", |problem| problem.said.as_str());
            let colon = if why.is_empty() { "" } else { ": " };
            return Err(Failure::operation(format!(
                "{name} was added, but is not usable after {wait_s} s{colon}{why}"
            ))
            .hint(match has_pin {
                true => "check that the device runs at that URL; the metadata server keeps trying",
                false => {
                    "check that the device runs at that URL, and use --pin if it requires TLS; the metadata server keeps trying"
                }
            }));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the result of an addition once it is final, also for problems that waiting does not
/// solve.
fn join_result(device: &Device, name: &str) -> Option<Outcome<Device>> {
    // A known device keeps its state: a draining one does not become active.
    let in_use = match device.state {
        DeviceState::Active => true,
        DeviceState::Draining => device.problem.is_none(),
        _ => false,
    };
    if in_use && device.total > 0 {
        return Some(Ok(device.clone()));
    }
    let problem = device.problem.as_ref()?;
    let failure = |failure: Failure| {
        let failure = failure.at(name);
        Some(Err(failure.hint("run `mds add-osd` again with the right URL and key file")))
    };
    match problem.kind {
        ProblemKind::Denied => failure(Failure::new(
            FailureKind::Denied,
            format!("the device at {} does not accept this key", device.url.as_str()),
        )),
        ProblemKind::NotAdmitted => Some(Err(Failure::new(
            FailureKind::Denied,
            format!(
                "the device at {} refuses the login of the metadata server: {}",
                device.url.as_str(),
                problem.said
            ),
        )
        .at(name)
        .hint(
            "compare the access file of the device with --chap-file of the server, then run add-osd again",
        ))),
        ProblemKind::OtherCertificate => Some(Err(Failure::new(
            FailureKind::Denied,
            format!("the device at {} has another certificate: {}", device.url.as_str(), problem.said),
        )
        .at(name)
        .hint("compare --pin with the pin that `osd serve` prints"))),
        ProblemKind::OtherDevice => {
            failure(Failure::operation(format!("another device responds at {}", device.url.as_str())))
        }
        ProblemKind::Silent | ProblemKind::Failed => None,
    }
}
