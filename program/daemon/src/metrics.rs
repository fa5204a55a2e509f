//! `/metrics` in the text format of Prometheus, and `/healthz`, on a separate port.
//!
//! Does: formats families of samples, serves the pages of an [`Observed`] daemon, and limits
//! connections.

use std::fmt::Write as _;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use sealstone_channel::{Admission, AdmissionLimits, AdmissionTicket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

/// Limits of connections of the port, which has no login.
const ADMISSION: AdmissionLimits = AdmissionLimits {
    pending_max: 64,
    pending_per_network_max: 48,
    pending_per_address_max: 32,
    pending_local_max: 64,
    active_max: 0,
    active_per_address_max: 0,
    active_reserved: 0,
};
/// Maximum lifetime of a connection.
const CONNECTION_MAX: Duration = Duration::from_secs(60);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only grows.
    Counter,
    /// A value that can go down.
    Gauge,
}

/// The page under construction. The format allows each family once, so samples of several devices
/// are merged.
#[derive(Default)]
pub struct Page {
    families: Vec<Family>,
}

#[derive(Default)]
struct Family {
    name: String,
    help: String,
    kind: String,
    samples: String,
}

impl Page {
    /// Adds samples, with their labels, to a family.
    pub fn family<'a>(
        &mut self,
        kind: MetricKind,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (&'a [(&'a str, &'a str)], u64)>,
    ) {
        let family = self.family_named(name);
        help.clone_into(&mut family.help);
        family.kind = match kind {
            MetricKind::Counter => "counter".into(),
            MetricKind::Gauge => "gauge".into(),
        };
        for (labels, value) in samples {
            let text = &mut family.samples;
            text.push_str(name);
            for (index, (label, content)) in labels.iter().enumerate() {
                text.push(if index == 0 { '{' } else { ',' });
                let content = content.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = write!(text, "{label}=\"{content}\"");
            }
            if !labels.is_empty() {
                text.push('}');
            }
            let _ = writeln!(text, " {value}");
        }
    }

    /// Adds families in text format.
    pub fn raw(&mut self, text: &str) {
        for line in text.lines() {
            if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
                help.clone_into(&mut self.family_named(name).help);
            } else if let Some((name, kind)) =
                line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
            {
                kind.clone_into(&mut self.family_named(name).kind);
            } else if !line.is_empty() && !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                let samples = &mut self.family_named(name).samples;
                samples.push_str(line);
                samples.push('\n');
            }
        }
    }

    /// Returns the family of a name; adds it if necessary.
    fn family_named(&mut self, name: &str) -> &mut Family {
        let at = self.families.iter().position(|family| family.name == name).unwrap_or_else(|| {
            self.families.push(Family { name: name.to_owned(), ..Family::default() });
            self.families.len() - 1
        });
        &mut self.families[at]
    }

    /// Returns the page as text.
    fn finish(self) -> String {
        let mut text = String::new();
        for Family { name, help, kind, samples } in self.families {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{samples}");
        }
        text
    }
}

/// A source of metrics.
pub trait Observed: Send + Sync + 'static {
    /// Adds its metrics to the page.
    fn observe(&self, page: &mut Page);
    /// Returns `Err` with one line if the daemon is not healthy.
    fn health(&self) -> Result<(), String>;
}

/// Serves both paths until `shutdown` completes.
pub(crate) async fn serve(
    listener: TcpListener,
    observed: Arc<dyn Observed>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let for_metrics = Arc::clone(&observed);
    let router = Router::new()
        .route(
            "/metrics",
            get(async move || {
                let mut page = Page::default();
                for_metrics.observe(&mut page);
                ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page.finish())
            }),
        )
        .route(
            "/healthz",
            get(async move || {
                // A source may wait, for example for an unavailable database.
                let asked = Arc::clone(&observed);
                let health = tokio::task::spawn_blocking(move || asked.health()).await;
                match health.unwrap_or_else(|error| Err(error.to_string())) {
                    Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
                    Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
                }
            }),
        );
    axum::serve(BoundedListener::new(listener), router).with_graceful_shutdown(shutdown).await
}

/// A listener whose connections have shares per address and a maximum lifetime, so that silent ones
/// block no others.
struct BoundedListener {
    listener: TcpListener,
    admission: Arc<Admission>,
}

impl BoundedListener {
    fn new(listener: TcpListener) -> Self {
        Self { listener, admission: Admission::new(ADMISSION) }
    }
}

impl axum::serve::Listener for BoundedListener {
    type Io = BoundedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoundedStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let ticket = self.admission.enter(peer.ip().into());
                    let mut evicted = ticket.evicted();
                    let end = Box::pin(async move {
                        let evicted = evicted.wait_for(|evicted| *evicted);
                        _ = tokio::time::timeout(CONNECTION_MAX, evicted).await;
                    });
                    return (BoundedStream { stream, end: Some(end), _ticket: ticket }, peer);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept on the metrics port; retrying");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection of a [`BoundedListener`]: its stream fails when it is evicted or its lifetime ends.
struct BoundedStream {
    stream: TcpStream,
    /// Completes when the connection must close; `None` after that.
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    _ticket: AdmissionTicket,
}

impl BoundedStream {
    fn poll_end(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.end.as_mut().is_some_and(|end| end.as_mut().poll(cx).is_ready()) {
            self.end = None;
        }
        if self.end.is_none() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_end(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_end(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = Page::default();
        page.family(MetricKind::Counter, "x_total", "Things.", [(&[("name", "a\"b\nc\\")][..], 3)]);
        assert_eq!(
            page.finish(),
            "# HELP x_total Things.\n# TYPE x_total counter\nx_total{name=\"a\\\"b\\nc\\\\\"} 3\n"
        );
    }

    #[test]
    fn families_of_several_devices_are_merged() {
        let mut page = Page::default();
        for device in ["a", "b"] {
            page.raw(&format!(
                "# HELP x_total Things.\n# TYPE x_total counter\nx_total{{device=\"{device}\"}} 1\n"
            ));
            page.family(MetricKind::Gauge, "y", "Bytes.", [(&[("device", device)][..], 2)]);
        }
        assert_eq!(
            page.finish(),
            "# HELP x_total Things.\n# TYPE x_total counter\nx_total{device=\"a\"} 1\nx_total{device=\"b\"} 1\n\
             # HELP y Bytes.\n# TYPE y gauge\ny{device=\"a\"} 2\ny{device=\"b\"} 2\n"
        );
    }
}
