//! A session with a real target over streams in memory; the logical unit echoes data.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sealstone_initiator::{
    Environment, Residual, ScsiRequest, Session, SessionConfig, SessionError, SystemEnvironment, discover,
};
use sealstone_iscsi_target::{IscsiTarget, TargetConfig};
use sealstone_scsi::lu::{Cost, InitiatorPort, LogicalUnit, NexusId, ScsiCommand, ScsiReply};
use sealstone_scsi::{AdditionalSense, Status};
use tokio::io::DuplexStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub(crate) const NAME: &str = "iqn.2026-11.org.sealstone:osd.mirror";
const MIRROR: u8 = 0xC0;
const NOTHING: u8 = 0xC1;

/// Returns data-out as data-in.
pub(crate) struct Mirror;

impl LogicalUnit for Mirror {
    fn cost(&self, _: NexusId, _: &[u8]) -> Cost {
        Cost::Inline
    }
    fn execute(&self, command: ScsiCommand<'_>) -> ScsiReply {
        let mut reply = match command.cdb.first() {
            Some(&MIRROR) => ScsiReply::data(Bytes::copy_from_slice(command.data_out), command.data_in_max),
            Some(&NOTHING) => ScsiReply::status(Status::Good),
            _ => ScsiReply::status(Status::Busy),
        };
        reply.data_out_used = command.data_out.len() as u64;
        reply
    }
    fn nexus_established(&self, _: NexusId, _: &InitiatorPort<'_>) {}
    fn attention(&self, _: NexusId, _: AdditionalSense) {}
    fn luns_reported(&self, _: NexusId) {}
    fn nexus_lost(&self, _: NexusId) {}
    fn reset(&self) {}
}

fn stream() -> DuplexStream {
    let target = IscsiTarget::new(TargetConfig::new(NAME), vec![(0, Arc::new(Mirror) as _)]).unwrap();
    let (near, far) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move { target.serve_stream(far, "m:3260".to_owned(), "m:1".to_owned(), None).await });
    near
}

pub(crate) fn config() -> SessionConfig {
    SessionConfig::new(Some(NAME.to_owned()), &SystemEnvironment)
}

fn cdb(opcode: u8) -> Bytes {
    let mut cdb = vec![0; 236];
    cdb[0] = opcode;
    cdb.into()
}

pub(crate) fn mirrored(length: usize) -> (Vec<u8>, ScsiRequest) {
    let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
    let (head, tail) = bytes.split_at(length / 3);
    let pieces = [head, tail].map(Bytes::copy_from_slice).to_vec();
    (bytes, ScsiRequest { cdb: cdb(MIRROR), data_out: pieces, data_in_max: length, ..ScsiRequest::default() })
}

#[tokio::test]
async fn many_commands_of_many_sizes_share_a_session() {
    let session = Session::over(stream(), config()).await.unwrap();
    let mut commands = JoinSet::new();
    for round in 0..60 {
        let session = session.clone();
        commands.spawn(async move {
            let (bytes, request) = mirrored([0, 1, 511, 8_192, 70_001, 600_000][round % 6] + round);
            let response = session.execute(request).await.unwrap();
            assert_eq!(response.status, 0);
            assert!(response.data_in == bytes, "{round}");
        });
    }
    while let Some(done) = commands.join_next().await {
        done.unwrap();
    }
    session.logout().await;
    assert!(matches!(session.execute(mirrored(1).1).await, Err(SessionError::Closed)));
}

#[tokio::test]
async fn one_command_larger_than_the_memory_still_runs() {
    let mut config = config();
    config.memory_max = 64 << 10;
    let session = Session::over(stream(), config).await.unwrap();
    let (a, b) = tokio::join!(session.execute(mirrored(300_000).1), session.execute(mirrored(200_000).1));
    assert_eq!((a.unwrap().data_in.len(), b.unwrap().data_in.len()), (300_000, 200_000));
}

#[tokio::test]
async fn residuals_report_untransferred_bytes() {
    let session = Session::over(stream(), config()).await.unwrap();
    let (bytes, mut request) = mirrored(5_000);
    request.data_in_max = 6_000;
    let more_room = session.execute(request.clone()).await.unwrap();
    assert_eq!((more_room.data_in == bytes, more_room.read_residual), (true, Residual::Underflow(1_000)));
    request.data_in_max = 4_000;
    let less_room = session.execute(request).await.unwrap();
    assert_eq!((less_room.data_in.len(), less_room.read_residual), (4_000, Residual::Overflow(1_000)));
}

#[tokio::test]
async fn callers_buffer_is_returned() {
    let session = Session::over(stream(), config()).await.unwrap();
    let (_, mut request) = mirrored(100_000);
    request.buffer = Vec::with_capacity(1 << 20);
    let address = request.buffer.as_ptr();
    let response = session.execute(request).await.unwrap();
    assert_eq!(response.data_in.as_ptr(), address);
}

#[tokio::test]
async fn discovery_finds_the_target() {
    let targets = discover(stream(), config()).await.unwrap();
    assert_eq!(targets.iter().map(|target| target.name.as_str()).collect::<Vec<_>>(), [NAME]);
}

#[tokio::test]
async fn a_target_by_another_name_refuses_the_login() {
    let mut config = config();
    config.target_name = Some("iqn.2026-11.org.sealstone:osd.other".to_owned());
    let refused = Session::over(stream(), config).await.err();
    assert!(matches!(refused, Some(SessionError::LoginRefused { class: 2, .. })), "{refused:?}");
}

/// Returns a stream to a target, and a switch that stops all bytes in both directions.
fn stallable_stream() -> (DuplexStream, Arc<Notify>) {
    let stall = Arc::new(Notify::new());
    let (near, mut far) = tokio::io::duplex(64 * 1024);
    let (mut target, stalled) = (stream(), Arc::clone(&stall));
    tokio::spawn(async move {
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut far, &mut target) => {}
            () = stalled.notified() => std::future::pending::<()>().await,
        }
    });
    (near, stall)
}

#[tokio::test(start_paused = true)]
async fn commands_behind_closed_window_time_out_together() {
    let (near, stall) = stallable_stream();
    let mut config = config();
    config.queue_depth = 1;
    let session = Session::over(near, config).await.unwrap();
    stall.notify_one();
    let began = Instant::now();
    let mut commands = JoinSet::new();
    for _ in 0..40 {
        let session = session.clone();
        commands.spawn(async move {
            session.execute(ScsiRequest { timeout: Some(Duration::from_secs(3)), ..mirrored(100).1 }).await
        });
    }
    // The first command occupies the only slot; it is aborted at the end of its own time limit.
    for outcome in commands.join_all().await {
        assert!(matches!(outcome, Err(SessionError::Timeout(_) | SessionError::NexusLost)), "{outcome:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn silent_target_times_out_at_login() {
    let (near, _far) = tokio::io::duplex(64 * 1024);
    let error = Session::over(near, config()).await.err();
    assert!(matches!(error, Some(SessionError::LoginTimeout(_))), "{error:?}");
}

#[tokio::test]
async fn ended_stream_fails_pending_commands() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    drop(far);
    assert!(Session::over(near, config()).await.is_err());
}

#[tokio::test]
async fn too_long_cdb_is_not_sent() {
    let session = Session::over(stream(), config()).await.unwrap();
    let request = ScsiRequest { cdb: vec![0x7F; 261].into(), ..ScsiRequest::default() };
    assert!(matches!(session.execute(request).await, Err(SessionError::TooLong { actual: 261, .. })));
    let request =
        ScsiRequest { timeout: Some(Duration::from_secs(9)), cdb: cdb(NOTHING), ..Default::default() };
    assert_eq!(session.execute(request).await.unwrap().status, 0);
    assert!(SystemEnvironment.now_ms() > 1_700_000_000_000);
}
