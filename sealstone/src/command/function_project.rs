//! `sealstone fn new`: writes a project for a new function.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use sealstone_failure::text::{ShownPath as _, set_bytes};
use sealstone_failure::{Failure, Outcome};
use sealstone_functions::template::{TemplateError, TemplateLanguage, write_project};
use serde_json::json;

use crate::cli::functions::{FunctionProjectArgs, LanguageName};
use crate::output::Output;

/// Returns the failure of a project that cannot be written.
fn template_failure(error: TemplateError) -> Failure {
    match error {
        TemplateError::Write { path, source } => Failure::from(source).at(path.shown()),
        error @ TemplateError::Name { .. } => Failure::usage(error).hint("`--name` sets another name"),
        error @ TemplateError::SdkPath { .. } => Failure::usage(error),
    }
}

/// Returns the name of the folder as the name of the function.
fn folder_name(folder: &Path) -> Outcome<String> {
    let absolute = std::path::absolute(folder).map_err(|error| Failure::from(error).at(folder.shown()))?;
    absolute.file_name().and_then(OsStr::to_str).map(str::to_owned).ok_or_else(|| {
        Failure::usage("the folder has no name for the function").at(folder.shown()).hint("`--name` sets one")
    })
}

/// `sealstone fn new`.
pub(crate) fn create(output: Output, arguments: &FunctionProjectArgs) -> Outcome {
    let FunctionProjectArgs { folder, language, name, sdk } = arguments;
    let name = name.clone().map_or_else(|| folder_name(folder), Ok)?;
    if sdk.is_some() && *language != LanguageName::Rust {
        return Err(Failure::usage("--sdk is an option of --lang rust"));
    }
    // The path in the manifest is used from the folder of the project.
    let absolute = |sdk: &Path| sdk.canonicalize().map_err(|error| Failure::from(error).at(sdk.shown()));
    let sdk = sdk.as_deref().map(absolute).transpose()?;
    let (code, build) = match language {
        LanguageName::C => ("c", "make"),
        LanguageName::Rust => ("rust", "cargo build --release"),
        LanguageName::Java => ("java", "make"),
        LanguageName::Python => ("python", "make"),
    };
    let language = TemplateLanguage::from(*language);
    let files = write_project(folder, language, &name, sdk.as_deref()).map_err(template_failure)?;
    let mut value = json!({ "function": name, "language": code, "files": files });
    set_bytes(&mut value, "path", folder.as_os_str().as_bytes());
    output.result(&value, || {
        format!("created function {name} in {}; build it there with `{build}`", folder.shown())
    })
}
