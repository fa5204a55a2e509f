//! TLS before the first PDU, where the listener requires or allows it.
//!
//! Does: distinguish TLS from plain text by the first byte, run the handshake within a time limit,
//! count.
//! Does not: handle certificates; `sealstone-channel` does.
//! Contract: on a listener that requires TLS, a peer without TLS receives no byte, and none of its
//! input is parsed.
//! Truth: RFC 8446; docs/standards/iscsi.md, TLS.

use std::time::Duration;

use sealstone_channel::{AcceptedStream, FIRST_BYTE, LoginStage, TlsServer};
use sealstone_scsi::lu::ChannelToken;
use tokio::net::TcpStream;

use crate::{
    Counter,
    server::{ConnectionSlot, IscsiTarget},
};

/// Which peers must use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// All peers.
    Required,
    /// Use TLS if the client starts with it; otherwise plain text.
    Optional,
}

/// TLS of a listener.
#[derive(Clone, Debug)]
pub struct ListenerTls {
    /// Which peers must use TLS.
    pub mode: TlsMode,
    /// Time limit of the handshake, counted from accept.
    pub timeout: Duration,
    /// Server side of the channel, with the certificate.
    pub server: TlsServer,
}

/// Why a connection ended before its first PDU, for the audit log.
const SILENT: &str = "tls-silent";
const PLAIN: &str = "tls-missing";
const SLOW: &str = "tls-slow";
const EVICTED: &str = "logins-of-others";

impl IscsiTarget {
    /// Serves an accepted connection, inside TLS if the listener's mode requires or allows it.
    pub(crate) async fn accept_connection(
        &self,
        stream: TcpStream,
        local: String,
        peer: String,
        slot: ConnectionSlot,
    ) {
        let Some(tls) = self.tls() else {
            return self.run(stream, local, peer, None, slot).await;
        };
        let mut evicted = slot.ticket.evicted();
        // No session exists yet, so a handshake does not delay the shutdown.
        let begun = tokio::select! {
            biased;
            () = self.leaving() => return,
            _ = evicted.wait_for(|evicted| *evicted) => {
                self.counters().add(Counter::LoginsCrowded, 1);
                return self.record_refusal(slot.place.source(), EVICTED);
            }
            begun = tokio::time::timeout(tls.timeout, begin(tls, stream)) => begun,
        };
        let failed = match begun {
            Ok(Ok(OpenedStream::Plain(stream))) => return self.run(stream, local, peer, None, slot).await,
            Ok(Ok(OpenedStream::Sealed(accepted))) => {
                let AcceptedStream { stream, export, secret, suite } = *accepted;
                self.counters().add(Counter::TlsHandshakes, 1);
                self.counters().add(Counter::of_suite(suite), 1);
                slot.ticket.advance(LoginStage::Secured);
                let channel = Some((ChannelToken(export), Some(secret)));
                return self.run(stream, local, peer, channel, slot).await;
            }
            Ok(Err(failed)) => failed,
            Err(_) => SLOW,
        };
        self.counters().add(Counter::TlsHandshakesFailed, 1);
        tracing::debug!(%peer, failed, "connection closed before TLS was established");
        self.record_refusal(slot.place.source(), failed);
    }
}

enum OpenedStream {
    Plain(TcpStream),
    Sealed(Box<AcceptedStream<TcpStream>>),
}

async fn begin(tls: &ListenerTls, stream: TcpStream) -> Result<OpenedStream, &'static str> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(0) | Err(_) => return Err(SILENT),
        Ok(_) if first[0] == FIRST_BYTE => {}
        Ok(_) => {
            return match tls.mode {
                TlsMode::Optional => Ok(OpenedStream::Plain(stream)),
                TlsMode::Required => Err(PLAIN),
            };
        }
    }
    let accepted = tls.server.accept(stream).await.map_err(|error| {
        tracing::debug!(%error, "TLS handshake failed");
        reason(error.name())
    })?;
    Ok(OpenedStream::Sealed(Box::new(accepted)))
}

/// Returns the audit log's reason for a failed handshake.
fn reason(name: &str) -> &'static str {
    match name {
        "protocol" => "tls-protocol",
        "closed" => "tls-closed",
        "stream" => "tls-stream",
        _ => "tls-handshake",
    }
}
