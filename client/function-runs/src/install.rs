//! Files of the shipped functions, which a program installs in the library.

use std::path::PathBuf;

use sealstone_client::functions::FunctionPublication;
use sealstone_client::{Client, Method};
use sealstone_device_server::installed_folders;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};
use sealstone_osd::function::{ApiVersion, EngineType};
use serde_json::Value;

use crate::library::library_path;
use crate::observer::RunObserver;
use crate::publication::store_function;
use crate::source::FunctionSource;

/// Permission bits of the library's functions: all users run and read them.
const MODE: u16 = 0o755;

/// Stores shipped functions in the library, so that all users run them by their names.
#[derive(Clone, Debug)]
pub struct FunctionInstaller {
    folders: Vec<PathBuf>,
    engine: Option<EngineType>,
    publisher: String,
    sign: Option<PathBuf>,
}

impl FunctionInstaller {
    /// Returns an installer of the functions in a folder, or in those of this program. `sign` is
    /// the file with the private key of the publisher.
    ///
    /// # Errors
    /// No folder with built functions belongs to this program.
    pub fn new(
        folder: Option<PathBuf>,
        engine: Option<EngineType>,
        publisher: String,
        sign: Option<PathBuf>,
    ) -> Outcome<Self> {
        let folders = folder.map_or_else(shipped_folders, |folder| vec![folder]);
        if folders.is_empty() {
            let text = "no folder `functions` with built functions belongs to this program";
            return Err(Failure::not_found(text)
                .hint("`make engines` builds the functions; --from names their folder"));
        }
        Ok(Self { folders, engine, publisher, sign })
    }

    /// Stores a shipped function with copies on the active devices; returns it as `--json` prints
    /// it.
    ///
    /// # Errors
    /// No folder has it, or it cannot be stored.
    pub async fn install(
        &self,
        client: &Client,
        name: &str,
        method: Method,
        observer: &dyn RunObserver,
    ) -> Outcome<Value> {
        let path = library_path(name)?;
        let file = find_shipped_file(name, self.engine, &self.folders).map_err(|failure| failure.at(name))?;
        let source = FunctionSource {
            file,
            engine: self.engine,
            api: (ApiVersion::FIRST, ApiVersion::CURRENT),
            manifest: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            publisher: self.publisher.clone(),
            sign: self.sign.clone(),
        };
        let (code, description) = source.read()?;
        let publication = FunctionPublication { description, mode: MODE, replace: true, method };
        store_function(client, &path, &code, &publication, true, observer).await
    }
}

/// Returns the folders of built functions that belong to this program.
fn shipped_folders() -> Vec<PathBuf> {
    let folders = installed_folders().into_iter().map(|folder| folder.join("functions"));
    folders.filter(|folder| folder.is_dir()).collect()
}

/// Returns the names that a built function can have, the preferred one first. The engine of C
/// functions starts them without a translation.
fn file_names(function: &str, engine: Option<EngineType>) -> Vec<String> {
    let shared = [format!("{function}.so"), format!("lib{function}.so")];
    let module = format!("{function}.wasm");
    match engine {
        Some(EngineType::Wasm) => vec![module],
        Some(_) => shared.to_vec(),
        None => shared.into_iter().chain([module]).collect(),
    }
}

/// Returns the file of a shipped function: a shared object, or a module for the engine.
fn find_shipped_file(function: &str, engine: Option<EngineType>, folders: &[PathBuf]) -> Outcome<PathBuf> {
    let names = file_names(function, engine);
    let mut paths = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    paths.find(|path| path.is_file()).ok_or_else(|| {
        let shown: Vec<_> = folders.iter().map(|folder| folder.shown().to_string()).collect();
        Failure::not_found(format!("no {} in {}", names.join(" or "), shown.join(" or ")))
            .hint("`make engines` builds the functions, and --from names their folder")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_object_is_preferred_to_module() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().join("none"), folder.path().to_owned()];
        let failure = find_shipped_file("grep", None, &folders).unwrap_err();
        assert!(failure.message.contains("no grep.so or libgrep.so or grep.wasm in "), "{failure}");
        for name in ["grep.wasm", "libgrep.so"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let found = |engine| find_shipped_file("grep", engine, &folders).unwrap();
        assert!(found(None).ends_with("libgrep.so"));
        assert!(found(Some(EngineType::Wasm)).ends_with("grep.wasm"));
        assert!(find_shipped_file("count", None, &folders).is_err());
    }
}
