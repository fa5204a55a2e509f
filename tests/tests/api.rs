//! The public Rust API as an external program uses it, against real daemons; includes the example.

use std::fs;

use sealstone_client::{Client, ClientError, GetOptions, Method, PutOptions};
use sealstone_tests::{System, text};

#[path = "../../client/client/examples/put_get.rs"]
#[allow(dead_code, reason = "its main is for the command line")]
mod put_get;

fn content(length: usize) -> Vec<u8> {
    (0..length as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

pub(crate) async fn connect(system: &System) -> Client {
    let secret = fs::read_to_string(system.path("mds").join("admin-secret")).expect("readable");
    let (address, pin) = (system.mds().field("address"), system.mds().field("pin"));
    let pin = pin.parse().expect("the server prints it as the client reads it");
    Client::connect(address, pin, "admin", secret.trim_end().as_bytes()).await.expect("the password is right")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_stores_and_reads_the_file() {
    let system = System::start(2);
    let local = system.path("local");
    fs::write(&local, content(3 << 20)).expect("written");
    let client = connect(&system).await;
    assert!(put_get::there_and_back(&client, text(&local), "/example").await.expect("no error"));
    // The command line sees the file that the program stored.
    assert!(system.run(&["cat", "/example"]).ok().stdout == content(3 << 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_stores_reads_names_and_logs_out() {
    let system = System::start(2);
    let client = connect(&system).await;
    client.mkdir("/a/b", true, 0o755).await.expect("made");
    let bytes = content(5_000_001);
    let options = PutOptions { size: Some(bytes.len() as u64), ..PutOptions::default() };
    let stat = client.put("/a/b/file", &bytes[..], options).await.expect("stored");
    assert_eq!((stat.size, stat.owner.as_str()), (bytes.len() as u64, "admin"));
    let exists = PutOptions { replace: false, ..PutOptions::default() };
    let refused = client.put("/a/b/file", &b"x"[..], exists).await;
    assert_eq!(refused.expect_err("it exists").exit_code(), 1);

    let file = client.open("/a/b/file", Method::AllData).await.expect("opened");
    let mut middle = vec![0; 70_000];
    assert_eq!(file.read_at(1_234_567, &mut middle).await.expect("read"), middle.len());
    assert!(middle == bytes[1_234_567..1_304_567]);
    assert!(file.read(4_999_990..u64::MAX).await.expect("read") == bytes[4_999_990..]);
    let mut part = Vec::new();
    let range = GetOptions { range: Some(100..200), ..GetOptions::default() };
    client.get("/a/b/file", &mut part, range).await.expect("read");
    assert!(part == bytes[100..200]);

    let names: Vec<_> = client.list("/a").expect("a path").collect().await.expect("listed");
    assert_eq!(names.iter().map(|entry| entry.name.shown()).collect::<Vec<_>>(), ["b"]);
    client.rename("/a/b/file", "/moved", false).await.expect("moved");
    assert!(client.stat("/a/b/file").await.expect_err("moved away").is_not_found());
    assert_eq!(client.remove("/a", true).await.expect("removed"), 2);
    assert_eq!(client.device_list().await.expect("listed").len(), 2);
    assert_eq!(client.disk_free().await.expect("told").active, 2);
    assert_eq!(client.whoami().await.expect("told").role, sealstone_client::Role::Admin);

    let other = client.clone();
    client.logout().await.expect("confirmed");
    assert!(matches!(other.whoami().await, Err(ClientError::SessionOver)));
    let wrong = Client::connect(
        system.mds().field("address"),
        system.mds().field("pin").parse().expect("a pin"),
        "admin",
        b"wrong",
    );
    assert!(matches!(wrong.await.map(drop), Err(ClientError::LoginRefused)));
}
