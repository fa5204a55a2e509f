//! Code of functions in local files: its engine, description and signature.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use sealstone_client::functions::{FUNCTION_CODE_MAX, FunctionDescription};
use sealstone_crypto::signature::PublisherKey;
use sealstone_failure::text::ShownPath as _;
use sealstone_failure::{Failure, Outcome, secret_file};
use sealstone_java_archive::JavaArchive;
use sealstone_osd::function::attributes::{MANIFEST_MAX, signed_message};
use sealstone_osd::function::{ApiVersion, EngineType};
use sealstone_wasm_module::ModuleSummary;
use zeroize::Zeroizing;

/// Code of a function in a local file, and what describes it.
#[derive(Clone, Debug)]
pub struct FunctionSource {
    /// File with the code.
    pub file: PathBuf,
    /// Engine that runs it; by its first bytes or its extension without it.
    pub engine: Option<EngineType>,
    /// Lowest and highest API version.
    pub api: (ApiVersion, ApiVersion),
    /// File with the manifest.
    pub manifest: Option<PathBuf>,
    /// Version of the implementation.
    pub version: String,
    /// Name of the publisher.
    pub publisher: String,
    /// File with the private key of the publisher, which signs code and description.
    pub sign: Option<PathBuf>,
}

impl FunctionSource {
    /// Reads the code; returns it with its description, signed if there is a key.
    ///
    /// # Errors
    /// A file is unreadable or too long, or the engine would refuse the code.
    pub fn read(&self) -> Outcome<(Vec<u8>, FunctionDescription)> {
        let (code, engine) = read_code(&self.file, self.engine)?;
        let manifest = match &self.manifest {
            Some(path) => String::from_utf8(read_file(path, MANIFEST_MAX)?)
                .map_err(|_| Failure::usage("the manifest is not UTF-8").at(path.shown()))?,
            None => String::new(),
        };
        let digest = *blake3::hash(&code).as_bytes();
        let mut description = FunctionDescription {
            engine: Some(engine),
            api: Some(self.api),
            version: self.version.clone(),
            publisher: self.publisher.clone(),
            manifest,
            digest: Some(digest),
            ..FunctionDescription::default()
        };
        if let Some(path) = &self.sign {
            let key = PublisherKey::from_seed(&*read_publisher_key(path)?);
            // The signature covers the description.
            description.signature = Some(key.sign(&signed_message(&digest, &description)));
            description.publisher_key = Some(key.public());
        }
        Ok((code, description))
    }
}

/// Reads the code of a function; returns it with its engine: the given one, or that of its first
/// bytes or of the extension of its file.
///
/// # Errors
/// The file is unreadable or too long, or the engine would refuse the code.
pub fn read_code(file: &Path, engine: Option<EngineType>) -> Outcome<(Vec<u8>, EngineType)> {
    let code = read_file(file, FUNCTION_CODE_MAX)?;
    let engine = engine_of(file, engine, &code)?;
    Ok((code, engine))
}

/// Reads a local file of at most `max` bytes.
fn read_file(path: &Path, max: usize) -> Outcome<Vec<u8>> {
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
    let decoded = std::str::from_utf8(bytes.trim_ascii()).ok().and_then(secret_file::from_hex);
    let key = decoded.and_then(|decoded| <[u8; 32]>::try_from(&decoded[..]).ok());
    key.map(Zeroizing::new)
        .ok_or_else(|| Failure::usage("not a publisher key: 32 bytes, or 64 hex digits").at(path.shown()))
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
fn engine_of(file: &Path, named: Option<EngineType>, code: &[u8]) -> Outcome<EngineType> {
    let refuse = |text: String| Failure::usage(text).at(file.shown());
    let recognized = recognized_engine(code);
    let engine = match (named, recognized) {
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

/// Parses an API version such as 1.0, or the lowest and highest as 1.0-1.2.
///
/// # Errors
/// The text is no version, or the lowest is above the highest.
pub fn parse_api_range(text: &str) -> Result<(ApiVersion, ApiVersion), String> {
    let fail = || format!("'{text}' is not an API version such as 1.0, or a range such as 1.0-1.2");
    let one = |text: &str| {
        let (major, minor) = text.split_once('.')?;
        Some(ApiVersion { major: major.parse().ok()?, minor: minor.parse().ok()? })
    };
    let (lowest, highest) = text.split_once('-').unwrap_or((text, text));
    let range = (one(lowest).ok_or_else(fail)?, one(highest).ok_or_else(fail)?);
    if range.0 <= range.1 { Ok(range) } else { Err(fail()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_versions_parse_as_range() {
        let version = |major, minor| ApiVersion { major, minor };
        assert_eq!(parse_api_range("1.0"), Ok((version(1, 0), version(1, 0))));
        assert_eq!(parse_api_range("1.0-2.3"), Ok((version(1, 0), version(2, 3))));
        for bad in ["1", "2.0-1.0", "a.b", "1.0-", "1.65536"] {
            assert!(parse_api_range(bad).is_err(), "{bad}");
        }
    }
}
