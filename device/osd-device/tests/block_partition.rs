//! Block units are in a partition that no OSD command can address: below the first id that T10
//! allows clients.

use crate::support::{Bench, ListPair};
use sealstone_osd::cdb::*;
use sealstone_osd::{Command, ObjectId, ObjectType};
use sealstone_scsi::Status;

/// Same value as `sealstone_block::BLOCK_PARTITION`; that crate is below this one in the dependency
/// order.
const PARTITION: u64 = 0xB10C;

#[test]
fn no_osd_command_reaches_a_block_unit() {
    let bench = Bench::with_partition();
    let unit = ObjectId::new(PARTITION, 1);
    bench.store.create(unit, ObjectType::User).unwrap();
    bench.store.write(unit, 0, b"a disk").unwrap();
    let extent = Extent { object: unit, start: 0, length: 6 };
    let other = ObjectId::new(PARTITION, 0x10000);
    let refused = [
        Command::Read(extent),
        Command::Write(extent),
        Command::Clear(extent),
        Command::Remove(Target { object: unit }),
        Command::GetAttributes(Target { object: unit }),
        Command::GetAttributes(Target { object: ObjectId::of_partition(PARTITION) }),
        Command::Create(Create { object: other, count: 1 }),
        Command::CreatePartition(CreatePartition { partition: PARTITION }),
    ];
    for command in refused {
        let name = format!("{command:?}");
        let data: &[u8] = if matches!(command, Command::Write(_)) { b"gotcha" } else { b"" };
        let answer = bench.run(command, ListPair::default(), data);
        assert_eq!(answer.status, Status::CheckCondition, "{name}");
    }
    let format = Command::FormatOsd(FormatOsd { capacity: 0 });
    assert_eq!(bench.run(format, ListPair::default(), &[]).status, Status::Good);
    let mut bytes = [0; 6];
    assert_eq!(bench.store.read(unit, 0, &mut bytes).unwrap(), 6);
    assert_eq!(&bytes, b"a disk");
}
