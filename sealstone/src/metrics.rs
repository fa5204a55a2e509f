//! `/metrics` in Prometheus' text format and `/healthz`, on a port of their own.

use std::fmt::Write as _;
use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use tokio::net::TcpListener;

/// What a sample counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only grows.
    Counter,
    /// Goes both ways.
    Gauge,
}

/// The page under construction; families stay together because each is written in one call.
#[derive(Default)]
pub(crate) struct Page {
    text: String,
}

impl Page {
    /// One family: name, meaning, and its samples with their labels.
    pub(crate) fn family<'a>(
        &mut self,
        kind: Kind,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (&'a [(&'a str, &'a str)], u64)>,
    ) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            self.text.push_str(name);
            for (index, (label, content)) in labels.iter().enumerate() {
                self.text.push(if index == 0 { '{' } else { ',' });
                let content = content.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = write!(self.text, "{label}=\"{content}\"");
            }
            if !labels.is_empty() {
                self.text.push('}');
            }
            let _ = writeln!(self.text, " {value}");
        }
    }

    /// Families that another crate wrote in the same format.
    pub(crate) fn raw(&mut self, text: &str) {
        self.text.push_str(text);
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}

/// Something that can describe itself in numbers.
pub(crate) trait Observed: Send + Sync + 'static {
    /// Adds its families to the page.
    fn observe(&self, page: &mut Page);
    /// `Err` says in one line why the daemon should be taken out of service.
    fn health(&self) -> Result<(), String>;
}

/// Serves both paths until `shutdown` completes.
pub(crate) async fn serve(
    listener: TcpListener,
    observed: Arc<dyn Observed>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
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
            get(async move || match observed.health() {
                Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
                Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
            }),
        );
    axum::serve(listener, router).with_graceful_shutdown(shutdown).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A label that holds quotes or line ends cannot break the page.
    #[test]
    fn labels_are_escaped() {
        let mut page = Page::default();
        page.family(Kind::Counter, "x_total", "Things.", [(&[("name", "a\"b\nc\\")][..], 3)]);
        assert_eq!(
            page.finish(),
            "# HELP x_total Things.\n# TYPE x_total counter\nx_total{name=\"a\\\"b\\nc\\\\\"} 3\n"
        );
    }
}
