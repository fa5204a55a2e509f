//! Tests of the state machine alone; `tests/reservations.rs` sends commands.

use proptest::prelude::*;

use super::*;

fn port(number: u8) -> PortIdentity {
    PortIdentity { name: format!("iqn.test:{number}"), isid: [number; 6], account: None }
}

const fn keys(own: u64, action: u64) -> ReservationKeys {
    ReservationKeys { own, action }
}

/// Returns a state with ports 1 to `count`, each registered with ten times its number as key.
fn registered(count: u8) -> ReservationState {
    let mut state = ReservationState::default();
    for number in 1..=count {
        state.register(&port(number), keys(0, u64::from(number) * 10), false, false).unwrap();
    }
    state
}

fn passes(state: &ReservationState, number: u8, access: CommandAccess) -> bool {
    state.check(NexusId(u64::from(number)), &port(number), access).is_ok()
}

#[test]
fn registering_needs_the_current_key() {
    let mut state = ReservationState::default();
    assert!(matches!(state.register(&port(1), keys(7, 8), false, false), Err(BlockFailure::Conflict)));
    state.register(&port(1), keys(0, 0), false, false).unwrap();
    assert!(state.registrants.is_empty() && state.generation == 0, "nothing to register");
    state.register(&port(1), keys(0, 8), false, false).unwrap();
    assert!(matches!(state.register(&port(1), keys(0, 9), false, false), Err(BlockFailure::Conflict)));
    state.register(&port(1), keys(8, 9), false, false).unwrap();
    state.register(&port(1), keys(0, 10), true, false).unwrap();
    assert_eq!((state.registrant(&port(1)).unwrap().key, state.generation), (10, 3));
    state.register(&port(1), keys(10, 0), false, false).unwrap();
    assert_eq!((state.registrants.len(), state.generation), (0, 4));
}

#[test]
fn registrations_are_bounded() {
    let mut state = registered(64);
    let refused = state.register(&port(65), keys(0, 1), false, false);
    assert!(matches!(refused, Err(BlockFailure::Registrations)));
    assert_eq!(state.registrants.len(), REGISTRANTS_MAX);
}

/// Access of holder (1), registrant (2) and unregistered port (3) under each type.
#[test]
fn each_reservation_type_admits_standard_access() {
    use ReservationType::*;
    let table = [
        (WriteExclusive, [(true, true), (true, false), (true, false)]),
        (ExclusiveAccess, [(true, true), (false, false), (false, false)]),
        (WriteExclusiveRegistrantsOnly, [(true, true), (true, true), (true, false)]),
        (ExclusiveAccessRegistrantsOnly, [(true, true), (true, true), (false, false)]),
        (WriteExclusiveAllRegistrants, [(true, true), (true, true), (true, false)]),
        (ExclusiveAccessAllRegistrants, [(true, true), (true, true), (false, false)]),
    ];
    for (kind, rights) in table {
        let mut state = registered(2);
        state.reserve(&port(1), keys(10, 0), kind).unwrap();
        for (number, (read, write)) in (1..).zip(rights) {
            assert_eq!(passes(&state, number, CommandAccess::Read), read, "{kind:?}: port {number} reads");
            assert_eq!(passes(&state, number, CommandAccess::Write), write, "{kind:?}: port {number} writes");
            assert!(
                passes(&state, number, CommandAccess::Any) && passes(&state, number, CommandAccess::Harmless)
            );
        }
        assert_eq!(state.holds(&port(2)), kind.is_of_all());
        assert_eq!(state.held_key(), if kind.is_of_all() { 0 } else { 10 });
    }
}

#[test]
fn reservation_needs_matching_type_and_holder_to_release() {
    let mut state = registered(2);
    let kind = ReservationType::WriteExclusiveRegistrantsOnly;
    assert!(
        matches!(state.reserve(&port(3), keys(0, 0), kind), Err(BlockFailure::Conflict)),
        "not registered"
    );
    assert!(matches!(state.reserve(&port(1), keys(20, 0), kind), Err(BlockFailure::Conflict)), "wrong key");
    state.reserve(&port(1), keys(10, 0), kind).unwrap();
    state.reserve(&port(1), keys(10, 0), kind).unwrap();
    assert!(matches!(
        state.reserve(&port(1), keys(10, 0), ReservationType::WriteExclusive),
        Err(BlockFailure::Conflict)
    ));
    assert!(matches!(state.reserve(&port(2), keys(20, 0), kind), Err(BlockFailure::Conflict)));
    assert_eq!(state.release(&port(2), keys(20, 0), kind).unwrap(), [], "not the holder: nothing happens");
    assert!(state.held.is_some());
    let wrong = state.release(&port(1), keys(10, 0), ReservationType::WriteExclusive);
    assert!(matches!(wrong, Err(BlockFailure::InvalidRelease)));
    let notices = state.release(&port(1), keys(10, 0), kind).unwrap();
    assert_eq!(notices, [(port(2), additional::RESERVATIONS_RELEASED)]);
    assert!(state.held.is_none() && state.registrants.len() == 2);
}

#[test]
fn unregistering_holder_releases_reservation() {
    for kind in ReservationType::ALL {
        let mut state = registered(2);
        state.reserve(&port(1), keys(10, 0), kind).unwrap();
        let notices = state.register(&port(1), keys(10, 0), false, false).unwrap();
        assert_eq!(state.held.is_some(), kind.is_of_all(), "{kind:?}");
        assert_eq!(notices.len(), usize::from(kind.admits_registrants() && !kind.is_of_all()), "{kind:?}");
        assert!(notices.iter().all(|notice| *notice == (port(2), additional::RESERVATIONS_RELEASED)));
        if kind.is_of_all() {
            assert!(!passes(&state, 1, CommandAccess::Write), "an unregistered port holds nothing");
            state.register(&port(2), keys(20, 0), false, false).unwrap();
            assert!(state.held.is_none(), "the reservation ended with the last registrant");
        }
    }
}

#[test]
fn clear_removes_all_and_notifies_others() {
    let mut state = registered(3);
    state.reserve(&port(2), keys(20, 0), ReservationType::ExclusiveAccess).unwrap();
    let notices = state.clear(&port(1), keys(10, 0)).unwrap();
    let expected = [2, 3].map(|number| (port(number), additional::RESERVATIONS_PREEMPTED));
    assert_eq!(notices, expected);
    assert!(state.registrants.is_empty() && state.held.is_none());
}

#[test]
fn preempting_the_holder_takes_its_place() {
    let mut state = registered(3);
    state.reserve(&port(2), keys(20, 0), ReservationType::WriteExclusiveRegistrantsOnly).unwrap();
    let notices = state.preempt(&port(1), keys(10, 20), ReservationType::ExclusiveAccess).unwrap();
    assert_eq!(
        notices,
        [(port(2), additional::REGISTRATIONS_PREEMPTED), (port(3), additional::RESERVATIONS_RELEASED)]
    );
    assert_eq!(
        state.held,
        Some(PersistentReservation { kind: ReservationType::ExclusiveAccess, port: port(1) })
    );
    assert!(state.registrant(&port(2)).is_none() && state.registrant(&port(3)).is_some());
    // Its own key: the type changes, the registration stays.
    state.preempt(&port(1), keys(10, 10), ReservationType::WriteExclusive).unwrap();
    assert!(state.registrant(&port(1)).is_some() && state.holds(&port(1)));
}

#[test]
fn preempting_others_only_takes_their_registration() {
    let mut state = registered(3);
    state.reserve(&port(1), keys(10, 0), ReservationType::WriteExclusive).unwrap();
    let notices = state.preempt(&port(2), keys(20, 30), ReservationType::ExclusiveAccess).unwrap();
    assert_eq!(notices, [(port(3), additional::REGISTRATIONS_PREEMPTED)]);
    assert_eq!(
        state.held,
        Some(PersistentReservation { kind: ReservationType::WriteExclusive, port: port(1) })
    );
    let nobody = state.preempt(&port(2), keys(20, 99), ReservationType::WriteExclusive);
    assert!(matches!(nobody, Err(BlockFailure::Conflict)));
    let zero = state.preempt(&port(2), keys(20, 0), ReservationType::WriteExclusive);
    assert!(matches!(zero, Err(BlockFailure::Parameter(at)) if at.byte == 8));
}

#[test]
fn with_all_registrants_key_zero_preempts_everybody_else() {
    let mut state = registered(3);
    state.reserve(&port(1), keys(10, 0), ReservationType::WriteExclusiveAllRegistrants).unwrap();
    state.preempt(&port(2), keys(20, 10), ReservationType::ExclusiveAccess).unwrap();
    assert_eq!(
        state.held.as_ref().unwrap().kind,
        ReservationType::WriteExclusiveAllRegistrants,
        "only one was preempted"
    );
    let notices = state.preempt(&port(2), keys(20, 0), ReservationType::ExclusiveAccess).unwrap();
    assert_eq!(notices, [(port(3), additional::REGISTRATIONS_PREEMPTED)]);
    assert_eq!(
        state.held,
        Some(PersistentReservation { kind: ReservationType::ExclusiveAccess, port: port(2) })
    );
    assert_eq!(state.registrants.len(), 1);
}

#[test]
fn moving_takes_the_reservation_to_another_port() {
    let mut state = registered(1);
    let to = port(9);
    let nothing = state.register_and_move(&port(1), keys(10, 90), to.clone(), false);
    assert!(matches!(nothing, Err(BlockFailure::Field(_))), "there is no reservation to move");
    state.reserve(&port(1), keys(10, 0), ReservationType::ExclusiveAccess).unwrap();
    assert!(state.clone().register_and_move(&port(1), keys(10, 0), to.clone(), false).is_err());
    assert!(state.clone().register_and_move(&port(1), keys(10, 90), port(1), false).is_err());
    state.register_and_move(&port(1), keys(10, 90), to.clone(), true).unwrap();
    assert!(state.holds(&to) && state.registrant(&port(1)).is_none());
    assert_eq!(state.held_key(), 90);
}

#[test]
fn spc2_reservation_and_registration_exclude_each_other() {
    let state = ReservationState::default();
    let (one, two) = (NexusId(1), NexusId(2));
    state.reserve_legacy(one, &port(1)).unwrap();
    assert!(matches!(state.reserve_legacy(two, &port(2)), Err(BlockFailure::Conflict)));
    assert!(!passes(&state, 2, CommandAccess::Read) && !passes(&state, 2, CommandAccess::Harmless));
    assert!(passes(&state, 2, CommandAccess::Any) && passes(&state, 1, CommandAccess::Write));
    state.release_legacy(two, &port(2)).unwrap();
    assert_eq!(state.legacy.holder(), Some(one), "a release by another is ignored");
    state.release_legacy(one, &port(1)).unwrap();
    assert_eq!(state.legacy.holder(), None);
    let state = registered(1);
    state.reserve_legacy(one, &port(1)).unwrap();
    assert_eq!(state.legacy.holder(), None, "a registrant gets GOOD and nothing is reserved");
    assert!(matches!(state.reserve_legacy(two, &port(2)), Err(BlockFailure::Conflict)));
}

/// Applies one change of an arbitrary history.
fn step(state: &mut ReservationState, (action, number, own, other, kind): (u8, u8, u8, u8, usize)) {
    let port = port(number);
    let keys = keys(u64::from(own) * 10, u64::from(other) * 10);
    let kind = ReservationType::ALL[kind];
    let mut next = state.clone();
    let outcome = match action {
        0 => next.register(&port, keys, false, false),
        1 => next.register(&port, keys, true, false),
        2 => next.reserve(&port, keys, kind),
        3 => next.release(&port, keys, kind),
        4 => next.clear(&port, keys),
        5 => next.preempt(&port, keys, kind),
        _ => next.register_and_move(&port, keys, self::port(other), number % 2 == 0),
    };
    if let Ok(notices) = outcome {
        assert!(notices.iter().all(|(notified, _)| *notified != port), "no notice to the initiator itself");
        *state = next;
    }
}

proptest! {
    /// After any history: the holder is registered, no port is registered twice, and the record
    /// decodes to the same state.
    #[test]
    fn every_history_keeps_the_state_whole(
        steps in proptest::collection::vec((0_u8..7, 1_u8..5, 0_u8..6, 0_u8..6, 0_usize..6), 0..60),
    ) {
        let mut state = ReservationState { durable: true, ..ReservationState::default() };
        for one in steps {
            step(&mut state, one);
            let mut ports: Vec<&PortIdentity> = state.registrants.iter().map(|registrant| &registrant.port).collect();
            ports.sort();
            prop_assert!(ports.windows(2).all(|pair| pair[0] != pair[1]));
            prop_assert!(state.registrants.iter().all(|registrant| registrant.key != 0));
            if state.held.is_some() {
                prop_assert!(state.registrants.iter().any(|registrant| state.holds(&registrant.port)));
            }
            let again = ReservationState::from_record(&state.to_record()).expect("our own record");
            prop_assert_eq!(&again.registrants, &state.registrants);
            prop_assert_eq!(again.held.as_ref().map(|held| held.kind), state.held.as_ref().map(|held| held.kind));
            for number in 1..5 {
                prop_assert_eq!(again.holds(&port(number)), state.holds(&port(number)));
            }
        }
    }

    #[test]
    fn arbitrary_records_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let mut versioned = vec![1, 1];
        versioned.extend(&bytes);
        let _ = (ReservationState::from_record(&bytes), ReservationState::from_record(&versioned));
    }
}

/// A record of the first version, which had no accounts, is still read. A port without account is
/// recognised.
#[test]
fn records_keep_accounts_and_older_ones_are_read() {
    let mut state = ReservationState { durable: true, ..ReservationState::default() };
    let ann = PortIdentity { account: Some("ann".into()), ..port(1) };
    for port in [&ann, &port(2)] {
        state.register(port, ReservationKeys { own: 0, action: 7 }, false, false).unwrap();
    }
    let record = state.to_record();
    let back = ReservationState::from_record(&record).unwrap();
    assert_eq!(back.registrants, state.registrants);
    assert!(
        back.registrant(&ann).is_some() && back.registrant(&port(1)).is_none(),
        "a name is not an account"
    );
    for cut in 5..record.len() {
        let _ = ReservationState::from_record(&record[..cut]);
    }
    let name = b"iqn.test:2";
    let old = [&[1, 0, 0xFF, 0xFF][..], &7_u64.to_be_bytes(), &[2; 6], &[0, 10], name].concat();
    assert!(ReservationState::from_record(&old).unwrap().registrant(&port(2)).is_some());
}
