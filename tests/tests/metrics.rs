//! Monitoring: both pages are valid Prometheus text and have the documented families.

use std::collections::{BTreeMap, BTreeSet};

use sealstone_tests::{Daemon, Signal, System, command, get, run_with_input, text};

/// Parses families and samples, with the checks of `promtool check metrics`.
#[track_caller]
fn families(page: &str) -> BTreeMap<String, Vec<(String, u64)>> {
    let mut families = BTreeMap::new();
    let mut samples_seen = BTreeSet::new();
    let mut current = String::new();
    let mut announced = None;
    assert!(page.ends_with('\n'), "the last line ends");
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("HELP NAME TEXT");
            assert!(help.ends_with('.') && help.len() > 3, "{line}");
            announced = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("TYPE NAME KIND");
            assert_eq!(announced.take().as_deref(), Some(name), "HELP stands before TYPE");
            assert!(matches!(kind, "counter" | "gauge"), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "the name tells the kind: {line}");
            assert!(families.insert(name.to_owned(), Vec::new()).is_none(), "{name} appears twice");
            name.clone_into(&mut current);
        } else {
            let (sample, value) = line.rsplit_once(' ').expect("SAMPLE VALUE");
            let name = sample.split('{').next().expect("a name");
            assert_eq!(name, current, "samples stand under their family");
            assert!(samples_seen.insert(sample.to_owned()), "{sample} appears twice");
            // Seconds have a fraction, which no test needs.
            let value: f64 = value.parse().expect("a number");
            families.get_mut(name).expect("announced").push((sample.to_owned(), value as u64));
        }
    }
    families
}

#[track_caller]
fn sum(families: &BTreeMap<String, Vec<(String, u64)>>, name: &str) -> u64 {
    let samples = families.get(name).unwrap_or_else(|| panic!("no family {name}"));
    samples.iter().map(|(_, value)| value).sum()
}

#[test]
fn separate_daemons_have_their_metrics() {
    let flags = ["--metrics", "127.0.0.1:0"];
    let system = System::start_with_mds(1, "2G", &flags, &flags);
    let content = vec![7; 3 << 20];
    run_with_input(system.command(&["put", "-", "/x"]), &content).ok();
    assert!(system.run(&["cat", "/x"]).ok().stdout == content);
    for daemon in [system.mds(), system.osd(0)] {
        assert_eq!(get(daemon.field("metrics"), "/healthz"), (200, "ok\n".to_owned()));
        assert_eq!(get(daemon.field("metrics"), "/elsewhere").0, 404);
    }
    let (status, page) = get(system.osd(0).field("metrics"), "/metrics");
    assert_eq!(status, 200);
    let osd = families(&page);
    assert!(sum(&osd, "sealstone_osd_commands_total") > 3, "{page}");
    assert!(sum(&osd, "sealstone_osd_data_out_bytes_total") >= 3 << 20, "{page}");
    assert!(sum(&osd, "sealstone_osd_data_in_bytes_total") >= 3 << 20, "{page}");
    assert_eq!(sum(&osd, "sealstone_osd_denials_total"), 0, "{page}");
    assert!(sum(&osd, "sealstone_osd_used_bytes") >= 3 << 20, "{page}");
    assert!(sum(&osd, "sealstone_osd_capacity_bytes") > 1 << 30, "{page}");
    assert!(sum(&osd, "sealstone_osd_audit_records_total") > 0, "{page}");
    assert!(sum(&osd, "sealstone_iscsi_connections_accepted_total") > 0, "{page}");
    assert_eq!(sum(&osd, "sealstone_iscsi_commands_panicked_total"), 0, "{page}");

    let (status, page) = get(system.mds().field("metrics"), "/metrics");
    assert_eq!(status, 200);
    let mds = families(&page);
    assert!(sum(&mds, "sealstone_mds_requests_total") > 3, "{page}");
    assert_eq!(sum(&mds, "sealstone_mds_logins_total"), 1, "{page}");
    assert!(sum(&mds, "sealstone_mds_grants_total") > 0, "{page}");
    assert_eq!(sum(&mds, "sealstone_mds_protocol_violations_total"), 0, "{page}");
    assert!(sum(&mds, "sealstone_mds_connections_accepted_total") > 1, "{page}");
}

#[test]
fn metrics_page_lists_all_devices() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("system");
    let mut up = Daemon::start(command(&[
        "--json",
        "up",
        "--data",
        text(&data),
        "--osds",
        "3",
        "--capacity",
        "64M",
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        "127.0.0.1:0",
    ]));
    let address = up.field("metrics").to_owned();
    assert_eq!(get(&address, "/healthz"), (200, "ok\n".to_owned()));
    let found = families(&get(&address, "/metrics").1);
    assert_eq!(found["sealstone_osd_capacity_bytes"].len(), 3);
    assert_eq!(found["sealstone_iscsi_connections_open"].len(), 3);
    assert!(found.contains_key("sealstone_mds_requests_total"));
    assert_eq!(up.end(Signal::Terminate), 0);
}

/// A recursive removal visits each key a few times, independent of the number of names.
#[test]
fn recursive_removal_visits_linear_keys() {
    const DIRECTORIES: u64 = 1500;
    let flags = ["--metrics", "127.0.0.1:0"];
    let system = System::start_with_mds(1, "1G", &[], &flags);
    system.run(&["mkdir", "/t"]).ok();
    for part in 0..DIRECTORIES / 500 {
        let names: Vec<String> = (0..500).map(|name| format!("/t/d{}", part * 500 + name)).collect();
        let arguments: Vec<&str> = std::iter::once("mkdir").chain(names.iter().map(String::as_str)).collect();
        system.run(&arguments).ok();
    }
    let visited = || {
        let (_, page) = get(system.mds().field("metrics"), "/metrics");
        sum(&families(&page), "sealstone_mds_store_keys_visited_total")
    };
    let before = visited();
    system.run(&["rm", "-r", "/t"]).ok();
    let visited = visited() - before;
    assert!(visited < 40 * DIRECTORIES, "{visited} keys for {DIRECTORIES} names");
}
