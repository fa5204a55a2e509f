//! The functions of a stored directory.

use sealstone_client::functions::FunctionError;
use sealstone_client::{Client, ClientError, FileKind, FilePath, Method};
use sealstone_failure::{Failure, Outcome};
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
        let folder = FilePath::new(directory.unwrap_or(LIBRARY.as_bytes())).map_err(ClientError::Name)?;
        let entries = match client.list(&folder)?.collect().await {
            Ok(entries) => entries,
            // Nothing was stored there yet.
            Err(error) if error.is_not_found() && directory.is_none() => Vec::new(),
            Err(error) => return Err(Failure::from(error).at(&folder)),
        };
        let mut list = Self::default();
        for entry in entries.iter().filter(|entry| entry.kind == FileKind::File) {
            let path = folder.join(&entry.name).map_err(|error| Failure::usage(error).at(&folder))?;
            match client.function(&path, method).await {
                Ok(function) => {
                    list.values.push(function_json(&path, &function));
                    list.lines.push(function_line(&entry.name, &function));
                }
                Err(FunctionError::NotDescribed { .. }) => {}
                Err(error) => {
                    let failure = Failure::from(error).at(&path);
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
