//! The demo is a newcomer's first contact: it must run, and every attack must fail as described.

use sealstone_tests::run;

/// Every attempt is refused with the expected sense code and audit record, and changes nothing.
#[test]
fn the_demo_stores_files_and_refuses_every_attack() {
    let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let report = run(&["--json", "demo", "--tree", tree, "--large", "6M"]).ok().json();
    let attacks = report["attacks"].as_array().expect("a list of attempts");
    assert!(attacks.len() >= 10, "{report}");
    for attack in attacks {
        assert_eq!(attack["as_expected"], true, "{attack}");
    }
    let functions = report["functions"].as_array().expect("a list of functions");
    let names: Vec<&str> = functions.iter().filter_map(|leg| leg["function"].as_str()).collect();
    assert_eq!(names, ["count", "grep"], "{report}");
    for leg in functions {
        assert_eq!((&leg["equal"], &leg["devices"]), (&true.into(), &3.into()), "{leg}");
        assert!(
            leg["result_bytes"].as_u64() < Some(64 << 10) && leg["bytes_read"].as_u64() >= Some(24 << 20)
        );
    }
    assert_eq!(report["large"]["bytes"], 6 << 20);
    assert!(report["tree"]["files"].as_u64() > Some(2), "{report}");
}
