//! CAPKEY: the capability is authenticated with the security token of the nexus, and nothing else
//! is protected. Only devices in insecure mode accept it without TLS.

use crate::world::faults::Fault;
use crate::world::{World, content};
use sealstone_client::{ClientError, GetOptions, Method, OsdError, PutOptions, Tuning};
use sealstone_osd_device::OsdConfig;

const INSECURE: OsdConfig = OsdConfig {
    allow_osd1: false,
    insecure_nosec: false,
    insecure_capkey: true,
    method_floor: None,
    insecure_adhash: false,
    method_cipher: None,
    sealed_only: false,
    paper_functions: false,
    audit_reads: false,
    write_through: false,
};

fn weak() -> sealstone_mds::Config {
    sealstone_mds::Config { method_floor: Method::NoSec, ..Default::default() }
}

fn tuning() -> Tuning {
    Tuning { memory_bytes: 2 << 20, command_bytes: 64 << 10, depth: 3 }
}

async fn put(
    client: &crate::world::TestClient,
    path: &str,
    bytes: &[u8],
    method: Method,
) -> Result<(), ClientError> {
    client.put(path, bytes, PutOptions { method, ..PutOptions::default() }).await.map(drop)
}

async fn get(client: &crate::world::TestClient, path: &str, method: Method) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::new();
    client.get(path, &mut bytes, GetOptions { method, ..GetOptions::default() }).await?;
    Ok(bytes)
}

#[tokio::test(start_paused = true)]
async fn files_travel_under_capkey_beside_other_methods() {
    let world = World::of(2, weak(), INSECURE).await;
    let client = world.client(tuning()).await;
    for length in [0, 1, 70_000, 3 << 20] {
        let bytes = content(length);
        for (method, other) in [(Method::CapKey, Method::AllData), (Method::CmdRsp, Method::CapKey)] {
            let path = format!("/{length}-{}", method.name());
            put(&client, &path, &bytes, method).await.unwrap();
            assert!(get(&client, &path, method).await.unwrap() == bytes, "{path}");
            assert!(get(&client, &path, other).await.unwrap() == bytes, "{path} under {}", other.name());
        }
    }
}

/// Each nexus has its own token: what was signed for the lost one is refused on the next.
#[tokio::test(start_paused = true)]
async fn transfer_continues_with_token_of_new_nexus() {
    let world = World::of(1, weak(), INSECURE).await;
    let (one, other) = (world.osd(0), world.osd(0));
    let token = one.security_token().await.unwrap().unwrap();
    assert_ne!(other.security_token().await.unwrap().unwrap().0, token.0);
    one.close().await;
    assert_ne!(one.security_token().await.unwrap().unwrap().0, token.0);

    let bytes = content(3 << 20);
    for fault in [Fault::CutWrites(400_000), Fault::CutReads(2_000)] {
        let client = world.client(tuning()).await;
        world.faults.next([Some(fault)]);
        let path = format!("/cut-{fault:?}");
        put(&client, &path, &bytes, Method::CapKey).await.unwrap();
        assert!(get(&client, &path, Method::CapKey).await.unwrap() == bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn device_without_permission_refuses_capkey() {
    let world = World::with(1, weak()).await;
    let client = world.client(tuning()).await;
    for method in [Method::CapKey, Method::NoSec] {
        let refused = put(&client, "/x", b"x", method).await;
        let denied = |error: &ClientError| {
            matches!(error, ClientError::Device { error: OsdError::AccessDenied { .. }, .. })
        };
        assert!(refused.as_ref().is_err_and(denied), "{refused:?}");
    }
    put(&client, "/x", b"x", Method::CmdRsp).await.unwrap();
    assert!(get(&client, "/x", Method::CapKey).await.is_err());
    assert_eq!(get(&client, "/x", Method::CmdRsp).await.unwrap(), b"x");
}

/// Corruption that CAPKEY does not detect is found by the file's checksum.
#[tokio::test(start_paused = true)]
async fn capkey_relies_on_file_checksum() {
    let world = World::of(1, weak(), INSECURE).await;
    put(&world.client(tuning()).await, "/file", &content(400_000), Method::AllData).await.unwrap();
    let client = world.client(tuning()).await;
    world.faults.next([Some(Fault::FlipRead(200_000))]);
    let got = get(&client, "/file", Method::CapKey).await;
    assert!(matches!(got, Err(ClientError::ChecksumMismatch)), "{got:?}");
}
