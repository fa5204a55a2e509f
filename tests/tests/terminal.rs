//! Output on a terminal and in pipes: progress bars, and logs as text or JSON.

use std::fs;
use std::process::{Command, Stdio};

use sealstone_tests::{CommandResult, Daemon, Signal, System, binary, command, run, text};
use serde_json::Value;

/// Runs a command line on a pseudo-terminal (util-linux's `script`) and returns the terminal's
/// output.
#[track_caller]
fn on_a_terminal(system: &System, line: &str) -> String {
    let line = line.replace("sealstone ", &format!("{} ", text(binary())));
    let output = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("SEALSTONE_SESSION", system.path("session.toml"))
        .env("SEALSTONE_LOG", "off")
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .expect("script is there (package bsdutils)");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn progress_is_shown_only_on_terminals() {
    let system = System::start(2);
    let source = system.path("source.bin");
    fs::write(&source, vec![5; 128 << 20]).expect("written");
    let (source, back) = (text(&source), system.path("back.bin"));
    let back = text(&back);
    for (line, label) in [
        (format!("sealstone put {source} /big"), "put big"),
        (format!("sealstone get /big {back}"), "get big"),
    ] {
        let said = on_a_terminal(&system, &line);
        assert!(said.contains(label), "a labelled bar: {said:?}");
        assert!(said.contains("MiB") && said.contains("[="), "bytes and a bar: {said:?}");
        let said = on_a_terminal(&system, &line.replace("sealstone ", "sealstone --quiet "));
        assert_eq!(said.trim(), "", "quiet is quiet");
    }
    // Without a terminal there is only the last line, and with --json only JSON.
    let piped = system.run(&["put", source, "/big"]).ok();
    assert!(
        piped.stderr.starts_with("stored 1 file, 128.0 MiB in ") && piped.stdout.is_empty(),
        "{}",
        piped.stderr
    );
    let json = system.run(&["--json", "put", source, "/big"]).ok();
    assert_eq!((json.stderr.as_str(), json.json()["bytes"].as_u64()), ("", Some(128 << 20)));
}

#[test]
fn logs_are_json_without_terminal() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("one");
    run(&["osd", "init", "--data", text(&data), "--capacity", "64M", "--name", "one"]).ok();
    for (format, json) in [("auto", true), ("json", true), ("text", false)] {
        let mut serve =
            command(&["--json", "osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"]);
        serve.args(["--insecure-nosec", "--log-format", format]).env("SEALSTONE_LOG", "info");
        let mut daemon = Daemon::start(serve);
        assert_eq!(daemon.end(Signal::Terminate), 0);
        let said = daemon.stderr();
        assert!(said.contains("--insecure-nosec"), "what is insecure is said: {said}");
        for line in said.lines() {
            let value = serde_json::from_str::<Value>(line);
            assert_eq!(value.is_ok(), json, "{format}: {line}");
            if let Ok(value) = value {
                assert!(value["level"].is_string() && value["timestamp"].is_string(), "{line}");
            }
        }
    }
}

/// A full standard error does not change the exit code, and a full standard output is an error, not
/// a panic.
#[test]
fn full_outputs_change_no_exit_code() {
    let system = System::start(1);
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let source = system.path("source");
    fs::write(&source, b"content").expect("written");
    let ended = |arguments: &[&str], stdout: bool, stderr: bool| {
        let mut command = system.command(arguments);
        if stdout {
            command.stdout(full());
        }
        if stderr {
            command.stderr(full());
        }
        CommandResult::from(command.output().expect("the binary starts"))
    };
    let put = ["put", text(&source), "/file"];
    assert_eq!(ended(&put, false, true).code, 0);
    assert_eq!(ended(&["cat", "/file"], false, true).stdout, b"content");
    assert_eq!(ended(&["cat", "/none"], false, true).code, 4);
    assert_eq!(ended(&["no-such-command"], false, true).code, 2);
    for arguments in [&["ls", "/"][..], &["--json", "df"], &["completion", "bash"], &["cat", "/file"]] {
        let ended = ended(arguments, true, false);
        assert_eq!(ended.code, 1, "{arguments:?}");
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    }
    for flag in ["--help", "--version"] {
        assert!(ended(&[flag], true, true).code != 101);
    }
}

/// A daemon whose log and ready line cannot be written serves, and ends cleanly.
#[test]
fn daemon_with_full_outputs_serves() {
    let mut system = System::start(1);
    system.end_osd(0, Signal::Terminate);
    let (data, listen) = (system.path("osd0"), system.osd_address(0).to_owned());
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let mut serve = command(&["osd", "serve", "--data", text(&data), "--listen", &listen]);
    let mut child =
        serve.env("SEALSTONE_LOG", "trace").stdout(full()).stderr(full()).spawn().expect("the binary starts");
    let source = system.path("source");
    fs::write(&source, b"content").expect("written");
    system.run(&["put", text(&source), "/file"]).ok();
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::HUP).expect("it runs");
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "in order");
}

/// Each signal that ends a daemon ends it cleanly, except for one that it was started to ignore.
#[test]
fn signals_end_daemons_in_order() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("one");
    run(&["osd", "init", "--data", text(&data), "--capacity", "64M", "--name", "one"]).ok();
    let serve = ["--json", "osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"];
    for signal in [Signal::HangUp, Signal::Quit, Signal::Terminate] {
        assert_eq!(Daemon::start(command(&serve)).end(signal), 0, "{signal:?}");
    }
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", text(binary())]).args(serve);
    nohup.env("SEALSTONE_LOG", "off");
    let mut daemon = Daemon::start(nohup);
    let id = rustix::process::Pid::from_raw(daemon.id().cast_signed()).expect("a process");
    rustix::process::kill_process(id, rustix::process::Signal::HUP).expect("it runs");
    assert!(daemon.survives(std::time::Duration::from_millis(300)));
    assert_eq!(daemon.end(Signal::Terminate), 0);
}

/// Tables of the program fit 80 columns; lines with foreign text may be longer.
#[test]
fn listings_fit_eighty_columns() {
    let system = System::start(3);
    let source = system.path("report-of-november.pdf");
    fs::write(&source, vec![7; 3 << 20]).expect("written");
    system.run(&["put", text(&source), "/"]).ok();
    for arguments in [&["ls", "-l", "/"][..], &["df"]] {
        let said = system.run(arguments).ok().text();
        assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
    }
    let said = on_a_terminal(&system, "stty cols 80; sealstone stat /report-of-november.pdf");
    assert!(said.lines().all(|line| line.trim_end().chars().count() <= 80), "{said}");
    assert!(said.contains("good when chosen"), "{said}");
}

#[test]
fn up_logs_no_info_on_a_terminal() {
    let system = System::start(0);
    let ready = system.path("ready");
    let line = format!(
        "sealstone up --data {} --listen localhost:0 --osds 1 --osd-port 0 --capacity 0.5GB > {ready} & pid=$!; \
         until grep -q ready {ready}; do sleep 0.05; done; kill $pid; wait $pid",
        text(&system.path("up")),
        ready = text(&ready),
    );
    let line = format!("unset SEALSTONE_LOG; {line}");
    let said = on_a_terminal(&system, &line);
    assert!(!said.contains("INFO"), "{said}");
}
