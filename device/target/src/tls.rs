//! What a connection does before its first PDU: TLS, where the listener wants or allows it.
//!
//! Does: tell TLS from plain text by the first byte, shake hands within a time, count. Does not: know certificates;
//! `sealstone-channel` does.
//! Contract: on a listener that wants TLS no byte goes out to who does not speak it, and nothing is parsed of him.
//! Truth: RFC 8446; docs/standards/iscsi.md, TLS.

use std::time::Duration;

use sealstone_channel::{Accepted, FIRST_BYTE, Server, Stage};
use sealstone_scsi::lu::ChannelToken;
use tokio::net::TcpStream;

use crate::{
    Counter,
    server::{Slot, Target},
};

/// Who must speak TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everybody.
    Required,
    /// Who begins so; the others are served in plain text.
    Optional,
}

/// TLS of a listener.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Who must speak it.
    pub mode: Mode,
    /// How long a handshake may take, from the connection's first moment.
    pub timeout: Duration,
    /// The certificate, and what goes with it.
    pub server: Server,
}

/// Why a connection ends before its first PDU, for the audit log.
const SILENT: &str = "tls-silent";
const PLAIN: &str = "tls-missing";
const SLOW: &str = "tls-slow";
const EVICTED: &str = "logins-of-others";

impl Target {
    /// Serves a connection that was accepted, inside TLS if it must or may be so.
    pub(crate) async fn welcome(&self, stream: TcpStream, local: String, peer: String, slot: Slot) {
        let Some(tls) = self.tls() else {
            return self.run(stream, local, peer, None, slot).await;
        };
        let mut evicted = slot.ticket.evicted();
        // Nobody was promised anything yet: whoever shakes hands does not hold up the end.
        let begun = tokio::select! {
            biased;
            () = self.leaving() => return,
            _ = evicted.wait_for(|evicted| *evicted) => {
                self.counters().add(Counter::LoginsCrowded, 1);
                return self.turned_away(slot.place.source(), EVICTED);
            }
            begun = tokio::time::timeout(tls.timeout, begin(tls, stream)) => begun,
        };
        let failed = match begun {
            Ok(Ok(Begun::Plain(stream))) => return self.run(stream, local, peer, None, slot).await,
            Ok(Ok(Begun::Sealed(accepted))) => {
                let Accepted { stream, export, suite } = *accepted;
                self.counters().add(Counter::TlsHandshakes, 1);
                self.counters().add(Counter::of_suite(suite), 1);
                slot.ticket.advance(Stage::Secured);
                return self.run(stream, local, peer, Some(ChannelToken(export)), slot).await;
            }
            Ok(Err(failed)) => failed,
            Err(_) => SLOW,
        };
        self.counters().add(Counter::TlsHandshakesFailed, 1);
        tracing::debug!(%peer, failed, "no TLS");
        self.turned_away(slot.place.source(), failed);
    }
}

enum Begun {
    Plain(TcpStream),
    Sealed(Box<Accepted<TcpStream>>),
}

async fn begin(tls: &Tls, stream: TcpStream) -> Result<Begun, &'static str> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(0) | Err(_) => return Err(SILENT),
        Ok(_) if first[0] == FIRST_BYTE => {}
        Ok(_) => {
            return match tls.mode {
                Mode::Optional => Ok(Begun::Plain(stream)),
                Mode::Required => Err(PLAIN),
            };
        }
    }
    let accepted = tls.server.accept(stream).await.map_err(|error| {
        tracing::debug!(%error, "TLS handshake");
        reason(error.name())
    })?;
    Ok(Begun::Sealed(Box::new(accepted)))
}

/// The audit log's word for a failed handshake.
fn reason(name: &str) -> &'static str {
    match name {
        "protocol" => "tls-protocol",
        "closed" => "tls-closed",
        "stream" => "tls-stream",
        _ => "tls-handshake",
    }
}
