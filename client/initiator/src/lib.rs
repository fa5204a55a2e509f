//! iSCSI and OSD sessions to devices.
