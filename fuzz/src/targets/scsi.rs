//! `sealstone-scsi`: sense data, SPC commands, inquiry data.

use sealstone_scsi::spc::{self, SpcCommand, vpd};
use sealstone_scsi::{
    FieldPointer, Functions, OsdError, ResponseIcv, SENSE_MAX, Sense, SenseKey, additional,
};

use crate::Target;
use crate::input::array;

fn sense_seeds() -> Vec<Vec<u8>> {
    let plain = Sense::new(SenseKey::IllegalRequest, additional::INVALID_FIELD_IN_CDB);
    let osd = OsdError {
        not_initiated: Functions::ALL[0],
        completed: Functions::ALL[1],
        partition: 0x1_0000,
        object: 0x1_0001,
    };
    let full = Sense {
        deferred: true,
        information: Some(9),
        ..plain
            .clone()
            .with_field(FieldPointer { in_cdb: false, byte: 300, bit: Some(3) })
            .with_command_specific(77)
            .with_osd(osd)
            .with_response_icv(ResponseIcv::Long([5; 32]))
            .with_attribute(1, 2)
            .with_attribute(0xFFFF_FFFF, 3)
    };
    let short = plain.clone().with_response_icv(ResponseIcv::Short([5; 20]));
    let crowded = (0..40).fold(plain.clone(), |sense, number| sense.with_attribute(1, number));
    let all = [plain, full, short, crowded];
    all.iter().flat_map(|sense| [sense.encode(), sense.encode_fixed()]).collect()
}

fn sense(input: &[u8]) {
    let Ok(sense) = Sense::parse(input) else { return };
    let wire = sense.encode();
    assert!(wire.len() <= SENSE_MAX);
    let again = Sense::parse(&wire).expect("our own sense data");
    // Only trailing attributes in error are omitted when the buffer is short.
    assert!(sense.attributes.starts_with(&again.attributes));
    assert_eq!(Sense { attributes: sense.attributes.clone(), ..again }, sense);
    let fixed = Sense::parse(&sense.encode_fixed()).expect("our own sense data");
    assert_eq!((fixed.key, fixed.code, fixed.field), (sense.key, sense.code, sense.field));
    let _ = sense.to_string();
}

pub(crate) const SENSE: Target = Target {
    name: "scsi-sense",
    about: "sense data of both formats; what parses encodes within 252 bytes and parses the same",
    run: sense,
    seeds: sense_seeds,
    cost: 1,
    quarantine: None,
    covers: &["scsi::Sense::parse"],
};

fn spc_seeds() -> Vec<Vec<u8>> {
    let name = vpd::designation(vpd::DesignatorType::ScsiName, vpd::CodeSet::Utf8, b"iqn.x\0");
    let naa = vpd::designation(vpd::DesignatorType::Naa, vpd::CodeSet::Binary, &[5; 16]);
    vec![
        vec![0; 6],
        vec![0x12, 0, 0, 0, 96, 0],
        vec![0x12, 1, 0x83, 1, 0, 0],
        vec![0x03, 1, 0, 0, 252, 0],
        vec![0xA0, 0, 2, 0, 0, 0, 0, 0, 0x10, 0, 0, 0],
        vpd::page(spc::DEVICE_TYPE_OSD, vpd::IDENTIFICATION, &[name, naa].concat()),
        vpd::page(spc::DEVICE_TYPE_OSD, vpd::SECURITY_TOKEN, &[7; 32]),
        vec![0x40, 1, 0, 0, 0, 0, 0, 0],
    ]
}

fn spc_commands(input: &[u8]) {
    match SpcCommand::parse(input) {
        Ok(command) => drop((command.allocation(), command.ignores_unit_attention())),
        Err(error) => drop(error.sense().encode()),
    }
    for page in vpd::OSD_PAGES {
        if let Some(content) = vpd::content(page, input) {
            let rebuilt = vpd::page(input[0], page, content);
            assert!(input.starts_with(&rebuilt));
            let read: usize = vpd::designations(content).map(|(_, _, designator)| 4 + designator.len()).sum();
            assert!(read <= content.len());
        }
    }
    if let Some(lun) = spc::flat_lun(array(input)) {
        let number = u16::try_from(lun).expect("a flat number has 14 bits");
        let listed = spc::report_luns(&[number]);
        assert_eq!(spc::flat_lun(array(&listed[8..])), Some(lun));
    }
}

pub(crate) const SPC: Target = Target {
    name: "scsi-spc",
    about: "an SPC CDB, a vital product data page, a LUN field",
    run: spc_commands,
    seeds: spc_seeds,
    cost: 1,
    quarantine: None,
    covers: &[
        "scsi::SpcCommand::parse",
        "scsi::vpd::content",
        "scsi::vpd::designations",
        "scsi::spc::flat_lun",
    ],
};
