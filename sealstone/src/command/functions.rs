//! `sealstone fn`: stores, lists, shows and removes functions, and lists engines. The project of a
//! new function is in [`function_project`], its run on local files in [`function_test`], and the
//! installation of the shipped functions in [`function_install`].

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use sealstone_client::functions::{
    FUNCTION_CODE_MAX, FunctionDescription, FunctionDetails, FunctionError, FunctionPublication,
};
use sealstone_client::{Client, FileKind, FilePath, Method};
use sealstone_crypto::signature::PublisherKey;
use sealstone_failure::text::{ShownPath as _, hex, human_bytes, set_bytes};
use sealstone_failure::{Failure, Outcome, secret_file};
use sealstone_function_runs::{LIBRARY, at_function, is_in_library};
use sealstone_java_archive::JavaArchive;
use sealstone_mds_protocol::{DeviceState, shown};
use sealstone_osd::function::EngineType;
use sealstone_osd::function::attributes::{MANIFEST_MAX, signed_message};
use sealstone_wasm_module::ModuleSummary;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::cli::GlobalArgs;
use crate::cli::functions::{EngineName, Function, FunctionPutArgs};
use crate::command::parts::for_each;
use crate::command::session::client;
use crate::command::{function_install, function_policy, function_project, function_test};
use crate::output::Output;

/// Security method of the commands of `fn`.
pub(super) const METHOD: Method = Method::AllData;

/// Returns the path of a function: a name without a slash is in [`LIBRARY`].
pub(crate) fn function_path(global: &GlobalArgs, argument: &OsStr) -> Outcome<FilePath> {
    let bytes = global.bytes(argument)?;
    let whole = if bytes.contains(&b'/') { bytes } else { [LIBRARY.as_bytes(), b"/", &bytes].concat() };
    FilePath::new(&whole).map_err(|error| {
        Failure::usage(format!("invalid path: {error}"))
            .at(shown(&whole))
            .hint("a function is a name in /.functions, or a stored path that begins with /")
    })
}

/// `sealstone fn …`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, command: &Function) -> Outcome {
    match command {
        Function::New(arguments) => function_project::create(output, arguments),
        Function::Test(arguments) => function_test::run(output, arguments).await,
        Function::Install(arguments) => function_install::run(global, output, arguments).await,
        Function::Put(arguments) => put(global, output, arguments).await,
        Function::Ls { path } => ls(global, output, path.as_deref()).await,
        Function::Show { function } => show(global, output, function).await,
        Function::Copy { function } => copy(global, output, function).await,
        Function::Rm { functions } => remove(global, output, functions).await,
        Function::Policy(arguments) => function_policy::run(global, output, arguments).await,
        Function::Engines => engines(global, output).await,
    }
}

/// Reads a local file of at most `max` bytes.
pub(super) fn read_file(path: &Path, max: usize) -> Outcome<Vec<u8>> {
    let at = |error: std::io::Error| Failure::from(error).at(path.shown());
    let mut bytes = Vec::new();
    File::open(path).map_err(at)?.take(max as u64 + 1).read_to_end(&mut bytes).map_err(at)?;
    if bytes.len() > max {
        return Err(Failure::usage(format!("the file has more than {max} bytes")).at(path.shown()));
    }
    Ok(bytes)
}

/// Reads the secret key of a publisher: 32 bytes, or 64 hex digits.
fn read_publisher_key(path: &Path) -> Outcome<Zeroizing<[u8; 32]>> {
    let bytes = secret_file::read_bytes(path)?;
    if let Ok(key) = <[u8; 32]>::try_from(&bytes[..]) {
        return Ok(Zeroizing::new(key));
    }
    let mut key = Zeroizing::new([0; 32]);
    let digits = bytes.trim_ascii();
    let is_hex = digits.len() == 64
        && digits.chunks_exact(2).zip(key.iter_mut()).all(|(pair, byte)| {
            let digit = |c: u8| char::from(c).to_digit(16).map(|digit| digit as u8);
            match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => {
                    *byte = high << 4 | low;
                    true
                }
                _ => false,
            }
        });
    if is_hex {
        Ok(key)
    } else {
        Err(Failure::usage("not a publisher key: 32 bytes, or 64 hex digits").at(path.shown()))
    }
}

/// First bytes of a shared object.
const ELF_MAGIC: &[u8] = b"\x7fELF";

/// Returns the engine of code that names its format; `None` for other code.
fn recognized_engine(code: &[u8]) -> Option<EngineType> {
    if sealstone_wasm_module::is_module(code) {
        Some(EngineType::Wasm)
    } else {
        code.starts_with(ELF_MAGIC).then_some(EngineType::C)
    }
}

/// Returns the engine of the code: the given one, or that of its first bytes or of the extension of
/// its file. Refuses code that this engine would refuse.
pub(super) fn engine_of(file: &Path, named: Option<EngineName>, code: &[u8]) -> Outcome<EngineType> {
    let refuse = |text: String| Failure::usage(text).at(file.shown());
    let recognized = recognized_engine(code);
    let engine = match (named.map(EngineType::from), recognized) {
        (Some(named), Some(recognized)) if named != recognized => {
            let text = format!("the file is for the engine {}, not {}", recognized.name(), named.name());
            return Err(refuse(text).hint("leave out --engine, or choose another file"));
        }
        (Some(engine), _) | (None, Some(engine)) => engine,
        (None, None) => match file.extension().and_then(OsStr::to_str) {
            Some("so") => EngineType::C,
            Some("wasm") => EngineType::Wasm,
            Some("jar") => EngineType::Java,
            Some("py") => EngineType::Python,
            _ => {
                return Err(refuse("the extension of the file names no engine".to_owned())
                    .hint("add --engine c, wasm, java or python"));
            }
        },
    };
    if engine == EngineType::Wasm {
        ModuleSummary::parse(code)
            .map_err(|error| refuse(error.to_string()).hint("docs/how-to/functions-in-webassembly.md"))?;
    }
    if engine == EngineType::Java {
        JavaArchive::parse(code)
            .map_err(|error| refuse(error.to_string()).hint("docs/how-to/functions-in-java.md"))?;
    }
    if engine == EngineType::Python && (code.contains(&0) || std::str::from_utf8(code).is_err()) {
        return Err(refuse("this is no Python source: it has zero bytes or is not UTF-8".to_owned())
            .hint("store the .py file, not a compiled .pyc file"));
    }
    Ok(engine)
}

/// Signs the code and its description with the key of a publisher.
pub(super) fn sign(description: &mut FunctionDescription, digest: &[u8; 32], key: &Path) -> Outcome {
    let key = PublisherKey::from_seed(&*read_publisher_key(key)?);
    // The signature covers the description.
    description.signature = Some(key.sign(&signed_message(digest, description)));
    description.publisher_key = Some(key.public());
    Ok(())
}

/// Returns the description of the code, signed if a key is given.
fn description(arguments: &FunctionPutArgs, code: &[u8]) -> Outcome<FunctionDescription> {
    let manifest = match &arguments.manifest {
        Some(path) => String::from_utf8(read_file(path, MANIFEST_MAX)?)
            .map_err(|_| Failure::usage("the manifest is not UTF-8").at(path.shown()))?,
        None => String::new(),
    };
    let digest = *blake3::hash(code).as_bytes();
    let mut description = FunctionDescription {
        engine: Some(engine_of(&arguments.file, arguments.engine, code)?),
        api: Some(arguments.api),
        version: arguments.version.clone(),
        publisher: arguments.publisher.clone(),
        manifest,
        digest: Some(digest),
        ..FunctionDescription::default()
    };
    if let Some(key) = &arguments.sign {
        sign(&mut description, &digest, key)?;
    }
    Ok(description)
}

async fn put(global: &GlobalArgs, output: Output, arguments: &FunctionPutArgs) -> Outcome {
    let path = function_path(global, &arguments.path)?;
    let code = read_file(&arguments.file, FUNCTION_CODE_MAX)?;
    let description = description(arguments, &code)?;
    let (client, _) = client(global)?;
    let (mode, replace) = (arguments.mode, !arguments.no_replace);
    let publication = FunctionPublication { description, mode, replace, method: METHOD };
    let stored = store(&client, output, &path, &code, &publication, !arguments.no_copies).await?;
    output.done(&stored)
}

/// Stores code as a function, with copies on active devices; returns its JSON.
pub(super) async fn store(
    client: &Client,
    output: Output,
    path: &FilePath,
    code: &[u8],
    publication: &FunctionPublication,
    has_copies: bool,
) -> Outcome<Value> {
    if is_in_library(path) {
        // All users find functions there; its owner decides who stores some.
        client.mkdir(LIBRARY, true, 0o755).await.map_err(|error| Failure::from(error).at(LIBRARY))?;
    }
    client.put_function(path, code, publication).await.map_err(|error| Failure::from(error).at(path))?;
    let copies = if has_copies { copy_to_all(client, output, path).await? } else { 0 };
    let found = client.function(path, METHOD).await.map_err(|error| at_function(error, path))?;
    let signed = if found.description.signature.is_some() { ", signed" } else { "" };
    output.remark(format!(
        "stored {path} ({}{signed}) with copies on {} devices",
        human_bytes(code.len() as u64),
        copies + 1
    ));
    Ok(value(path, &found))
}

/// Makes the copies on active devices; a device that does not answer is reported, not fatal.
async fn copy_to_all(client: &Client, output: Output, path: &FilePath) -> Outcome<usize> {
    let devices = client.device_list().await?;
    let active: Vec<_> = devices.iter().filter(|device| device.state == DeviceState::Active).collect();
    let bar = output.counting(active.len() as u64, "copies");
    let mut made = 0;
    for device in active {
        match client.copy_function(path, &[device.id], METHOD).await {
            Ok(count) => made += count,
            Err(error @ (FunctionError::NoCopy { .. } | FunctionError::DigestMismatch { .. })) => {
                return Err(at_function(error, path));
            }
            Err(error) => {
                let failure = Failure::from(error).at(&device.name);
                if failure.fatal {
                    return Err(failure);
                }
                output
                    .complain(&format!("no copy was made: {failure}; the first run on the device makes it"));
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(made)
}

async fn copy(global: &GlobalArgs, output: Output, function: &OsStr) -> Outcome {
    let path = function_path(global, function)?;
    let (client, _) = client(global)?;
    client.function(&path, METHOD).await.map_err(|error| at_function(error, &path))?;
    let made = copy_to_all(&client, output, &path).await?;
    output.remark(format!("made {made} copies of {path}"));
    let mut value = json!({ "copies": made });
    set_bytes(&mut value, "path", &path);
    output.done(&value)
}

/// Returns the JSON of a function.
fn value(path: &FilePath, found: &FunctionDetails) -> Value {
    let description = &found.description;
    let api = description.api.map(|(lowest, highest)| json!([lowest.to_string(), highest.to_string()]));
    let copies: Vec<Value> =
        found.copies.iter().map(|(id, name)| json!({ "id": id.0, "device": name })).collect();
    let mut value = json!({
        "engine": description.engine.map(|engine| engine.name()), "api": api, "version": description.version,
        "publisher": description.publisher, "publisher_key": description.publisher_key.map(|key| hex(&key)),
        "signed": description.signature.is_some(), "manifest": description.manifest,
        "digest": found.digest.map(|digest| hex(&digest)), "size": found.stat.size,
        "mode": format!("{:04o}", found.stat.mode), "owner": found.stat.owner.as_str(), "copies": copies,
    });
    set_bytes(&mut value, "path", path);
    value
}

async fn ls(global: &GlobalArgs, output: Output, path: Option<&OsStr>) -> Outcome {
    let directory = match path {
        Some(path) => global.bytes(path)?,
        None => LIBRARY.as_bytes().to_vec(),
    };
    let (client, _) = client(global)?;
    let entries = match client.list(&directory)?.collect().await {
        Ok(entries) => entries,
        // Nothing was stored there yet.
        Err(error) if error.is_not_found() && path.is_none() => Vec::new(),
        Err(error) => return Err(Failure::from(error).at(shown(&directory))),
    };
    let mut found = Vec::new();
    for entry in
        entries.iter().filter(|entry| entry.stat.as_ref().is_none_or(|stat| stat.kind == FileKind::File))
    {
        let separator: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
        let whole = [&directory[..], separator, entry.name.as_bytes()].concat();
        let path = FilePath::new(&whole).map_err(|error| Failure::usage(error).at(shown(&whole)))?;
        match client.function(&path, METHOD).await {
            Ok(function) => found.push((entry.name.clone(), path, function)),
            Err(FunctionError::NotDescribed { .. }) => {}
            Err(error) => {
                let failure = Failure::from(error).at(&path);
                if failure.fatal {
                    return Err(failure);
                }
                output.complain(&failure.to_string());
            }
        }
    }
    let values: Vec<Value> = found.iter().map(|(_, path, function)| value(path, function)).collect();
    output.result(&json!({ "functions": values }), || {
        let lines: Vec<String> = found
            .iter()
            .map(|(name, _, function)| {
                let description = &function.description;
                let engine = description.engine.map_or("?", |engine| engine.name());
                format!(
                    "{:20} {engine:7} {:>10}  {:2} copies  {} {}",
                    name.shown(),
                    human_bytes(function.stat.size),
                    function.copies.len(),
                    description.version,
                    description.publisher,
                )
                .trim_end()
                .to_owned()
            })
            .collect();
        if lines.is_empty() {
            "no functions; `sealstone fn install` stores the shipped ones, `sealstone fn put` another"
                .to_owned()
        } else {
            lines.join("\n")
        }
    })
}

async fn show(global: &GlobalArgs, output: Output, function: &OsStr) -> Outcome {
    let path = function_path(global, function)?;
    let (client, _) = client(global)?;
    let found = client.function(&path, METHOD).await.map_err(|error| at_function(error, &path))?;
    output.result(&value(&path, &found), || {
        let description = &found.description;
        let api = description.api.map_or_else(
            || "any".to_owned(),
            |(lowest, highest)| {
                if lowest == highest { lowest.to_string() } else { format!("{lowest} to {highest}") }
            },
        );
        let signed = description.publisher_key.map_or_else(|| "no".to_owned(), |key| hex(&key));
        let devices: Vec<&str> = found.copies.iter().map(|(_, name)| name.as_str()).collect();
        let digest = found.digest.map_or_else(
            || "none: changed since it was stored, so it cannot run".to_owned(),
            |digest| hex(&digest),
        );
        let mut lines = vec![
            format!("function   {path}"),
            format!("engine     {}, API {api}", description.engine.map_or("?", |engine| engine.name())),
            format!("size       {}", human_bytes(found.stat.size)),
            format!("digest     {digest}"),
            format!("version    {}", description.version),
            format!("publisher  {}", description.publisher),
            format!("signed by  {signed}"),
            format!("copies     {}", devices.join(", ")),
        ];
        if !description.manifest.is_empty() {
            lines.push(format!("\n{}", description.manifest.trim_end()));
        }
        lines.join("\n")
    })
}

async fn remove(global: &GlobalArgs, output: Output, functions: &[OsString]) -> Outcome {
    let paths: Vec<FilePath> =
        functions.iter().map(|function| function_path(global, function)).collect::<Outcome<_>>()?;
    let (client, _) = client(global)?;
    let results = for_each(output, &paths, async |path| {
        // A mistyped path must not remove data.
        client.function(path, METHOD).await.map_err(|error| at_function(error, path))?;
        client.remove(path, false).await.map_err(|error| Failure::from(error).at(path))?;
        output.remark(format!("removed {path}"));
        Ok(())
    })
    .await?;
    let removed = results.done.len();
    results.finish(json!({ "removed": removed }))
}

async fn engines(global: &GlobalArgs, output: Output) -> Outcome {
    let (client, _) = client(global)?;
    let (mut values, mut lines) = (Vec::new(), Vec::new());
    for device in client.device_list().await? {
        let name = device.name.shown().into_owned();
        let found = match client.device_engines(device.id, METHOD).await {
            Ok(found) => found,
            Err(error) => {
                let failure = Failure::from(error);
                if failure.fatal {
                    return Err(failure);
                }
                lines.push(format!("{name:16} {failure}"));
                values.push(json!({ "id": device.id.0, "device": name, "error": failure.message }));
                continue;
            }
        };
        if found.is_empty() {
            lines.push(format!("{name:16} runs no functions"));
        }
        let engines: Vec<Value> = found
            .iter()
            .map(|one| {
                let entry = &one.entry;
                let state = if entry.available { "available".to_owned() } else { format!("unavailable: {}", entry.detail) };
                lines.push(format!(
                    "{name:16} {:7} API {} to {}  {}  {state}",
                    one.engine.name(),
                    entry.api_lowest,
                    entry.api_highest,
                    entry.version
                ));
                json!({
                    "engine": one.engine.name(), "available": entry.available, "version": entry.version,
                    "api": [entry.api_lowest.to_string(), entry.api_highest.to_string()], "detail": entry.detail,
                })
            })
            .collect();
        values.push(json!({ "id": device.id.0, "device": name, "engines": engines }));
    }
    output.result(&json!({ "devices": values }), || lines.join("\n"))
}
