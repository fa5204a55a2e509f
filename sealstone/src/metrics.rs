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

/// The page under construction. A family is written once, with the samples of all who have some: the format forbids to
/// take one up again, and several devices of one process share a page.
#[derive(Default)]
pub(crate) struct Page {
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
    /// One family: name, meaning, and its samples with their labels.
    pub(crate) fn family<'a>(
        &mut self,
        kind: Kind,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (&'a [(&'a str, &'a str)], u64)>,
    ) {
        let family = self.called(name);
        help.clone_into(&mut family.help);
        family.kind = match kind {
            Kind::Counter => "counter".into(),
            Kind::Gauge => "gauge".into(),
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

    /// Families that another crate wrote in the same format.
    pub(crate) fn raw(&mut self, text: &str) {
        for line in text.lines() {
            if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
                help.clone_into(&mut self.called(name).help);
            } else if let Some((name, kind)) =
                line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
            {
                kind.clone_into(&mut self.called(name).kind);
            } else if !line.is_empty() && !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                let samples = &mut self.called(name).samples;
                samples.push_str(line);
                samples.push('\n');
            }
        }
    }

    /// The family of this name, where it stands or as a new last one.
    fn called(&mut self, name: &str) -> &mut Family {
        let at = self.families.iter().position(|family| family.name == name).unwrap_or_else(|| {
            self.families.push(Family { name: name.to_owned(), ..Family::default() });
            self.families.len() - 1
        });
        &mut self.families[at]
    }

    pub(crate) fn finish(self) -> String {
        let mut text = String::new();
        for Family { name, help, kind, samples } in self.families {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{samples}");
        }
        text
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
            get(async move || {
                // It may have to wait, for a database that is away, say.
                let asked = Arc::clone(&observed);
                let health = tokio::task::spawn_blocking(move || asked.health()).await;
                match health.unwrap_or_else(|error| Err(error.to_string())) {
                    Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
                    Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
                }
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

    /// However many tell of a family, it appears once, with all their samples.
    #[test]
    fn families_of_several_devices_are_merged() {
        let mut page = Page::default();
        for device in ["a", "b"] {
            page.raw(&format!(
                "# HELP x_total Things.\n# TYPE x_total counter\nx_total{{device=\"{device}\"}} 1\n"
            ));
            page.family(Kind::Gauge, "y", "Bytes.", [(&[("device", device)][..], 2)]);
        }
        assert_eq!(
            page.finish(),
            "# HELP x_total Things.\n# TYPE x_total counter\nx_total{device=\"a\"} 1\nx_total{device=\"b\"} 1\n\
             # HELP y Bytes.\n# TYPE y gauge\ny{device=\"a\"} 2\ny{device=\"b\"} 2\n"
        );
    }
}
