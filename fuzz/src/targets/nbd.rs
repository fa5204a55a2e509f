//! `sealstone-nbd` and `sealstone-block-client`: what NBD clients send, and answers of a target
//! about a block unit.

use sealstone_block_client::{parse_capacity, parse_lba_status};
use sealstone_nbd::{
    ExportName, ExportProperties, Handshake, HandshakeStep, NbdCommand, REQUEST_BYTES, TRANSFER_MAX,
    parse_option_header, parse_request,
};

use crate::Target;

/// Maximum bytes of all replies of one negotiation: 64 options of one export.
const REPLIES_MAX: usize = 1 << 20;

/// Takes the bytes as a client's side of a connection.
fn stream(input: &[u8]) {
    let properties = ExportProperties {
        bytes: 1 << 30,
        block_min: 512,
        block_preferred: 4096,
        is_read_only: false,
        can_trim: true,
        has_fast_zero: true,
    };
    let mut handshake = Handshake::new(ExportName::new("disk").expect("a name"), properties);
    let Some((flags, mut rest)) = input.split_first_chunk::<4>() else { return };
    if handshake.client_flags(u32::from_be_bytes(*flags)).is_err() {
        return;
    }
    let mut out = Vec::new();
    loop {
        let Some((header, after)) = rest.split_first_chunk::<16>() else { return };
        let Ok(header) = parse_option_header(header) else { return };
        let Ok(is_read) = handshake.accept_option(header) else { return };
        let Some((data, after)) = after.split_at_checked(header.length as usize) else { return };
        rest = after;
        let before = out.len();
        let step = if is_read {
            handshake.option(header.code, data, &mut out)
        } else {
            handshake.skipped_option(header, &mut out);
            Ok(HandshakeStep::Continue)
        };
        assert!(out.len() <= REPLIES_MAX, "replies are bounded");
        match step {
            Ok(HandshakeStep::Continue) => assert!(out.len() > before, "every option has a reply"),
            Ok(HandshakeStep::Transmission) => break,
            Ok(HandshakeStep::Close) | Err(_) => return,
        }
    }
    assert!(!handshake.has_allocation() || handshake.has_structured_replies());
    while let Some((header, after)) = rest.split_first_chunk::<REQUEST_BYTES>() {
        let Ok(request) = parse_request(header) else { return };
        let length = if request.command == NbdCommand::Write { request.length } else { 0 };
        assert!(length <= TRANSFER_MAX);
        let Some((_, after)) = after.split_at_checked(length as usize) else { return };
        rest = after;
    }
}

fn option(code: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).expect("short");
    [&b"IHAVEOPT"[..], &code.to_be_bytes(), &length.to_be_bytes(), data].concat()
}

fn stream_seeds() -> Vec<Vec<u8>> {
    let contexts = [&[0, 0, 0, 4][..], b"disk", &[0, 0, 0, 1, 0, 0, 0, 15], b"base:allocation"].concat();
    let go = [&[0, 0, 0, 4][..], b"disk", &[0, 2, 0, 1, 0, 3]].concat();
    let request = |code: u8, length: u32| {
        let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, code];
        bytes.extend([0; 16]);
        bytes.extend(length.to_be_bytes());
        bytes
    };
    let modern =
        [&[0, 0, 0, 3][..], &option(8, &[]), &option(9, &contexts), &option(10, &contexts), &option(7, &go)]
            .concat();
    let requests =
        [request(0, 512), request(1, 8), vec![7; 8], request(3, 0), request(6, 512), request(7, 512)];
    let old = [&[0, 0, 0, 1][..], &option(3, &[]), &option(6, &go), &option(1, b"disk")].concat();
    let refused = [&[0, 0, 0, 3][..], &option(5, &[]), &option(11, &[]), &option(2, &[])].concat();
    vec![[modern.clone(), requests.concat()].concat(), [old, request(2, 0)].concat(), refused, modern]
}

pub(crate) const STREAM: Target = Target {
    name: "nbd-stream",
    about: "options and requests of an NBD client; every option has a reply, and replies are bounded",
    run: stream,
    seeds: stream_seeds,
    cost: 1,
    quarantine: None,
    covers: &["nbd::wire::parse_option_header", "nbd::wire::parse_request"],
};

/// Blocks of the unit whose status is parsed.
const BLOCKS: u64 = 1 << 20;

fn unit(input: &[u8]) {
    if let Some(capacity) = parse_capacity(input) {
        assert!(capacity.block_bytes.is_power_of_two());
        let bytes = capacity.blocks.checked_mul(u64::from(capacity.block_bytes));
        assert!(bytes.is_some_and(|bytes| i64::try_from(bytes).is_ok()));
    }
    let lba = u64::from(input.first().copied().unwrap_or_default());
    let Ok(extents) = parse_lba_status(input, lba, BLOCKS) else { return };
    let mut next = lba;
    for (first, blocks, _) in extents {
        assert!(first == next && blocks > 0, "consecutive");
        next = first + blocks;
    }
    assert!(next <= BLOCKS);
}

fn unit_seeds() -> Vec<Vec<u8>> {
    let mut capacity = vec![0; 32];
    capacity[6..16].copy_from_slice(&[0xFF, 0xFF, 0, 0, 2, 0, 0, 3, 0xC0, 0]);
    let mut status = vec![0, 0, 0, 36, 0, 0, 0, 0];
    status.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0]);
    status.extend([0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 1, 0, 1, 0, 0, 0]);
    vec![capacity, status]
}

pub(crate) const UNIT: Target = Target {
    name: "block-client-unit",
    about: "capacity and LBA status that a target reports; extents are consecutive and in the unit",
    run: unit,
    seeds: unit_seeds,
    cost: 1,
    quarantine: None,
    covers: &["block-client::command::parse_capacity", "block-client::command::parse_lba_status"],
};
