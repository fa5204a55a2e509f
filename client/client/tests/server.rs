//! The connection to the metadata server: login, resumption, lost answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::world::{ToMds, World, connect, login};
use sealstone_client::{
    Client, ClientError, MdsClient, MdsOptions, Metadata, ServiceKey, SessionTicket, Tuning,
};
use sealstone_mds_protocol::{FilePath, Name, Request, Response, Role};

fn mkdir(path: &str) -> Request {
    Request::MakeDir { path: FilePath::new(path).unwrap(), parents: false, mode: 0o755 }
}

#[tokio::test(start_paused = true)]
async fn a_session_lives_on_over_connections_until_logout() {
    let world = World::new(0).await;
    let first = connect(&world).await.unwrap();
    first.call(mkdir("/a")).await.unwrap();
    let ticket = first.ticket().clone();
    drop(first);
    let dial = Arc::new(ToMds::of(&world));
    let second =
        MdsClient::resume(dial.clone(), world.client_clock.clone(), MdsOptions::default(), ticket.clone());
    assert!(matches!(second.call(Request::WhoAmI {}).await, Ok(Response::WhoAmI { .. })));
    second.logout().await.unwrap();
    let third = MdsClient::resume(dial, world.client_clock.clone(), MdsOptions::default(), ticket);
    assert!(matches!(third.call(Request::WhoAmI {}).await, Err(ClientError::SessionOver)));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_password_is_refused() {
    let world = World::new(0).await;
    assert!(matches!(login(&world, b"wrong").await, Err(ClientError::LoginRefused)));
}

#[tokio::test(start_paused = true)]
async fn reads_are_repeated_and_changes_are_not() {
    let world = World::new(0).await;
    let ticket = connect(&world).await.unwrap().ticket().clone();
    let dial = Arc::new(ToMds::of(&world));
    let mds = MdsClient::resume(dial.clone(), world.client_clock.clone(), MdsOptions::default(), ticket);
    dial.break_after.store(1, Ordering::Relaxed);
    assert!(matches!(mds.call(Request::WhoAmI {}).await, Ok(Response::WhoAmI { .. })));
    dial.break_after.store(1, Ordering::Relaxed);
    let lost = mds.call(mkdir("/once")).await;
    assert!(matches!(lost, Err(ClientError::OutcomeUnknown { request: "MakeDir" })), "{lost:?}");
    // It was executed once.
    let listed = mds.call(Request::ReadDir { path: FilePath::root(), after: None, limit: 9 }).await.unwrap();
    let Response::Directory { entries, .. } = listed else { panic!("{listed:?}") };
    assert_eq!(entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>(), [Name::new("once").unwrap()]);
}

#[tokio::test(start_paused = true)]
async fn many_requests_share_one_connection() {
    let world = World::new(0).await;
    let mds = Arc::new(connect(&world).await.unwrap());
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let mds = mds.clone();
        calls.spawn(async move { mds.call(Request::WhoAmI {}).await.map(drop) });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap().unwrap();
    }
    assert_eq!(world.answered.load(Ordering::Relaxed), 200);
}

#[tokio::test(start_paused = true)]
async fn service_key_logs_in_again_after_session_end() {
    let world = World::new(0).await;
    let admin = connect(&world).await.unwrap();
    let admins = admin.ticket().clone();
    let client = Client::over_iscsi(admin, world.client_clock.clone(), Tuning::default());
    let key = client.add_service("mounter", Role::User).await.unwrap();
    let text = key.to_text();
    let digits = text.split("secret = \"").nth(1).unwrap().split('"').next().unwrap();
    let secret: Vec<u8> =
        (0..32).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect();
    let (dial, clock) = (Arc::new(ToMds::of(&world)), world.client_clock.clone());
    let options = MdsOptions { suite: key.suite, ..MdsOptions::default() };
    let first = MdsClient::login(dial.clone(), clock.clone(), options, &key.user, &secret).await.unwrap();
    let resumed = |ticket: &SessionTicket| {
        MdsClient::resume(dial.clone(), clock.clone(), MdsOptions::default(), ticket.clone())
    };
    let key = || ServiceKey::from_text(&text).unwrap();
    let mds = resumed(first.ticket()).renewing(key()).unwrap();
    let here = async |mds: &MdsClient| mds.call(Request::WhoAmI {}).await;
    assert!(matches!(here(&mds).await, Ok(Response::WhoAmI { .. })));
    for _ in 0..2 {
        for clock in [&world.clock, &world.client_clock] {
            clock.skew_ms.fetch_add(13 * 3_600_000, Ordering::Relaxed);
        }
        // The session ends while it is connected, and with the same ticket before it is.
        assert!(matches!(here(&mds).await, Ok(Response::WhoAmI { .. })));
        let later = resumed(first.ticket()).renewing(key()).unwrap();
        assert!(matches!(here(&later).await, Ok(Response::WhoAmI { .. })));
        assert!(matches!(here(&resumed(first.ticket())).await, Err(ClientError::SessionOver)));
    }
    assert!(matches!(resumed(&admins).renewing(key()), Err(ClientError::LoginFailed(_))));
}
