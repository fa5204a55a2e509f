//! Embedded clusters as a program sees them.

use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use sealstone_client::{Client, ClientError, GetOptions, PutOptions};
use sealstone_cluster::{AdminLogin, Cluster, ClusterConfig};
use sealstone_daemon::Shutdown;
use sealstone_embed::{EmbeddedCluster, Failure, FailureKind};

async fn put(client: &Client, text: &str) {
    client.put("/name", text.as_bytes(), PutOptions::default()).await.expect("stored");
}

async fn get(client: &Client) -> String {
    let mut bytes = Vec::new();
    client.get("/name", &mut bytes, GetOptions::default()).await.expect("read");
    String::from_utf8(bytes).expect("text")
}

async fn start_in(folder: &Path) -> Result<EmbeddedCluster, Failure> {
    EmbeddedCluster::builder().folder(folder).start().await
}

fn addresses(cluster: &EmbeddedCluster) -> Vec<SocketAddr> {
    let endpoints = cluster.endpoints();
    let devices = endpoints.devices.iter().map(|device| device.address);
    [endpoints.metadata_server].into_iter().chain(devices).collect()
}

#[tokio::test]
async fn two_clusters_share_nothing() {
    let start = async || EmbeddedCluster::builder().devices(2).start().await.expect("started");
    let (first, second) = (start().await, start().await);
    let clients = (first.client().await.expect("client"), second.client().await.expect("client"));
    put(&clients.0, "first").await;
    put(&clients.1, "second").await;
    assert_eq!((get(&clients.0).await.as_str(), get(&clients.1).await.as_str()), ("first", "second"));
    first.stop().await.expect("stopped");
    assert_eq!(get(&second.client().await.expect("client")).await, "second");
}

#[tokio::test]
async fn clients_must_prove_their_identity() {
    let cluster = EmbeddedCluster::builder().start().await.expect("started");
    let endpoints = cluster.endpoints();
    let address = endpoints.metadata_server.to_string();
    let refused = Client::connect(&address, endpoints.pin, "admin", b"guess").await;
    assert!(matches!(refused, Err(ClientError::LoginRefused)));
    let other = EmbeddedCluster::builder().start().await.expect("started");
    let confused = Client::connect(&address, other.endpoints().pin, "admin", b"guess").await;
    assert!(matches!(confused, Err(ClientError::WrongCertificate(_))));
}

#[tokio::test]
async fn restart_in_folder_keeps_data() {
    let parent = tempfile::tempdir().expect("temporary folder");
    let folder = parent.path().join("cluster");
    let start = async |devices| EmbeddedCluster::builder().folder(&folder).devices(devices).start().await;
    let cluster = start(2).await.expect("started");
    put(&cluster.client().await.expect("client"), "kept").await;
    let devices = cluster.endpoints().devices.clone();
    cluster.stop().await.expect("stopped");
    let other_number = start(3).await.err().expect("another number of devices");
    assert_eq!(other_number.kind, FailureKind::Usage);
    for devices_wanted in [Some(2), None] {
        let cluster = match devices_wanted {
            Some(wanted) => start(wanted).await,
            None => start_in(&folder).await,
        };
        let cluster = cluster.expect("started");
        assert_eq!(cluster.endpoints().devices, devices);
        assert_eq!(get(&cluster.client().await.expect("client")).await, "kept");
        cluster.stop().await.expect("stopped");
    }
}

/// A cluster of `sealstone up`, whose administrator has a password.
#[tokio::test]
async fn cluster_with_password_starts() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let config = ClusterConfig {
        data: folder.path().to_owned(),
        osds: Some(1),
        listen: "127.0.0.1:0".to_owned(),
        osd_port: None,
        capacity: 1 << 30,
        admin: AdminLogin::Password,
        drain_s_max: None,
    };
    let (_stop, shutdown) = Shutdown::manual();
    let cluster = Cluster::start(&config, &shutdown, &|_| {}).await.expect("started");
    put(&cluster.admin_client().await.expect("client"), "kept").await;
    cluster.shutdown().await.expect("stopped");
    let cluster = start_in(folder.path()).await.expect("started");
    assert_eq!(get(&cluster.client().await.expect("client")).await, "kept");
}

/// Administrators who changed their password delete its file.
#[tokio::test]
async fn cluster_without_admin_secret_starts() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let cluster = start_in(folder.path()).await.expect("started");
    let secret = cluster.endpoints().admin_secret.clone();
    cluster.stop().await.expect("stopped");
    fs::remove_file(&secret).expect("removed");
    let cluster = start_in(folder.path()).await.expect("started");
    let refused = cluster.client().await.err().expect("no secret");
    assert_eq!(refused.kind, FailureKind::NotFound);
    assert!(refused.message.contains(&*secret.to_string_lossy()), "{refused}");
}

/// The client has open connections, and its runtime has one thread, which the drop blocks.
#[tokio::test]
async fn drop_frees_ports_and_memory() {
    let cluster = EmbeddedCluster::builder().devices(2).start().await.expect("started");
    let client = cluster.client().await.expect("client");
    put(&client, "lost").await;
    let (addresses, folder) = (addresses(&cluster), cluster.folder().to_owned());
    assert!(folder.starts_with("/dev/shm") && folder.exists());
    drop(cluster);
    for address in addresses {
        assert!(TcpStream::connect(address).is_err(), "{address} accepts connections");
        TcpListener::bind(address).expect("free port");
    }
    assert!(!folder.parent().expect("parent").exists());
    drop(client);
}

#[tokio::test]
async fn dropped_start_stops_the_cluster() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let started = tokio::time::timeout(Duration::from_millis(1), start_in(folder.path())).await;
    drop(started);
    let cluster = start_in(folder.path()).await.expect("the folder is free");
    put(&cluster.client().await.expect("client"), "stored").await;
}

#[tokio::test]
async fn folder_in_use_is_refused() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let cluster = start_in(folder.path()).await.expect("started");
    let refused = start_in(folder.path()).await.err().expect("in use");
    assert_eq!(refused.kind, FailureKind::Operation);
    assert!(refused.message.contains("another cluster runs in this folder"), "{refused}");
    put(&cluster.client().await.expect("client"), "still served").await;
}

#[tokio::test]
async fn foreign_folder_stays_untouched() {
    let folder = tempfile::tempdir().expect("temporary folder");
    fs::write(folder.path().join("letter.txt"), b"mine").expect("written");
    let refused = start_in(folder.path()).await.err().expect("not a cluster");
    assert_eq!(refused.kind, FailureKind::Operation);
    assert!(refused.message.contains("not a folder of a cluster"), "{refused}");
    let names: Vec<_> =
        fs::read_dir(folder.path()).expect("folder").flatten().map(|e| e.file_name()).collect();
    assert_eq!(names, ["letter.txt"]);
}

#[tokio::test]
async fn unusable_folders_are_refused() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("file");
    fs::write(&file, b"").expect("written");
    let open = folder.path().join("open");
    fs::create_dir(&open).expect("folder");
    fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("mode");
    let below = file.join("below");
    for (path, kind) in [
        // Root cannot create folders there either.
        (Path::new("/sys/sealstone"), FailureKind::Denied),
        (open.as_path(), FailureKind::Denied),
        (file.as_path(), FailureKind::Denied),
        (below.as_path(), FailureKind::Operation),
    ] {
        let refused = start_in(path).await.err().expect("unusable");
        assert_eq!(refused.kind, kind, "{refused}");
        assert!(refused.message.contains(&*path.to_string_lossy()), "{refused}");
    }
}

#[tokio::test]
async fn number_of_devices_is_limited() {
    for devices in [0, sealstone_embed::DEVICES_MAX as usize + 1, 10_000, usize::MAX] {
        let refused = EmbeddedCluster::builder().devices(devices).start().await.err().expect("refused");
        assert_eq!(refused.kind, FailureKind::Usage);
        assert!(refused.message.contains("1 to 64 devices"), "{refused}");
    }
}

#[tokio::test]
async fn too_small_capacity_is_refused() {
    let refused = EmbeddedCluster::builder().capacity(0).start().await.err().expect("refused");
    assert!(refused.message.contains("capacity"), "{refused}");
}
