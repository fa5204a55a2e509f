//! Location of the metadata store, and `mds join`, `mds export` and `mds import`.

use sealstone_failure::text::{ShownPath as _, hex, human_bytes, set_path, with_paths};
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_server::{Environment, Location, PasswordSource, TransferReport, UNAVAILABLE_WAIT_S};
use sealstone_metadata_server::{setup_failure, transfer_failure};

use super::keystore;
use crate::cli::store::{ExportArgs, ImportArgs, JoinArgs, MetaArgs};
use crate::config::MdsOptions;
use crate::output::Output;

/// Returns the location in the arguments; `None` if it is the one in the data folder.
pub(crate) fn location(meta: &MetaArgs) -> Outcome<Option<Location>> {
    let Some(url) = &meta.meta else {
        let alone = [
            ("--meta-ca-file", meta.meta_ca_file.is_some()),
            ("--meta-password-file", meta.meta_password_file.is_some()),
            ("--meta-credential", meta.meta_credential.is_some()),
            ("--insecure-meta", meta.insecure_meta),
            ("--meta-wait-s-max", meta.meta_wait_s_max.is_some()),
        ];
        return match alone.iter().find(|(_, is_there)| *is_there) {
            Some((flag, _)) => Err(Failure::usage(format!("{flag} requires --meta"))),
            None => Ok(None),
        };
    };
    if meta.meta_wait_s_max.is_some_and(|seconds| !UNAVAILABLE_WAIT_S.contains(&seconds)) {
        let (least, most) = (UNAVAILABLE_WAIT_S.start(), UNAVAILABLE_WAIT_S.end());
        return Err(Failure::usage(format!("--meta-wait-s-max must be {least} to {most} seconds")));
    }
    Ok(Some(Location {
        url: url.clone(),
        ca_file: meta.meta_ca_file.clone(),
        password: match (&meta.meta_password_file, &meta.meta_credential) {
            (Some(file), _) => PasswordSource::File(file.clone()),
            (None, Some(name)) => PasswordSource::Credential(name.clone()),
            (None, None) => PasswordSource::Environment,
        },
        insecure: meta.insecure_meta,
        unavailable_wait_s: meta.meta_wait_s_max,
    }))
}

/// Returns the location in the options of a daemon.
pub(crate) fn location_of(options: &MdsOptions) -> Outcome<Option<Location>> {
    if options.meta_password_file.is_some() && options.meta_credential.is_some() {
        return Err(Failure::usage("use either meta_password_file or meta_credential"));
    }
    location(&MetaArgs {
        meta: options.meta.clone().map(Into::into),
        meta_ca_file: options.meta_ca_file.clone(),
        meta_password_file: options.meta_password_file.clone(),
        meta_credential: options.meta_credential.clone(),
        insecure_meta: options.insecure_meta.unwrap_or(false),
        meta_wait_s_max: options.meta_wait_s_max,
    })
}

/// `sealstone mds join`.
pub(crate) fn join(output: Output, arguments: &JoinArgs) -> Outcome {
    let JoinArgs { data, from } = arguments;
    sealstone_mds_server::join(from, data).map_err(setup_failure)?;
    output.remark(format!(
        "created a metadata server in {} with the database of {}",
        data.shown(),
        from.shown()
    ));
    output.done(&with_paths(serde_json::json!({}), [("data", data), ("from", from)]))
}

/// Returns an exported file as `--json` prints it.
fn report_json(report: &TransferReport) -> serde_json::Value {
    serde_json::json!({
        "file": null, "data": null, "records": report.records, "bytes": report.bytes, "version": report.version,
        "server_id": hex(&report.server_id), "blake3": hex(&report.blake3),
    })
}

/// `sealstone mds export`.
pub(crate) fn export(output: Output, arguments: &ExportArgs) -> Outcome {
    let ExportArgs { file, data } = arguments;
    let bar = output.progress(None, "exporting");
    let report = sealstone_mds_server::export(data, file, &mut |_, bytes| bar.set_position(bytes))
        .map_err(|error| transfer_failure(error, data))?;
    bar.finish_and_clear();
    output.remark(format!("{}: {} records, {}", file.shown(), report.records, human_bytes(report.bytes)));
    let mut value = report_json(&report);
    set_path(&mut value, "file", file);
    output.done(&value)
}

/// `sealstone mds import`.
pub(crate) fn import(output: Output, arguments: &ImportArgs) -> Outcome {
    let ImportArgs { file, data, meta, keystore: seal } = arguments;
    let Some(data) = data else {
        let report =
            sealstone_mds_server::verify_export(file).map_err(|error| transfer_failure(error, file))?;
        output.remark(format!("{} is complete: {} records", file.shown(), report.records));
        let mut value = report_json(&report);
        set_path(&mut value, "file", file);
        return output.done(&value);
    };
    let (location, unlock) = (location(meta)?, keystore::unlock(seal)?);
    let whole = sealstone_mds_server::verify_export(file).map_err(|error| transfer_failure(error, data))?;
    let bar = output.progress(Some(whole.bytes), "importing");
    let report = sealstone_mds_server::import(
        file,
        data,
        location.as_ref(),
        &unlock,
        &Environment::system(),
        &mut |_, bytes| bar.set_position(bytes),
    )
    .map_err(|error| transfer_failure(error, data))?;
    bar.finish_and_clear();
    output.remark(format!("{}: {} records imported and verified", data.shown(), report.records));
    let mut value = report_json(&report);
    set_path(&mut value, "file", file);
    set_path(&mut value, "data", data);
    output.done(&value)
}
