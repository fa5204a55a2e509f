//! SET KEY at every level and SET MASTER KEY, with an in-memory device and one on a disk.

use std::path::Path;
use std::sync::Arc;

use sealstone_crypto::dh::DhGroup;
use sealstone_initiator::{KeyManager, OsdClient, OsdOptions, SystemEnvironment, TargetUrl, TcpDial};
use sealstone_osd::cdb::KeyToSet;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::credential::Issuer;
use crate::daemon::Osd;
use crate::latency::CommandLatency;

/// The partition whose keys are set.
const PARTITION: u64 = 1 << 16;
/// Factor by which whole exchanges are measured less often than single commands.
const EXCHANGES_FEWER: usize = 20;

/// Measures all rows for a device with its data in `data`.
pub(crate) fn measure(
    runtime: &Runtime,
    binary: &Path,
    data: &Path,
    place: &str,
    samples: usize,
) -> Outcome<Vec<CommandLatency>> {
    let osd = Osd::new(binary, data)?;
    let issuer = Issuer::of(&osd.data, PARTITION)?;
    let url: TargetUrl = osd.url.parse()?;
    let environment = Arc::new(SystemEnvironment);
    let options = OsdOptions::new(&*environment);
    let device = OsdClient::new(Arc::new(TcpDial::new(&url)), &url, environment.clone(), options);
    runtime.block_on(device.create_partition(&issuer.anything()?, PARTITION))?;
    let mut manager = KeyManager::new(device, issuer.keys().clone(), environment);
    let identifier = |number: usize| {
        let [_, identifier @ ..] = (number as u64).to_be_bytes();
        identifier
    };
    let mut rows = Vec::new();
    for (level, key, partition) in [
        ("working", KeyToSet::Working(1), PARTITION),
        ("partition", KeyToSet::Partition, PARTITION),
        ("root", KeyToSet::Root, 0),
    ] {
        let name = format!("SET KEY {level}, {place}");
        rows.push(CommandLatency::measure(&name, "ALLDATA; one partition", samples, |number| {
            Ok(runtime.block_on(manager.set_key(key, partition, identifier(number)))?)
        })?);
    }
    for (group, called) in [(DhGroup::Modp2048, "MODP 2048"), (DhGroup::X25519, "X25519")] {
        let name = format!("SET MASTER KEY {called}, {place}");
        let note = "both steps, and the client's own arithmetic";
        rows.push(CommandLatency::measure(&name, note, samples.div_ceil(EXCHANGES_FEWER), |number| {
            Ok(runtime.block_on(manager.set_master_key(group, identifier(number)))?)
        })?);
    }
    drop(manager);
    osd.stop()?;
    Ok(rows)
}
