//! Third-party clients: Debian's libiscsi tools.

use std::process::Command;

use sealstone_tests::System;

/// Runs a tool of libiscsi. If it is not installed the test fails and says how to install it.
fn tool(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{name}: {error}: run scripts/setup --tests (package libiscsi-bin)"));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} {arguments:?}: {text}");
    text
}

/// Discovery finds the target, login works, and the logical unit reports that it is an OSD.
#[test]
fn libiscsi_discovers_logs_in_and_inquires() {
    let system = System::start(1);
    let address = system.osd(0).field("address").to_owned();
    let url = system.osd(0).field("url").to_owned();
    let listed = tool("iscsi-ls", &["-s", &format!("iscsi://{address}")]);
    assert!(listed.contains("iqn.2026-11.org.sealstone:osd.osd0"), "{listed}");
    let inquiry = tool("iscsi-inq", &[&url]);
    assert!(inquiry.contains("OSD") || inquiry.contains("OBJECT"), "peripheral device type 11h: {inquiry}");
    assert!(inquiry.to_uppercase().contains("SEALSTON"), "{inquiry}");
    for page in ["0x00", "0x80", "0x83"] {
        tool("iscsi-inq", &["-e", "1", "-c", page, &url]);
    }
}
