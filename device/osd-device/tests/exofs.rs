//! Replays commands that Linux 4.14 with open-osd and exofs sent to another target.
//!
//! The capture: mkexofs, mount, writing files, unmount; 236-byte CDBs under NOSEC (trap T2). Every
//! command that the other target answered with GOOD must get GOOD, and written data must be
//! readable.

use std::collections::HashMap;
use std::sync::Arc;

use crate::support::Bench;
use sealstone_osd::Cdb;
use sealstone_osd_device::OsdConfig;
use sealstone_scsi::Status;
use sealstone_scsi::lu::{InitiatorPort, LogicalUnit as _, NexusId};
use sealstone_store::MemoryStore;

const CAPTURE: &str = include_str!("data/exofs-linux-4.14.txt");

struct Exchange {
    cdb: Vec<u8>,
    data_out: Vec<u8>,
    data_in_max: usize,
    status: u8,
    data_in: Vec<u8>,
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |c: u8| char::from(c).to_digit(16).unwrap() as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn capture() -> Vec<Exchange> {
    let blocks = CAPTURE.split("\n\n").filter(|block| !block.trim().is_empty());
    let parse = |block: &str| {
        let fields: HashMap<&str, &str> =
            block.lines().map(|line| line.split_once(' ').unwrap_or((line, ""))).collect();
        Exchange {
            cdb: unhex(fields["cdb"]),
            data_out: unhex(fields["out"]),
            data_in_max: fields["max"].parse().unwrap(),
            status: u8::from_str_radix(fields["status"], 16).unwrap(),
            data_in: unhex(fields["in"]),
        }
    };
    blocks.map(parse).collect()
}

#[test]
fn captured_linux_session_gets_the_same_answers() {
    let config = OsdConfig { insecure_nosec: true, ..OsdConfig::default() };
    let bench = Bench::with(config, Arc::new(MemoryStore::new(16 << 20)));
    let nexus = NexusId(7);
    bench.unit.nexus_established(nexus, &InitiatorPort::new("iqn.1994-05.com.redhat:exofs"));
    let mut osd = 0;
    for (number, exchange) in capture().iter().enumerate() {
        let reply = bench.raw(nexus, &exchange.cdb, &exchange.data_out, exchange.data_in_max);
        let what = format!("command {number}: {:02x?}", &exchange.cdb[..32.min(exchange.cdb.len())]);
        assert_eq!(reply.status.byte(), exchange.status, "{what}: {:02x?}", reply.sense);
        assert!(reply.data_in.len() <= exchange.data_in_max, "{what}");
        let Ok(cdb) = Cdb::parse(&exchange.cdb) else { continue };
        osd += 1;
        if cdb.command.row().name == "READ" {
            assert_eq!(reply.data_in, exchange.data_in, "{what}");
        }
        if cdb.attributes.gets() && cdb.command.object().object != 0 {
            assert_eq!(
                crate::support::values(&reply.data_in),
                crate::support::values(&exchange.data_in),
                "{what}"
            );
        }
        if cdb.attributes.gets() {
            let names = |bytes: &[u8]| {
                crate::support::values(bytes).into_iter().map(|(id, _)| id).collect::<Vec<_>>()
            };
            assert_eq!(
                names(&reply.data_in),
                names(&exchange.data_in),
                "{what}: all, in the requested order"
            );
        }
        assert_eq!(reply.status == Status::Good, reply.sense.is_empty(), "{what}");
    }
    assert_eq!(osd, 43);
}
