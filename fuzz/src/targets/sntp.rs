//! `sealstone-sntp`: packets, exchanges through a changing network, key files.

use std::net::IpAddr;

use sealstone_sntp::{
    ClockState, Datagram, FollowPolicy, Follower, HEADER_LEN, LeapIndicator, NtpPacket, NtpTimestamp,
    RequestSource, Responder, SIGNED_LEN, SampleOutcome, TimeKey, TimeQuery, Trailer, parse_key_line,
};

use crate::Target;
use crate::input::{Input, seed};

const NOW_MS: u64 = 1_800_000_000_000;

fn key() -> TimeKey {
    TimeKey::new(0x1234, [7; 16]).expect("no key has number zero")
}

fn packet(input: &[u8]) {
    let Ok((packet, trailer)) = NtpPacket::parse(input) else { return };
    assert_eq!(packet.encode()[..], input[..HEADER_LEN]);
    let length = match trailer {
        Trailer::Plain => HEADER_LEN,
        Trailer::Nak => HEADER_LEN + 4,
        Trailer::Signed { key_id, .. } => {
            assert_ne!(key_id, 0);
            SIGNED_LEN
        }
    };
    assert_eq!(length, input.len());
    for stamp in [packet.reference, packet.origin, packet.receive, packet.transmit] {
        if let Some(ms) = stamp.to_ms(NOW_MS) {
            assert!(NtpTimestamp::of_ms(ms).0.abs_diff(stamp.0) <= (1 << 32) / 1000 + 1, "{stamp:?} {ms}");
        }
    }
}

fn packets() -> Vec<Vec<u8>> {
    let request = TimeQuery::new(99, None, 0).bytes().to_vec();
    let signed = TimeQuery::new(99, Some(key()), 0).bytes().to_vec();
    let nak = [&request[..], &[0; 4]].concat();
    let answer =
        [&[0x24, 3, 6, 0xF7], &request[4..24], &request[40..], &request[40..], &request[40..]].concat();
    vec![request, signed, nak, answer]
}

/// Tolerance for equal times, in milliseconds: covers the difference of two clocks and slewing.
const RETURN_MS: u64 = 80_000;

/// A server and a clock that follows it. The input decides which datagrams reach each end, and
/// when. A response is no longer than its request. The clock never runs faster than allowed, and
/// goes back only to a time before a forward step, if the machine's clock agrees.
fn talk(input: &[u8]) {
    let mut input = Input::new(input);
    let mut server = Responder::default();
    let mut clock = Follower::new(FollowPolicy::SIGNED, NOW_MS, 0, 0, NOW_MS - 1_000);
    let state = ClockState {
        leap: LeapIndicator::None,
        stratum: 10,
        reference_id: *b"LOCL",
        root_delay_ms: 1,
        root_dispersion_ms: 10,
        reference_ms: NOW_MS,
    };
    let source = RequestSource::from(IpAddr::from([127, 0, 0, 1]));
    let (mut at_ms, mut last_ms) = (0u64, clock.time_ms(0));
    // Offsets before forward steps.
    let mut left_ms: Vec<u64> = Vec::new();
    while !input.is_empty() {
        let choices = input.byte();
        let pause_ms = u64::from(input.short());
        at_ms += pause_ms;
        let now_ms = clock.time_ms(at_ms);
        let most = if clock.is_set() { pause_ms + pause_ms / 20 + 1 } else { u64::MAX };
        assert!(now_ms >= last_ms && now_ms - last_ms <= most, "{last_ms} to {now_ms} in {pause_ms}");
        let query = TimeQuery::new(input.long(), (choices & 1 != 0).then(key), at_ms);
        let mut datagram = query.bytes().to_vec();
        if choices & 2 != 0 {
            change(&mut datagram, &mut input);
        }
        // The input sets the server's clock.
        let theirs_ms = (NOW_MS + at_ms).saturating_add_signed(i64::from(input.word().cast_signed()));
        let own = |id| (id == key().id()).then(key);
        let received = Datagram {
            datagram: &datagram,
            source,
            stopwatch_ms: at_ms,
            received_ms: theirs_ms,
            now_ms: theirs_ms,
        };
        let answer = server.answer(&received, &state, own);
        last_ms = clock.time_ms(at_ms);
        let Some(reply) = answer.reply else { continue };
        assert!(reply.bytes().len() <= datagram.len());
        let mut datagram = reply.bytes().to_vec();
        if choices & 4 != 0 {
            change(&mut datagram, &mut input);
        }
        at_ms += u64::from(input.byte());
        if let Ok(sample) = query.read(&datagram, at_ms, NOW_MS) {
            let before_ms = clock.time_ms(at_ms);
            let was_set = clock.is_set();
            let machine_ms = if choices & 8 != 0 { NOW_MS + at_ms } else { theirs_ms };
            let accepted = clock.apply_sample(sample, at_ms, machine_ms);
            let after_ms = clock.time_ms(at_ms);
            if after_ms < before_ms {
                let offset_ms = after_ms - at_ms;
                assert!(
                    left_ms.iter().any(|left_ms| left_ms.abs_diff(offset_ms) <= RETURN_MS),
                    "{accepted:?}"
                );
                assert!(after_ms.abs_diff(machine_ms) <= RETURN_MS, "{accepted:?}");
            } else if was_set && matches!(accepted, Ok(SampleOutcome::Set { .. })) {
                left_ms.push(before_ms - at_ms);
            }
            let jumps = matches!(accepted, Ok(SampleOutcome::Set { .. }));
            assert!(jumps || after_ms == before_ms, "{accepted:?} {was_set}");
        }
        last_ms = clock.time_ms(at_ms);
    }
}

/// Changes a few bytes or the length.
fn change(datagram: &mut Vec<u8>, input: &mut Input<'_>) {
    for _ in 0..input.byte() % 4 {
        let at = usize::from(input.byte()) % datagram.len().max(1);
        if let Some(byte) = datagram.get_mut(at) {
            *byte ^= input.byte();
        }
    }
    if input.byte() & 0x80 != 0 {
        datagram.resize(usize::from(input.byte()) % 128, 0);
    }
}

fn key_line(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(Some(key)) = parse_key_line(&text) {
        assert_ne!(key.id(), 0);
        assert!(!text.trim().is_empty());
    }
}

pub(crate) const PACKET: Target = Target {
    name: "sntp-packet",
    about: "a datagram as an NTP packet; what parses encodes to the same bytes",
    run: packet,
    seeds: packets,
    cost: 1,
    quarantine: None,
    covers: &["sntp::NtpPacket::parse"],
};

pub(crate) const TALK: Target = Target {
    name: "sntp-talk",
    about: "a clock that follows a server with a liar in between; it never goes back, and no answer is longer than its question",
    run: talk,
    seeds: || {
        let step = |choices: u8| seed(&[choices, 1, 0], &[9, 9, 9, 9, 9, 9, 9, 9, 0, 0, 0, 50, 3]);
        vec![
            step(1).repeat(4),
            step(0).repeat(4),
            [step(1), seed(&[3, 255, 255, 1, 2, 3, 4, 5, 6, 7, 8], &[2, 40, 1, 50, 1, 0, 0, 0, 0, 9, 3])]
                .concat(),
            [step(1), seed(&[5, 255, 255, 1, 2, 3, 4, 5, 6, 7, 8], &[0, 255, 0, 0, 2, 33, 9, 60, 9, 0, 3])]
                .concat(),
        ]
    },
    cost: 4,
    quarantine: None,
    covers: &["sntp::Query::read", "sntp::Responder::answer"],
};

pub(crate) const KEY_LINE: Target = Target {
    name: "sntp-key-line",
    about: "a line of a key file",
    run: key_line,
    seeds: || {
        let digits = "00112233445566778899aabbccddeeff";
        let lines = [
            format!("7 AES128 HEX:{digits}"),
            format!("7 AES128CMAC {digits} # upstream"),
            "# none".to_owned(),
        ];
        lines.map(String::into_bytes).to_vec()
    },
    cost: 1,
    quarantine: None,
    covers: &["sntp::key::parse_key_line"],
};
