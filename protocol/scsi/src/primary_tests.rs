//! Tests of the shared SPC commands, with the smallest device that implements [`DeviceServer`].

use core::cell::RefCell;

use proptest::prelude::*;

use super::*;
use crate::FieldPointer;
use crate::attention::Attentions;
use crate::lu::{Buffers, NoTasks};
use crate::spc::mode;

struct NoBuffers;

impl Buffers for NoBuffers {
    fn take(&self, _: usize) -> Option<Vec<u8>> {
        None
    }
    fn freeze(&self, buffer: Vec<u8>) -> Bytes {
        Bytes::from(buffer)
    }
}

/// The smallest device: one page, one command, one changeable bit.
struct Small {
    attentions: RefCell<Attentions>,
    ready: bool,
    descriptor: bool,
    bit: RefCell<u8>,
}

impl Small {
    fn new() -> Self {
        Self { attentions: RefCell::default(), ready: true, descriptor: false, bit: RefCell::new(0) }
    }

    fn run(&self, cdb: &[u8], data_out: &[u8]) -> ScsiReply {
        let command = ScsiCommand {
            nexus: NexusId(1),
            lun: 3,
            cdb,
            data_out,
            data_in_max: 1 << 16,
            buffers: &NoBuffers,
            tasks: &NoTasks,
        };
        answer(self, &command)
    }

    fn sense(&self, cdb: &[u8], data_out: &[u8]) -> Sense {
        let reply = self.run(cdb, data_out);
        assert_eq!(reply.status, Status::CheckCondition, "{cdb:02x?}");
        Sense::parse(&reply.sense).unwrap()
    }
}

impl DeviceServer for Small {
    fn identity(&self) -> Identity<'_> {
        Identity { device_type: 0, vendor: "V", product: "P", revision: "1", versions: &[], removable: false }
    }
    fn pages(&self) -> &[u8] {
        &[vpd::SUPPORTED, vpd::SERIAL]
    }
    fn page(&self, _: NexusId, page: u8) -> Option<Vec<u8>> {
        (page == vpd::SERIAL).then(|| b"42".to_vec())
    }
    fn commands(&self) -> &[CommandRow] {
        const { &[CommandRow::new(0x28, 10, &[])] }
    }
    fn ready(&self) -> Result<(), Sense> {
        if self.ready { Ok(()) } else { Err(Sense::new(SenseKey::NotReady, additional::BECOMING_READY)) }
    }
    fn unit_attention(&self, _: NexusId, take: bool) -> Option<AdditionalSense> {
        let mut waiting = self.attentions.borrow_mut();
        if take { waiting.take() } else { waiting.first() }
    }
    fn luns_reported(&self, _: NexusId) {
        self.attentions.borrow_mut().luns_reported();
    }
    fn descriptor_sense(&self) -> bool {
        self.descriptor
    }
    fn mode_header(&self) -> ModeHeader {
        ModeHeader::default()
    }
    fn mode_pages(&self) -> Vec<ModePage> {
        let own = ModePage {
            code: 8,
            subpage: 0,
            current: alloc::vec![*self.bit.borrow(), 0],
            default: alloc::vec![0; 2],
            saved: None,
            changeable: alloc::vec![4, 0],
        };
        alloc::vec![own, mode::control_page(self.descriptor)]
    }
    fn mode_select(&self, _: NexusId, pages: &[NewPage], _: bool) -> Result<(), Sense> {
        for (_, _, values) in pages {
            *self.bit.borrow_mut() = values[0];
        }
        Ok(())
    }
}

#[test]
fn unit_attentions_precede_all_but_exempt_commands() {
    let unit = Small::new();
    unit.attentions.borrow_mut().raise(additional::POWER_ON_OR_RESET);
    unit.attentions.borrow_mut().raise(additional::REPORTED_LUNS_CHANGED);
    assert_eq!(unit.run(&[0x12, 0, 0, 0, 96, 0], &[]).status, Status::Good);
    assert_eq!(unit.run(&[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], &[]).data_in[8..10], [0, 3]);
    assert_eq!(unit.sense(&[0; 6], &[]).code, additional::POWER_ON_OR_RESET);
    assert_eq!(unit.run(&[0; 6], &[]).status, Status::Good, "REPORT LUNS has told the other one");
    unit.attentions.borrow_mut().raise(additional::MODE_PARAMETERS_CHANGED);
    assert_eq!(unit.sense(&[0xFE; 16], &[]).code, additional::MODE_PARAMETERS_CHANGED);
    assert_eq!(unit.sense(&[0xFE; 16], &[]).code, additional::INVALID_COMMAND_OPERATION_CODE);
    unit.attentions.borrow_mut().raise(additional::MODE_PARAMETERS_CHANGED);
    let sense = unit.run(&[3, 1, 0, 0, 252, 0], &[]).data_in;
    assert_eq!(Sense::parse(&sense).unwrap().code, additional::MODE_PARAMETERS_CHANGED);
    let nothing = unit.run(&[3, 0, 0, 0, 252, 0], &[]).data_in;
    assert_eq!((nothing.len(), nothing[0], nothing[2]), (18, 0x70, 0));
}

#[test]
fn request_sense_reports_not_ready() {
    let unit = Small { ready: false, ..Small::new() };
    assert_eq!(unit.sense(&[0; 6], &[]).code, additional::BECOMING_READY);
    let reply = unit.run(&[3, 0, 0, 0, 18, 0], &[]);
    assert_eq!((reply.status, reply.data_in[2], reply.data_in[12]), (Status::Good, 2, 4));
}

#[test]
fn exactly_the_listed_pages_exist() {
    let unit = Small::new();
    assert_eq!(unit.run(&[0x12, 1, 0, 0, 255, 0], &[]).data_in[..], [0, 0, 0, 2, 0, 0x80]);
    assert_eq!(unit.run(&[0x12, 1, 0x80, 0, 255, 0], &[]).data_in[..], [0, 0x80, 0, 2, b'4', b'2']);
    assert_eq!(unit.run(&[0x12, 1, 0x80, 0, 5, 0], &[]).data_in.len(), 5);
    assert_eq!(unit.sense(&[0x12, 1, 0x83, 0, 255, 0], &[]).field, Some(FieldPointer::cdb(2)));
}

#[test]
fn a_changed_mode_bit_is_read_back() {
    let unit = Small::new();
    let list = [0, 0, 0, 0, 8, 2, 4, 0];
    let reply = unit.run(&[0x15, 0x10, 0, 0, 8, 0], &list);
    assert_eq!((reply.status, reply.data_out_used), (Status::Good, 8));
    assert_eq!(unit.run(&[0x1A, 8, 8, 0, 255, 0], &[]).data_in[4..], [8, 2, 4, 0]);
    assert_eq!(
        unit.sense(&[0x15, 0x11, 0, 0, 8, 0], &list).field,
        Some(FieldPointer::cdb(1)),
        "SP without savable pages"
    );
    assert_eq!(unit.sense(&[0x15, 0, 0, 0, 8, 0], &list).field, Some(FieldPointer::cdb(1)), "PF");
    let cut = unit.sense(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, 9, 0], &list);
    assert_eq!(cut.code, additional::PARAMETER_LIST_LENGTH_ERROR);
}

#[test]
fn every_command_is_reported_once() {
    let unit = Small::new();
    let all = unit.run(&[0xA3, 0x0C, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0], &[]).data_in;
    assert_eq!(all.len(), 4 + 8 * (COMMANDS.len() + 1));
    let codes: Vec<(u8, u8)> = all[4..].chunks(8).map(|row| (row[0], row[3])).collect();
    assert!(codes.windows(2).all(|pair| pair[0] < pair[1]), "{codes:02x?}");
    for (opcode, action) in codes {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (opcode, action);
        assert!(opcode == 0x28 || !matches!(SpcCommand::parse(&cdb), Err(SpcError::OperationCode(_))));
    }
    let functions = unit.run(&[0xA3, 0x0D, 0x80, 0, 0, 0, 0, 0, 0, 16, 0, 0], &[]).data_in;
    assert_eq!((functions.len(), functions[0], functions[3]), (16, 0xD8, 12));
    assert_eq!(unit.run(&[0xA3, 0x0D, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0], &[]).data_in[..], [0xD8, 0, 0, 0]);
    assert_eq!(
        unit.sense(&[0xA3, 0x0D, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0], &[]).field,
        Some(FieldPointer::cdb(6))
    );
    assert_eq!(
        unit.sense(&[0xA3, 0x0C, 4, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[]).field,
        Some(FieldPointer::cdb(2))
    );
    assert_eq!(
        unit.sense(&[0xA3, 0x1E, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[]).field,
        Some(FieldPointer::cdb(1))
    );
}

#[test]
fn sense_data_has_the_format_of_the_device() {
    let mut unit = Small::new();
    assert_eq!(unit.run(&[0xFE; 16], &[]).sense[0], 0x70);
    unit.descriptor = true;
    assert_eq!(unit.run(&[0xFE; 16], &[]).sense[0], 0x72);
}

#[test]
fn absent_unit_answers_required_commands() {
    let inquiry = absent(&[0x12, 0, 0, 0, 36, 0], 255);
    assert_eq!((inquiry.data_in.len(), inquiry.data_in[0]), (36, 0x7F));
    assert_eq!(absent(&[0x12, 1, 0x80, 0, 36, 0], 255).status, Status::CheckCondition);
    let sense = absent(&[3, 0, 0, 0, 252, 0], 255).data_in;
    assert_eq!((sense[2], sense[12]), (5, 0x25));
    let other = absent(&[0; 6], 0);
    assert_eq!(Sense::parse(&other.sense).unwrap().code, additional::LOGICAL_UNIT_NOT_SUPPORTED);
}

proptest! {
    #[test]
    fn any_cdb_and_any_list_get_an_answer(
        opcode in proptest::sample::select(&[0_u8, 3, 0x12, 0x15, 0x1A, 0x55, 0x5A, 0xA0, 0xA3][..]),
        rest in proptest::collection::vec(any::<u8>(), 0..16),
        list in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let cdb = [&[opcode][..], &rest].concat();
        let reply = Small::new().run(&cdb, &list);
        prop_assert_eq!(reply.status == Status::CheckCondition, !reply.sense.is_empty());
        let _ = absent(&cdb, 255);
    }
}
