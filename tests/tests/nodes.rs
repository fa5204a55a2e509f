//! Links, file types, names of any bytes, and sizes that change in place, through the real binary
//! and real devices.

use std::fs;
use std::time::Duration;

use sealstone_client::{Client, GetOptions, Metadata as _, PutOptions};
use sealstone_mds_protocol::{
    ErrorCode, FilePath, Name, Node, NodeChange, NodeKind, Request, Response, Stat,
};
use sealstone_tests::System;

async fn connect(system: &System) -> Client {
    let secret = fs::read_to_string(system.path("mds").join("admin-secret")).expect("readable");
    let (address, pin) = (system.mds().field("address"), system.mds().field("pin"));
    let pin = pin.parse().expect("the server prints it as the client reads it");
    Client::connect(address, pin, "admin", secret.trim_end().as_bytes()).await.expect("the password is right")
}

#[test]
fn command_line_creates_and_shows_links() {
    let system = System::start(1);
    fs::write(system.path("local"), b"content").expect("written");
    let local = system.path("local");
    system.run(&["put", local.to_str().expect("text"), "/file"]).ok();
    system.run(&["mkdir", "/d"]).ok();
    system.run(&["ln", "/file", "/d"]).ok();
    system.run(&["ln", "-s", "../file", "/d/link"]).ok();
    system.run(&["ln", "-s", "/nowhere", "/dangling"]).ok();
    assert_eq!(system.run(&["cat", "/d/link"]).ok().text(), "content");
    let long = system.run(&["ls", "-l", "/d"]).ok().text();
    assert!(long.contains("link -> ../file") && long.contains("lrwxrwxrwx"), "{long}");
    assert!(long.lines().any(|line| line.starts_with("-rw-r--r-- 2 ") && line.ends_with(" file")), "{long}");
    let stat = system.run(&["stat", "/d/link"]).ok().text();
    assert!(stat.contains("symlink") && stat.contains("target  ../file"), "{stat}");
    let json = system.run(&["--json", "stat", "/file"]).ok().text();
    assert!(json.contains("\"links\":2") || json.contains("\"links\": 2"), "{json}");
    // Removing, moving and linking affects the link, not its target.
    system.run(&["mv", "/d/link", "/moved"]).ok();
    // The parent of the root is the root.
    assert_eq!(system.run(&["cat", "/moved"]).ok().text(), "content");
    system.run(&["rm", "/moved"]).ok();
    system.run(&["rm", "/file"]).ok();
    assert_eq!(system.run(&["cat", "/d/file"]).ok().text(), "content");
    system.run(&["cat", "/dangling"]).fails(4);
    system.run(&["ln", "/d", "/e"]).fails(3);
    system.run(&["ln", "/none", "/e"]).fails(4);
    system.run(&["ln", "-s", "x", "/dangling"]).fails(1);
}

async fn stat_of(client: &Client, request: Request) -> Stat {
    match client.metadata().call(request).await.expect("answered") {
        Response::Stat { stat } => stat,
        other => panic!("{other:?}"),
    }
}

/// Sets a size; waits while the server removes truncated bytes.
async fn resize(client: &Client, node: Node, size: u64) -> Stat {
    let change = NodeChange { size: Some(size), ..NodeChange::default() };
    for _ in 0..1_000 {
        match client
            .metadata()
            .call(Request::SetNode { node, change: change.clone(), client_id: None, through: false })
            .await
        {
            Ok(Response::Stat { stat }) => return stat,
            Ok(Response::Failed { failure }) if failure.code == ErrorCode::Busy => {}
            Err(error) if error.to_string().contains("busy") => {}
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the cut bytes were never removed")
}

async fn content(client: &Client, path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    client.get(path, &mut bytes, GetOptions::default()).await.expect("read");
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncated_bytes_are_erased_on_devices() {
    let system = System::start(2);
    let client = connect(&system).await;
    for bytes in [100_000usize, 3 << 20] {
        let old = vec![0xAB; bytes];
        let options = PutOptions { size: Some(bytes as u64), ..PutOptions::default() };
        let node = client.put("/file", &old[..], options).await.expect("stored").node();
        assert_eq!(resize(&client, node, 1_000).await.size, 1_000);
        assert!(content(&client, "/file").await == old[..1_000]);
        assert_eq!(resize(&client, node, bytes as u64).await.size, bytes as u64);
        let now = content(&client, "/file").await;
        assert!(
            now.len() == bytes && now[..1_000] == old[..1_000] && now[1_000..].iter().all(|byte| *byte == 0)
        );
        // Truncated to nothing, it has no objects, and can be extended to any length.
        assert_eq!(resize(&client, node, 0).await.width, 0);
        assert_eq!(resize(&client, node, 5_000).await.size, 5_000);
        assert!(content(&client, "/file").await == vec![0; 5_000]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn displayed_names_can_be_typed_with_escapes() {
    let system = System::start(1);
    let client = connect(&system).await;
    let name = Name::new(b"caf\xe9 \\ \n".to_vec()).expect("a name");
    let path = FilePath::root().join(&name).expect("short");
    let what = NodeKind::Fifo;
    let (parent, mode) = (Node::ROOT, 0o644);
    let make =
        Request::MakeNode { parent, name, what, mode, umask: 0, owner: None, group: None, client_id: None };
    stat_of(&client, make).await;
    let listed = system.run(&["ls", "/"]).ok().text();
    let shown = listed.trim_end_matches('\n');
    assert_eq!(shown, r"caf\xe9 \\ \x0a");
    let found = system.run(&["--escaped", "ls", "-l", &format!("/{shown}")]).ok().text();
    assert!(found.starts_with("prw-r--r--"), "{found}");
    assert_eq!(stat_of(&client, Request::Lstat { path }).await.links, 1);
    system.run(&["rm", &format!("/{shown}")]).fails(4);
    system.run(&["--escaped", "rm", &format!("/{shown}")]).ok();
    assert_eq!(system.run(&["ls", "/"]).ok().text(), "");
}
