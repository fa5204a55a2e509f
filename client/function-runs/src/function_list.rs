//! The functions of a stored directory.

use sealstone_client::functions::FunctionError;
use sealstone_client::{Client, FileKind, FilePath, Method};
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::shown;
use serde_json::{Value, json};

use crate::function_report::{function_json, function_line};
use crate::library::LIBRARY;
use crate::observer::RunObserver;

/// The functions of a directory.
#[derive(Clone, Debug, Default)]
pub struct FunctionList {
    values: Vec<Value>,
    lines: Vec<String>,
}

impl FunctionList {
    /// Requests the functions of a directory; of [`LIBRARY`] without one. The observer receives a
    /// warning about a function that cannot be read.
    ///
    /// # Errors
    /// The directory cannot be listed, or the session is over.
    pub async fn load(
        client: &Client,
        directory: Option<&[u8]>,
        method: Method,
        observer: &dyn RunObserver,
    ) -> Outcome<Self> {
        let path = directory.unwrap_or(LIBRARY.as_bytes());
        let entries = match client.list(path)?.collect().await {
            Ok(entries) => entries,
            // Nothing was stored there yet.
            Err(error) if error.is_not_found() && directory.is_none() => Vec::new(),
            Err(error) => return Err(Failure::from(error).at(shown(path))),
        };
        let is_file = |kind: Option<FileKind>| kind.is_none_or(|kind| kind == FileKind::File);
        let mut list = Self::default();
        for entry in entries.iter().filter(|entry| is_file(entry.stat.as_ref().map(|stat| stat.kind))) {
            let separator: &[u8] = if path.ends_with(b"/") { b"" } else { b"/" };
            let whole = [path, separator, entry.name.as_bytes()].concat();
            let whole = FilePath::new(&whole).map_err(|error| Failure::usage(error).at(shown(&whole)))?;
            match client.function(&whole, method).await {
                Ok(function) => {
                    list.values.push(function_json(&whole, &function));
                    list.lines.push(function_line(&entry.name, &function));
                }
                Err(FunctionError::NotDescribed { .. }) => {}
                Err(error) => {
                    let failure = Failure::from(error).at(&whole);
                    if failure.fatal {
                        return Err(failure);
                    }
                    observer.warn(&failure.to_string());
                }
            }
        }
        Ok(list)
    }

    /// Returns the list as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "functions": self.values })
    }

    /// Returns the list as text.
    #[must_use]
    pub fn text(&self) -> String {
        if self.lines.is_empty() {
            return "no functions; `sealstone fn install` stores the shipped ones, `sealstone fn put` another"
                .to_owned();
        }
        self.lines.join("\n")
    }
}
