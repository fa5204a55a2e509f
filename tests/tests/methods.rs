//! The security method on the wire is what client, metadata server and device agree on, and never
//! below any of their floors.

use sealstone_tests::{CommandResult, System, get, run_with_input};

fn content() -> Vec<u8> {
    (0..1_300_000u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[track_caller]
fn there_and_back(system: &System, method: &str) {
    let path = format!("/{method}");
    let bytes = content();
    run_with_input(system.command(&["put", "--method", method, "-", &path]), &bytes).ok();
    assert!(system.run(&["cat", "--method", method, &path]).ok().stdout == bytes, "{method}");
    // A file stored under one method is read under another.
    assert!(system.run(&["cat", &path]).ok().stdout == bytes, "{method}");
}

/// Inside TLS CAPKEY signs the channel's token; a device accepts it there if configured to, and
/// only there.
#[test]
fn clients_use_chantok_inside_tls() {
    let system =
        System::start_with_mds(2, "1G", &["--method-floor", "capkey"], &["--method-floor", "capkey"]);
    assert!(system.osd(0).ready()["pin"].is_string(), "clients speak TLS");
    there_and_back(&system, "capkey");
    let put = ["put", "--method", "capkey", "--device-tls", "off", "-", "/plain"];
    run_with_input(system.command(&put), b"plain").fails(3).says(&["access denied"]);
    // The metadata server's floor still applies.
    there_and_back(&system, "nosec");
}

/// A system in which all parts accept weak methods, even without TLS.
#[test]
fn clients_use_capkey_with_the_insecure_flag() {
    let flags = ["--tls", "off", "--insecure-capkey"];
    let system = System::start_with_mds(2, "1G", &flags, &["--method-floor", "capkey"]);
    assert!(system.osd(0).ready()["pin"].is_null());
    there_and_back(&system, "capkey");
    there_and_back(&system, "cmdrsp");
    // The metadata server's floor still applies.
    there_and_back(&system, "nosec");
}

#[test]
fn with_insecure_nosec_a_client_works_unprotected() {
    let system = System::start_with_mds(1, "1G", &["--insecure-nosec"], &["--method-floor", "nosec"]);
    for method in ["nosec", "capkey", "cmdrsp", "alldata"] {
        there_and_back(&system, method);
    }
}

/// A device refuses methods below its own floor, whatever credentials the metadata server issues.
#[test]
fn a_device_has_a_floor_of_its_own() {
    let system = System::start_with_mds(1, "1G", &["--metrics", "127.0.0.1:0"], &["--method-floor", "nosec"]);
    there_and_back(&system, "cmdrsp");
    for (method, tls) in [("nosec", "off"), ("nosec", "required"), ("capkey", "off"), ("capkey", "required")]
    {
        let weak = ["--device-tls", tls];
        let put = [&["put", "--method", method, "-", "/weak"], &weak[..]].concat();
        let put: CommandResult = run_with_input(system.command(&put), b"weak");
        put.fails(3).says(&["access denied"]);
        let cat = [&["cat", "--method", method, "/cmdrsp"], &weak[..]].concat();
        system.run(&cat).fails(3).says(&["access denied"]);
        system.run(&["stat", "/weak"]).fails(4);
    }
    let page = get(system.osd(0).field("metrics"), "/metrics").1;
    assert!(page.contains("sealstone_osd_denials_total{"), "refusals are counted: {page}");
}

/// A device's floor applies even if its partitions were created with a weaker one.
#[test]
fn device_may_require_a_stronger_method() {
    let system = System::start_with_mds(1, "1G", &["--method-floor", "alldata"], &[]);
    there_and_back(&system, "alldata");
    run_with_input(system.command(&["put", "--method", "cmdrsp", "-", "/weak"]), b"weak")
        .fails(3)
        .says(&["access denied"]);
    let wrong = sealstone_tests::run(&["osd", "serve", "--data", "nowhere", "--method-floor", "nosec"]);
    assert_eq!(wrong.code, 2, "{}", wrong.stderr);
    assert!(wrong.stderr.contains("--insecure-nosec"), "{}", wrong.stderr);
}

/// An operator may require more than clients do.
#[test]
fn a_floor_of_alldata_raises_every_request() {
    let system = System::start_with_mds(1, "1G", &[], &["--method-floor", "alldata"]);
    for method in ["nosec", "cmdrsp", "alldata"] {
        there_and_back(&system, method);
    }
    let wrong = sealstone_tests::run(&["mds", "serve", "--data", "nowhere", "--method-floor", "rot13"]);
    assert_eq!(wrong.code, 2, "{}", wrong.stderr);
    assert!(wrong.stderr.contains("rot13") && wrong.stderr.contains("cmdrsp"), "{}", wrong.stderr);
}

/// Methods of the paper that were broken by attacks need a flag, and beyond loopback a second one.
#[test]
fn broken_algorithms_are_served_on_loopback_only() {
    let refused = sealstone_tests::run(&[
        "osd",
        "serve",
        "--data",
        "nowhere",
        "--insecure-adhash",
        "--listen",
        "0.0.0.0:0",
    ]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("--i-accept-insecure"), "{}", refused.stderr);
    let gauge = |system: &System| {
        let page = get(system.osd(0).field("metrics"), "/metrics").1;
        let line = page.lines().find(|line| line.starts_with("sealstone_osd_insecure_profile{")).unwrap();
        assert!(line.contains("mechanism=\"adhash\""), "{line}");
        line.ends_with(" 1")
    };
    let metrics = ["--metrics", "127.0.0.1:0"];
    assert!(!gauge(&System::start_with_mds(1, "1G", &metrics, &[])));
    let with = [&metrics[..], &["--insecure-adhash"]].concat();
    assert!(gauge(&System::start_with_mds(1, "1G", &with, &[])));
}
