//! `sealstone fn install`: stores the shipped functions in the library, so that all users run them
//! by their names.
//!
//! Truth: docs/how-to/functions.md.

use std::path::PathBuf;

use sealstone_client::FilePath;
use sealstone_client::functions::{FUNCTION_CODE_MAX, FunctionDescription, FunctionPublication};
use sealstone_device_server::installed_folders;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome};
use sealstone_function_runs::library_path;
use sealstone_functions::SHIPPED_FUNCTIONS;
use sealstone_osd::function::ApiVersion;
use serde_json::json;

use crate::cli::GlobalArgs;
use crate::cli::functions::{EngineName, FunctionInstallArgs};
use crate::command::functions::{METHOD, engine_of, read_file, sign, store};
use crate::command::parts::for_each;
use crate::command::session::client;
use crate::output::Output;

/// Permission bits of the library's functions: all users run and read them.
const MODE: u16 = 0o755;

/// Returns the folders of built functions that belong to this program.
fn default_folders() -> Vec<PathBuf> {
    let folders = installed_folders().into_iter().map(|folder| folder.join("functions"));
    folders.filter(|folder| folder.is_dir()).collect()
}

/// Returns the names that a built function can have, the preferred one first. The engine of C
/// functions starts them without a translation.
fn file_names(function: &str, engine: Option<EngineName>) -> Vec<String> {
    let shared = [format!("{function}.so"), format!("lib{function}.so")];
    let module = format!("{function}.wasm");
    match engine {
        Some(EngineName::Wasm) => vec![module],
        Some(_) => shared.to_vec(),
        None => shared.into_iter().chain([module]).collect(),
    }
}

/// Returns the file of a function.
fn find_file(function: &str, engine: Option<EngineName>, folders: &[PathBuf]) -> Outcome<PathBuf> {
    let names = file_names(function, engine);
    let mut paths = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    paths.find(|path| path.is_file()).ok_or_else(|| {
        let shown: Vec<_> = folders.iter().map(|folder| folder.shown().to_string()).collect();
        Failure::not_found(format!("no {} in {}", names.join(" or "), shown.join(" or ")))
            .hint("`make engines` builds the functions, and --from names their folder")
    })
}

/// `sealstone fn install`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, arguments: &FunctionInstallArgs) -> Outcome {
    let FunctionInstallArgs { functions, from, engine, publisher, sign: key } = arguments;
    let folders = match from {
        Some(folder) => vec![folder.clone()],
        None => default_folders(),
    };
    if folders.is_empty() {
        let text = "no folder `functions` with built functions belongs to this program";
        return Err(
            Failure::not_found(text).hint("`make engines` builds the functions; --from names their folder")
        );
    }
    let names: Vec<&str> = match &functions[..] {
        [] => SHIPPED_FUNCTIONS.iter().map(|function| function.name).collect(),
        named => named.iter().map(String::as_str).collect(),
    };
    let (client, _) = client(global)?;
    let results = for_each(output, &names, async |name| {
        let path = FilePath::new(library_path(name).as_bytes()).map_err(Failure::usage)?;
        let file = find_file(name, *engine, &folders).map_err(|failure| failure.at(name))?;
        let code = read_file(&file, FUNCTION_CODE_MAX)?;
        let digest = *blake3::hash(&code).as_bytes();
        let mut description = FunctionDescription {
            engine: Some(engine_of(&file, *engine, &code)?),
            api: Some((ApiVersion::CURRENT, ApiVersion::CURRENT)),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            publisher: publisher.clone(),
            digest: Some(digest),
            ..FunctionDescription::default()
        };
        if let Some(key) = key {
            sign(&mut description, &digest, key)?;
        }
        let publication = FunctionPublication { description, mode: MODE, replace: true, method: METHOD };
        store(&client, output, &path, &code, &publication, true).await
    })
    .await?;
    let installed = json!({ "functions": results.done });
    results.finish(installed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_object_is_preferred_to_module() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().join("none"), folder.path().to_owned()];
        let failure = find_file("grep", None, &folders).unwrap_err();
        assert!(failure.message.contains("no grep.so or libgrep.so or grep.wasm in "), "{failure}");
        for name in ["grep.wasm", "libgrep.so"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let found = |engine| find_file("grep", engine, &folders).unwrap();
        assert!(found(None).ends_with("libgrep.so"));
        assert!(found(Some(EngineName::Wasm)).ends_with("grep.wasm"));
        assert!(find_file("count", None, &folders).is_err());
    }
}
