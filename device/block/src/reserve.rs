//! Commands on reservations: PERSISTENT RESERVE IN and OUT, RESERVE and RELEASE (SPC-4 §6.15,
//! §6.16; SPC-2 §7.21, §7.24).
//!
//! Does: parse parameter data, store changes, queue notices.
//! Does not: decide; `reservation` does.
//! Contract: these commands run exclusively on their unit, so after GOOD to PREEMPT no command of
//! the preempted nexus is in progress. With APTPL, GOOD means that the change is durable.

use bytes::Bytes;

use crate::catalog;
use crate::command::{BlockCommand, CommandOutcome};
use crate::failure::BlockFailure;
use crate::limits::TARGET_PORT;
use crate::ports::PortIdentity;
use crate::reservation::{ReservationKeys, ReservationNotices, ReservationState, ReservationType};
use crate::transfer::{be16, be32};
use crate::transport_id;

/// Service actions of PERSISTENT RESERVE IN.
pub(crate) mod input {
    pub(crate) const READ_KEYS: u16 = 0x00;
    pub(crate) const READ_RESERVATION: u16 = 0x01;
    pub(crate) const REPORT_CAPABILITIES: u16 = 0x02;
    pub(crate) const READ_FULL_STATUS: u16 = 0x03;
}

/// Service actions of PERSISTENT RESERVE OUT.
pub(crate) mod output {
    pub(crate) const REGISTER: u16 = 0x00;
    pub(crate) const RESERVE: u16 = 0x01;
    pub(crate) const RELEASE: u16 = 0x02;
    pub(crate) const CLEAR: u16 = 0x03;
    pub(crate) const PREEMPT: u16 = 0x04;
    pub(crate) const PREEMPT_AND_ABORT: u16 = 0x05;
    pub(crate) const REGISTER_AND_IGNORE: u16 = 0x06;
    pub(crate) const REGISTER_AND_MOVE: u16 = 0x07;
}

/// Bytes of the parameter list of all actions except REGISTER AND MOVE; in the latter, bytes before
/// the TransportID.
const LIST_LENGTH: usize = 24;
/// Longest accepted TransportID: an iSCSI name of 223 bytes, ISID and padding, rounded up.
const TRANSPORT_ID_MAX: usize = 512;
/// SPEC_I_PT, ALL_TG_PT, APTPL: byte 20 of the list.
const SPEC_I_PT: u8 = 0x08;
const ALL_TG_PT: u8 = 0x04;
const APTPL: u8 = 0x01;
/// UNREG: byte 17 of the list of REGISTER AND MOVE.
const UNREG: u8 = 0x02;

/// PERSISTENT RESERVE IN, all actions.
pub(crate) fn report(
    run: &BlockCommand<'_>,
    state: &ReservationState,
) -> Result<CommandOutcome, BlockFailure> {
    if state.legacy.holder().is_some() {
        return Err(BlockFailure::Conflict);
    }
    let mut data = match run.action() {
        input::READ_KEYS => {
            let keys = state.registrants.iter().flat_map(|registrant| registrant.key.to_be_bytes()).collect();
            with_header(state, keys)
        }
        input::READ_RESERVATION => {
            let mut body = Vec::new();
            if let Some(held) = &state.held {
                body.extend(state.held_key().to_be_bytes());
                body.extend([0, 0, 0, 0, 0, held.kind as u8, 0, 0]);
            }
            with_header(state, body)
        }
        input::REPORT_CAPABILITIES => capabilities(state),
        _ => full_status(state),
    };
    data.truncate(usize::from(be16(run.wire(), 7)));
    Ok(CommandOutcome::data(Bytes::from(data), run))
}

fn with_header(state: &ReservationState, body: Vec<u8>) -> Vec<u8> {
    let mut out = state.generation.to_be_bytes().to_vec();
    out.extend(u32::try_from(body.len()).expect("at most 64 registrations").to_be_bytes());
    out.extend(body);
    out
}

/// REPORT CAPABILITIES: RESERVE(6) while registrations exist (CRH), all target ports (ATP_C), power
/// loss (PTPL_C), all types; no initiator ports in REGISTER (SIP_C).
fn capabilities(state: &ReservationState) -> Vec<u8> {
    const CRH: u8 = 0x10;
    const ATP_C: u8 = 0x04;
    const PTPL_C: u8 = 0x01;
    const TMV: u8 = 0x80;
    /// ALLOW COMMANDS 011b: TEST UNIT READY passes, MODE SENSE does not under exclusive access.
    const ALLOW_COMMANDS: u8 = 0x30;
    // WE, EA, WE RO, EA RO, WE AR in byte 4; EA AR in byte 5.
    vec![0, 8, CRH | ATP_C | PTPL_C, TMV | ALLOW_COMMANDS | u8::from(state.durable), 0xEA, 0x01, 0, 0]
}

fn full_status(state: &ReservationState) -> Vec<u8> {
    let mut body = Vec::new();
    for registrant in &state.registrants {
        let holds = state.holds(&registrant.port);
        let kind = state.held.as_ref().filter(|_| holds).map_or(0, |held| held.kind as u8);
        body.extend(registrant.key.to_be_bytes());
        body.extend([0; 4]);
        body.extend([u8::from(registrant.all_ports) << 1 | u8::from(holds), kind, 0, 0, 0, 0]);
        body.extend(TARGET_PORT.to_be_bytes());
        let id = transport_id::encode(&registrant.port);
        body.extend(u32::try_from(id.len()).expect("a name has at most 223 bytes").to_be_bytes());
        body.extend(id);
    }
    with_header(state, body)
}

/// PERSISTENT RESERVE OUT, all actions.
pub(crate) fn change(
    run: &BlockCommand<'_>,
    state: &mut ReservationState,
) -> Result<CommandOutcome, BlockFailure> {
    if state.legacy.holder().is_some() {
        return Err(BlockFailure::Conflict);
    }
    let action = run.action();
    let length = be32(run.wire(), 5) as usize;
    let list = run.command.data_out.get(..length).ok_or(BlockFailure::ParameterLength)?;
    let moves = action == output::REGISTER_AND_MOVE;
    let fixed: &[u8; LIST_LENGTH] = list.first_chunk().ok_or(BlockFailure::ParameterLength)?;
    if !moves && fixed[20] & SPEC_I_PT != 0 && registers(action) {
        return Err(BlockFailure::parameter(20));
    }
    if !moves && length != LIST_LENGTH {
        return Err(BlockFailure::ParameterLength);
    }
    let (own, rest) = fixed.split_first_chunk().expect("24 bytes");
    let key = |bytes: &[u8]| bytes.first_chunk().map_or(0, |key| u64::from_be_bytes(*key));
    let keys = ReservationKeys { own: u64::from_be_bytes(*own), action: key(rest) };
    let port = &run.nexus.port;
    let mut next = state.clone();
    let notices = match action {
        output::REGISTER | output::REGISTER_AND_IGNORE => {
            let ignore = action == output::REGISTER_AND_IGNORE;
            let notices = next.register(port, keys, ignore, fixed[20] & ALL_TG_PT != 0)?;
            next.durable = fixed[20] & APTPL != 0;
            notices
        }
        output::CLEAR => next.clear(port, keys)?,
        output::REGISTER_AND_MOVE => {
            let notices = register_and_move(run, &mut next, keys, list)?;
            next.durable = fixed[17] & APTPL != 0;
            notices
        }
        _ => {
            let kind = kind(run)?;
            match action {
                output::RESERVE => next.reserve(port, keys, kind)?,
                output::RELEASE => next.release(port, keys, kind)?,
                _ => next.preempt(port, keys, kind)?,
            }
        }
    };
    persist(run, state, &next)?;
    *state = next;
    notify(run, notices);
    Ok(CommandOutcome { used: length as u64, ..CommandOutcome::GOOD })
}

const fn registers(action: u16) -> bool {
    matches!(action, output::REGISTER | output::REGISTER_AND_IGNORE)
}

/// Returns TYPE. SCOPE must be the whole unit.
fn kind(run: &BlockCommand<'_>) -> Result<ReservationType, BlockFailure> {
    let byte = run.wire()[2];
    if byte >> 4 != 0 {
        return Err(BlockFailure::bit(2, 7));
    }
    ReservationType::from_code(byte & 0x0F).ok_or(BlockFailure::bit(2, 3))
}

fn register_and_move(
    run: &BlockCommand<'_>,
    next: &mut ReservationState,
    keys: ReservationKeys,
    list: &[u8],
) -> Result<ReservationNotices, BlockFailure> {
    let fixed: &[u8; LIST_LENGTH] = list.first_chunk().ok_or(BlockFailure::ParameterLength)?;
    let target = u16::from_be_bytes([fixed[18], fixed[19]]);
    let id_length = u32::from_be_bytes([fixed[20], fixed[21], fixed[22], fixed[23]]) as usize;
    let id = &list[LIST_LENGTH..];
    if id_length != id.len() || id_length > TRANSPORT_ID_MAX {
        return Err(BlockFailure::ParameterLength);
    }
    if target != TARGET_PORT {
        return Err(BlockFailure::parameter(18));
    }
    let to = transport_id::decode(id).ok_or(BlockFailure::parameter(LIST_LENGTH))?;
    let to = owner(run, next, to).ok_or(BlockFailure::parameter(LIST_LENGTH))?;
    next.register_and_move(&run.nexus.port, keys, to, fixed[17] & UNREG != 0)
}

/// Returns the port that a TransportID names: one that is logged in or registered. If accounts are
/// in use, an unknown name is refused, because any account could log in with it later.
fn owner(run: &BlockCommand<'_>, state: &ReservationState, named: PortIdentity) -> Option<PortIdentity> {
    let registered = || {
        let ports = state.registrants.iter().map(|registrant| &registrant.port);
        ports.into_iter().find(|port| port.is_named_as(&named)).cloned()
    };
    let known = run.unit.nexuses().named_as(&named).or_else(registered);
    known.or_else(|| run.nexus.port.account.is_none().then_some(named))
}

/// Stores the change if it, or the state that it replaces, must be durable.
fn persist(
    run: &BlockCommand<'_>,
    old: &ReservationState,
    next: &ReservationState,
) -> Result<(), BlockFailure> {
    let (before, after) = (old.to_record(), next.to_record());
    if before == after {
        return Ok(());
    }
    catalog::store_reservations(run.unit.store(), run.unit.object(), &after)
        .and_then(|()| run.unit.store().flush())
        .map_err(BlockFailure::Write)
}

fn notify(run: &BlockCommand<'_>, notices: ReservationNotices) {
    for (port, code) in notices {
        tracing::info!(unit = run.unit.name(), initiator = %port.name, code = %code, "reservation notice");
        run.unit.nexuses().raise_for(&port, code);
    }
}

/// Refuses 3RDPTY and EXTENT: only whole units for the initiator itself are supported (SPC-2
/// §7.21).
fn check_whole_unit(run: &BlockCommand<'_>) -> Result<(), BlockFailure> {
    if run.wire()[1] & 0x1F == 0 { Ok(()) } else { Err(BlockFailure::bit(1, 4)) }
}

/// Runs RESERVE(6).
pub(crate) fn reserve_legacy(
    run: &BlockCommand<'_>,
    state: &mut ReservationState,
) -> Result<CommandOutcome, BlockFailure> {
    check_whole_unit(run)?;
    state.reserve_legacy(run.nexus.id, &run.nexus.port)?;
    Ok(CommandOutcome::GOOD)
}

/// Runs RELEASE(6).
pub(crate) fn release_legacy(
    run: &BlockCommand<'_>,
    state: &mut ReservationState,
) -> Result<CommandOutcome, BlockFailure> {
    check_whole_unit(run)?;
    state.release_legacy(run.nexus.id, &run.nexus.port)?;
    Ok(CommandOutcome::GOOD)
}
