//! SET KEY and SET MASTER KEY.
//!
//! Does: check the operands and change keys through the keyring. Does not: derive or store keys.
//! Contract: an acknowledged change is durable; a failed one changed no key.
//! Truth: docs/design/t10-osd.md 4.7 to 4.9; docs/design/security.md 3.6.

use sealstone_crypto::dh::{Group, Secret};
use sealstone_osd::ObjectId;
use sealstone_osd::cdb::{DhStep, KeyToSet, SetKey, SetMasterKey, pointer};
use sealstone_osd::master_key::{BothValues, encode_device_value};
use sealstone_seal::exchange::{self, EXCHANGE_MS};
use sealstone_seal::{KeyError, ct_eq};

use super::data::partition_of;
use super::{Done, Run};
use crate::failure::{self, Failure};
use crate::keyring::Exchange;

/// SET KEY.
pub(crate) fn set_key(run: &Run<'_>, set: &SetKey) -> Result<Done, Failure> {
    let object = ObjectId::of_partition(set.partition);
    match set.key {
        KeyToSet::Root if set.partition != 0 => return Err(Failure::Field(failure::PARTITION)),
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
    Ok(Done::of(object))
}

/// Maps a key error to the CDB field that caused it.
fn unset(error: KeyError) -> Failure {
    match error {
        KeyError::NoPartition(_) => Failure::Field(failure::PARTITION),
        KeyError::Version(_) => Failure::Field(pointer::OBJECT),
        KeyError::ParentUnset | KeyError::PartitionExists(_) | KeyError::Full => Failure::Keys(error),
    }
}

/// SET MASTER KEY.
pub(crate) fn set_master_key(run: &mut Run<'_>, set: &SetMasterKey) -> Result<Done, Failure> {
    match set.step {
        DhStep::SeedExchange => exchange_seeds(run, set),
        DhStep::ChangeMasterKey => change_master_key(run, set),
    }
}

/// First step: does both exponentiations, so that the second step can be checked under the new key.
fn exchange_seeds(run: &mut Run<'_>, set: &SetMasterKey) -> Result<Done, Failure> {
    let group = Group::from_code(set.group).ok_or(Failure::Field(pointer::OBJECT))?;
    let client = run.data_out;
    if client.len() != group.value_len() {
        return Err(Failure::ListLength);
    }
    let guard = &run.device.guard;
    let surroundings = run.device.clock.surroundings();
    let mut value = Vec::new();
    guard.keys.begin_exchange(run.signed, run.now_ms, |keys| {
        let ours = Secret::draw(group, &mut |into: &mut [u8]| surroundings.fill_random(into));
        let secret = ours.agree(client).map_err(|_| Failure::Parameter(0))?;
        let device = ours.public();
        let pair = keys.exchanged(&exchange::Exchange {
            derivation: group.derivation(),
            group: group.code(),
            client,
            device: &device,
            secret: &secret,
        });
        keys.propose_master(pair);
        value.clone_from(&device);
        let until_ms = run.now_ms.saturating_add(EXCHANGE_MS);
        Ok(Exchange { nexus: run.nexus, until_ms, client: client.to_vec(), device })
    })?;
    let reply = encode_device_value(&value).ok_or(Failure::ListLength)?;
    let sent = reply.len().min(run.data_in.len());
    run.data_in[..sent].copy_from_slice(&reply[..sent]);
    let length = (reply.len() as u64).min(set.allocation.into());
    Ok(Done { data_in: length, data_in_covered: length, ..Done::of(ObjectId::ROOT) })
}

fn change_master_key(run: &Run<'_>, set: &SetMasterKey) -> Result<Done, Failure> {
    run.device.guard.keys.end_exchange(run.signed, run.nexus, run.now_ms, set.identifier, |pending| {
        let both = BothValues::parse(run.data_out).ok_or(Failure::ListLength)?;
        if !ct_eq(both.client, &pending.client) {
            return Err(Failure::Parameter(0));
        }
        if !ct_eq(both.device, &pending.device) {
            let at = u16::try_from(4 + both.client.len()).unwrap_or(u16::MAX);
            return Err(Failure::Parameter(at));
        }
        Ok(())
    })?;
    // Every key was replaced, so nothing signed in earlier eras verifies.
    run.device.guard.forget_eras()?;
    Ok(Done::of(ObjectId::ROOT))
}
