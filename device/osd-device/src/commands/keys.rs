//! SET KEY and SET MASTER KEY.
//!
//! Does: check the operands and change keys through the keyring.
//! Does not: derive or store keys.
//! Contract: an acknowledged change is durable; a failed one changed no key.
//! Truth: docs/design/t10-osd.md 4.7 to 4.9; docs/design/security.md 3.6.

use sealstone_crypto::dh::{DhGroup, DhSecret};
use sealstone_osd::ObjectId;
use sealstone_osd::cdb::{DhStep, KeyToSet, SetKey, SetMasterKey, pointer};
use sealstone_osd::master_key::{BothValues, encode_device_value};
use sealstone_seal::exchange::{self, EXCHANGE_MS};
use sealstone_seal::{KeyError, ct_eq};

use super::data::partition_of;
use super::{CommandResult, CommandRun};
use crate::failure::{self, OsdFailure};
use crate::keyring::MasterKeyExchange;

/// SET KEY.
pub(crate) fn set_key(run: &CommandRun<'_>, set: &SetKey) -> Result<CommandResult, OsdFailure> {
    let object = ObjectId::of_partition(set.partition);
    match set.key {
        KeyToSet::Root if set.partition != 0 => return Err(OsdFailure::Field(failure::PARTITION)),
        // Partition zero exists without being in the catalogue.
        KeyToSet::Partition | KeyToSet::Working(_) if set.partition != 0 => {
            partition_of(run.device, object)?;
        }
        KeyToSet::Root | KeyToSet::Partition | KeyToSet::Working(_) => {}
    }
    run.device.guard.keys.change(run.signed, |keys| match set.key {
        KeyToSet::Root => {
            keys.set_root(&set.seed, set.identifier);
            Ok(())
        }
        KeyToSet::Partition => keys.set_partition(set.partition, &set.seed, set.identifier).map_err(unset),
        KeyToSet::Working(version) => {
            keys.set_working(set.partition, version, &set.seed, set.identifier).map_err(unset)
        }
    })?;
    Ok(CommandResult::of(object))
}

/// Maps a key error to the CDB field that caused it.
fn unset(error: KeyError) -> OsdFailure {
    match error {
        KeyError::NoPartition(_) => OsdFailure::Field(failure::PARTITION),
        KeyError::Version(_) => OsdFailure::Field(pointer::OBJECT),
        KeyError::ParentUnset | KeyError::PartitionExists(_) | KeyError::Full => OsdFailure::Keys(error),
    }
}

/// SET MASTER KEY.
pub(crate) fn set_master_key(
    run: &mut CommandRun<'_>,
    set: &SetMasterKey,
) -> Result<CommandResult, OsdFailure> {
    match set.step {
        DhStep::SeedExchange => exchange_seeds(run, set),
        DhStep::ChangeMasterKey => change_master_key(run, set),
    }
}

/// First step: does both exponentiations, so that the second step can be checked under the new key.
fn exchange_seeds(run: &mut CommandRun<'_>, set: &SetMasterKey) -> Result<CommandResult, OsdFailure> {
    let group = DhGroup::from_code(set.group).ok_or(OsdFailure::Field(pointer::OBJECT))?;
    let client = run.data_out;
    if client.len() != group.value_len() {
        return Err(OsdFailure::ListLength);
    }
    let guard = &run.device.guard;
    let env = run.device.clock.env();
    let mut value = Vec::new();
    guard.keys.begin_exchange(run.signed, run.now_ms, |keys| {
        let ours = DhSecret::draw(group, &mut |into: &mut [u8]| env.fill_random(into));
        let secret = ours.agree(client).map_err(|_| OsdFailure::Parameter(0))?;
        let device = ours.public();
        let pair = keys.exchanged(&exchange::SeedExchange {
            derivation: group.derivation(),
            group: group.code(),
            client,
            device: &device,
            secret: &secret,
        });
        keys.propose_master(pair);
        value.clone_from(&device);
        let until_ms = run.now_ms.saturating_add(EXCHANGE_MS);
        Ok(MasterKeyExchange { nexus: run.nexus, until_ms, client: client.to_vec(), device })
    })?;
    let reply = encode_device_value(&value).ok_or(OsdFailure::ListLength)?;
    let sent = reply.len().min(run.data_in.len());
    run.data_in[..sent].copy_from_slice(&reply[..sent]);
    let length = (reply.len() as u64).min(set.allocation.into());
    Ok(CommandResult { data_in: length, data_in_covered: length, ..CommandResult::of(ObjectId::ROOT) })
}

fn change_master_key(run: &CommandRun<'_>, set: &SetMasterKey) -> Result<CommandResult, OsdFailure> {
    run.device.guard.keys.end_exchange(run.signed, run.nexus, run.now_ms, set.identifier, |pending| {
        let both = BothValues::parse(run.data_out).ok_or(OsdFailure::ListLength)?;
        if !ct_eq(both.client, &pending.client) {
            return Err(OsdFailure::Parameter(0));
        }
        if !ct_eq(both.device, &pending.device) {
            let at = u16::try_from(4 + both.client.len()).unwrap_or(u16::MAX);
            return Err(OsdFailure::Parameter(at));
        }
        Ok(())
    })?;
    // Every key was replaced, so nothing signed in earlier eras verifies.
    run.device.guard.forget_eras()?;
    Ok(CommandResult::of(ObjectId::ROOT))
}
