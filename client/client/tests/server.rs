//! The connection to the metadata server: login, resumption, lost answers.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sealstone_client::{ClientError, Mds, MdsOptions, Metadata};
use sealstone_mds_protocol::{FilePath, Name, Request, Response};
use world::{ToMds, World, connect, login};

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
    let second = Mds::resume(dial.clone(), world.client_clock.clone(), MdsOptions::default(), ticket.clone());
    assert!(matches!(second.call(Request::WhoAmI {}).await, Ok(Response::WhoAmI { .. })));
    second.logout().await.unwrap();
    let third = Mds::resume(dial, world.client_clock.clone(), MdsOptions::default(), ticket);
    assert!(matches!(third.call(Request::WhoAmI {}).await, Err(ClientError::SessionOver)));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_password_is_refused() {
    let world = World::new(0).await;
    assert!(matches!(login(&world, b"wrong").await, Err(ClientError::LoginRefused)));
}

#[tokio::test(start_paused = true)]
async fn reads_are_asked_again_and_changes_are_not() {
    let world = World::new(0).await;
    let ticket = connect(&world).await.unwrap().ticket().clone();
    let dial = Arc::new(ToMds::of(&world));
    let mds = Mds::resume(dial.clone(), world.client_clock.clone(), MdsOptions::default(), ticket);
    dial.break_after.store(1, Ordering::Relaxed);
    assert!(matches!(mds.call(Request::WhoAmI {}).await, Ok(Response::WhoAmI { .. })));
    dial.break_after.store(1, Ordering::Relaxed);
    let lost = mds.call(mkdir("/once")).await;
    assert!(matches!(lost, Err(ClientError::OutcomeUnknown { request: "MakeDir" })), "{lost:?}");
    // It was done, once.
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
