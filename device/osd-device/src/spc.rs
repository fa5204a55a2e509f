//! Data of an OSD for the SPC commands that every logical unit supports.
//!
//! Does: identity, VPD pages, command list.
//! Does not: access objects, or run the shared commands, which `sealstone_scsi::primary` does.
//! Truth: SPC-4; docs/design/t10-osd.md 6.2, 6.3.

use std::sync::LazyLock;

use sealstone_osd::cdb::OPERATION_CODE;
use sealstone_osd::table::SERVICE_ACTIONS;
use sealstone_scsi::lu::NexusId;
use sealstone_scsi::primary::DeviceServer;
use sealstone_scsi::spc::mode::{self, ModeHeader, ModePage, NewPage};
use sealstone_scsi::spc::supported::CommandRow;
use sealstone_scsi::spc::{self, DEVICE_TYPE_OSD, Identity, version, vpd};
use sealstone_scsi::{AdditionalSense, Sense, SenseKey, additional};

use crate::commands;
use crate::device::OsdDevice;
use crate::failure::OsdFailure;
use crate::nexus::OsdNexus;
use crate::report::OsdRefusal;

/// Relative identifier of the target port.
const TARGET_PORT: u16 = 1;
/// Length of a CDB in both generations.
const CDB_OSD1: u16 = 200;
const CDB_OSD2: u16 = 236;
/// Supported bits in bytes 1 to 10 of an OSD CDB: CONTROL, ADDITIONAL CDB LENGTH, options. All bits
/// from byte 11 on are supported.
const USAGE: &[u8] = &[0x84, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0x1F];

/// The device as one nexus accesses it.
pub(crate) struct OsdServer<'a> {
    pub(crate) device: &'a OsdDevice,
    pub(crate) nexus: &'a OsdNexus,
}

/// Implemented service actions, one row per code.
static OSD_2: LazyLock<Vec<CommandRow>> = LazyLock::new(|| rows(false));
/// As above, with the codes of OSD-1.
static BOTH: LazyLock<Vec<CommandRow>> = LazyLock::new(|| rows(true));

fn rows(osd1: bool) -> Vec<CommandRow> {
    let row = |code: Option<u16>, length| {
        code.map(|code| CommandRow::new(OPERATION_CODE, length, USAGE).action(code))
    };
    let rows = SERVICE_ACTIONS.iter().filter(|row| commands::row(row.action).is_some());
    rows.flat_map(|action| [row(action.osd1.filter(|_| osd1), CDB_OSD1), row(action.osd2, CDB_OSD2)])
        .flatten()
        .collect()
}

impl OsdServer<'_> {
    /// Returns the OSD SYSTEM ID, which is a designation descriptor itself (OSD-2), then the names
    /// that SPC-4 §7.8.5 and RFC 7143 require: NAA and T10 vendor of the logical unit, its target
    /// port, its target.
    fn identification(&self) -> Vec<u8> {
        let mut content = self.device.system_id.to_vec();
        let unique = &self.device.system_id[8..];
        content.extend(vpd::local_naa(unique.first_chunk().expect("12 bytes")));
        content.extend(vpd::vendor_designation(&self.device.serial_number()));
        if let Some(target) = self.device.target.get() {
            content.extend(vpd::iscsi_designations(target, TARGET_PORT));
        }
        content
    }
}

impl DeviceServer for OsdServer<'_> {
    fn identity(&self) -> Identity<'_> {
        Identity {
            device_type: DEVICE_TYPE_OSD,
            vendor: spc::VENDOR,
            product: "SEALSTONE OSD",
            revision: "0001",
            versions: &[version::OSD, version::OSD_2, version::ISCSI, version::SPC_3],
            removable: false,
        }
    }

    fn pages(&self) -> &[u8] {
        if self.device.concealment.is_on() { &vpd::OSD_CIPHER_PAGES } else { &vpd::OSD_PAGES }
    }

    fn page(&self, _: NexusId, page: u8) -> Option<Vec<u8>> {
        match page {
            vpd::SERIAL => Some(self.device.serial_number().as_bytes().to_vec()),
            vpd::IDENTIFICATION => Some(self.identification()),
            // No source defines its contents.
            vpd::OSD_INFORMATION => Some(Vec::new()),
            vpd::METHOD_CIPHER => self.device.concealment.public(),
            vpd::SECURITY_TOKEN => Some(self.nexus.token().to_vec()),
            _ => None,
        }
    }

    fn commands(&self) -> &[CommandRow] {
        if self.device.config.allow_osd1 { &BOTH } else { &OSD_2 }
    }

    fn ready(&self) -> Result<(), Sense> {
        let failure = if self.device.is_formatting() {
            OsdFailure::Formatting
        } else if let Err(behind) = self.device.time() {
            behind.into()
        } else {
            return Ok(());
        };
        let sense = OsdRefusal::Failed(failure).sense(sealstone_osd::Generation::Osd2);
        Err(sense.unwrap_or_else(|| Sense::new(SenseKey::NotReady, additional::LOGICAL_UNIT_NOT_READY)))
    }

    fn unit_attention(&self, _: NexusId, take: bool) -> Option<AdditionalSense> {
        if take { self.nexus.take_attention() } else { self.nexus.first_attention() }
    }

    fn luns_reported(&self, _: NexusId) {
        self.nexus.luns_reported();
    }

    fn descriptor_sense(&self) -> bool {
        true
    }

    fn mode_header(&self) -> ModeHeader {
        ModeHeader::default()
    }

    fn mode_pages(&self) -> Vec<ModePage> {
        vec![mode::control_page(true)]
    }

    /// Never called with a page, because nothing is changeable.
    fn mode_select(&self, _: NexusId, _: &[NewPage], _: bool) -> Result<(), Sense> {
        Ok(())
    }
}
