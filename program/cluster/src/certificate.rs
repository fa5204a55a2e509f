//! Certificates of devices, issued by the authority of a metadata server.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use sealstone_channel::{Pin, device_name};
use sealstone_device_server::identity;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_server::Environment;
use sealstone_metadata_server::setup_failure;

use crate::join::read_key_file;

/// A certificate that was issued for a device.
#[derive(Clone, Debug)]
pub struct DeviceCertificate {
    /// Name of the device.
    pub device: String,
    /// Name in the certificate.
    pub name: String,
    /// Pin of the certificate.
    pub pin: Pin,
    /// Pin of the authority.
    pub authority: Option<Pin>,
}

/// Issues a certificate for the device of a key file, and writes it with its key into a folder.
/// `data`: the folder of the stopped metadata server.
///
/// # Errors
/// The key file is wrong, the server runs, or the folder has a key already.
pub fn issue_certificate(data: &Path, key: &Path, out: &Path, days: u16) -> Outcome<DeviceCertificate> {
    let file = read_key_file(key)?;
    let life = Duration::from_secs(u64::from(days) * 24 * 3600);
    let name = device_name(&file.system_id);
    let made = sealstone_mds_server::issue_certificate(data, &name, life, &Environment::system())
        .map_err(setup_failure)?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(out)
        .map_err(|error| Failure::from(error).at(out.shown()))?;
    if out.join(identity::KEY_FILE).exists() {
        return Err(Failure::operation("already exists").at(out.join(identity::KEY_FILE).shown()));
    }
    identity::write(out, &made)?;
    let authority = made.chain.get(1).map(|der| Pin::authority(der));
    let pin = made.pin().map_err(Failure::operation)?;
    Ok(DeviceCertificate { device: file.name, name: name.to_string(), pin, authority })
}
