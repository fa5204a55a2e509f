//! `sealstone mds …`.

use std::num::NonZeroU64;
use std::path::Path;
use std::time::Duration;

use sealstone_channel::Pin;
use sealstone_cluster::add_osd;
use sealstone_daemon::{AUDIT_FILE, MetricsPort};
use sealstone_device_server::identity;
use sealstone_failure::text::{ShownPath as _, with_paths};
use sealstone_failure::{Outcome, secret_file};
use sealstone_mds_protocol::DeviceState;
use sealstone_mds_server::ADMIN_SECRET_FILE;
use sealstone_metadata_server::{ADMIN, MetadataServer, MetadataServerConfig, create_metadata_server};

use super::{keystore, shutdown_on_signals};
use crate::cli::keys::{Keys, KeystoreArgs};
use crate::cli::{GlobalArgs, Mds};
use crate::command::session;
use crate::config::{self, MdsOptions};
use crate::output::Output;

/// `sealstone mds …`.
pub(crate) fn command(global: &GlobalArgs, output: Output, command: Mds) -> Outcome {
    match command {
        Mds::Init { data, keystore, meta } => {
            let protection = keystore::protection(&keystore)?;
            let location = super::store::location(&meta)?;
            let secret = create_metadata_server(&data, &protection, location.as_ref(), None)?;
            let value = serde_json::json!({ "admin": ADMIN });
            let value = with_paths(value, [("data", &data), ("admin_secret", &secret)]);
            output.result(&value, || {
                format!(
                    "metadata server in {}\nadministrator {ADMIN}, password in {}",
                    data.shown(),
                    secret.shown()
                )
            })
        }
        Mds::Serve { data, config, options } => {
            let options = options.or(config::read(config.as_ref())?);
            super::run(serve(output, &data, &options))
        }
        Mds::Directory { name, config, options } => {
            super::directory::look_up(output, &name, &options.or(config::read(config.as_ref())?))
        }
        Mds::IssueCertificate { data, key, out, days } => issue_certificate(output, &data, &key, &out, days),
        Mds::Clock(command) => crate::command::clock::run(output, command, identity::CERTIFICATE_FILE),
        Mds::Keys(Keys::List { device }) => {
            crate::command::block_on(crate::command::keys::list(global, output, device.as_deref()))
        }
        Mds::Keys(Keys::Rotate(arguments)) => {
            crate::command::block_on(crate::command::keys::rotate(global, output, &arguments))
        }
        Mds::Keys(Keys::Reseal { data, keystore, new }) => keystore::reseal(output, &data, &keystore, &new),
        Mds::Join(arguments) => super::store::join(output, &arguments),
        Mds::Export(arguments) => super::store::export(output, &arguments),
        Mds::Import(arguments) => super::store::import(output, &arguments),
        Mds::Backup(arguments) => keystore::backup(output, &arguments),
        Mds::Restore(arguments) => keystore::restore(output, &arguments),
        Mds::AddOsd { url, key, pin, certificate, speed, wait } => crate::command::block_on(async {
            let pin = match certificate {
                Some(path) => Some(Pin::certificate(&secret_file::read_public(&path)?)),
                None => pin,
            };
            let (client, _) = session::client(global)?;
            let device = add_osd(&client, &url, &key, pin, speed, wait).await?;
            let name = device.name.shown();
            let pending = device.state == DeviceState::Pending;
            output.remark(match device.state {
                DeviceState::Pending => format!(
                    "added {name}; it is not used until an administrator runs `sealstone osd approve {name}`"
                ),
                DeviceState::Draining => format!(
                    "{name} is being drained and takes no new objects; `sealstone osd drain {name} --undo` undoes that"
                ),
                _ => format!("{name} is active"),
            });
            let pin = pin.map(|pin| pin.to_string());
            output.done(&serde_json::json!({ "name": name, "url": url, "pin": pin, "pending": pending }))
        }),
    }
}

async fn serve(output: Output, data: &Path, options: &MdsOptions) -> Outcome {
    let shutdown = shutdown_on_signals()?;
    let metrics = MetricsPort::bind(options.metrics.as_deref()).await?;
    let server = MetadataServer::start(server_config(data, options)?, &shutdown).await?;
    let metrics = metrics.serve(server.observed(), &shutdown);
    let value = serde_json::json!({
        "ready": "mds", "address": server.address().to_string(), "pin": server.pin(),
        "metrics": metrics.map(|address| address.to_string()),
        "time": server.time_address().map(|address| address.to_string()),
        "insecure_paper_login": server.paper_address().map(|address| address.to_string()),
    });
    let (secret, audit) = (data.join(ADMIN_SECRET_FILE), data.join(AUDIT_FILE));
    let paths = [("cluster", server.cluster_file()), ("admin_secret", &secret), ("audit", &audit)];
    let value = with_paths(value, paths);
    output.ready(&value, || {
        let paper = server.paper_address().map_or_else(String::new, |address| {
            format!("\nINSECURE: the paper's login is served at {address}, over plain TCP")
        });
        let (address, pin) = (server.address(), server.pin());
        format!("ready {address} {pin}\nclients need {}{paper}", server.cluster_file().shown())
    });
    server.join().await
}

/// Returns the configuration of the server in a folder.
fn server_config(data: &Path, options: &MdsOptions) -> Outcome<MetadataServerConfig> {
    let default = MetadataServerConfig::new(data);
    let (mut policy, mut limits) = (default.policy, default.limits);
    policy.method_floor = options.method_floor.map_or(policy.method_floor, Into::into);
    let ms = |seconds: Option<NonZeroU64>, default| {
        seconds.map_or(default, |seconds: NonZeroU64| seconds.get().saturating_mul(1000))
    };
    policy.grant_lifetime_ms = ms(options.grant_s, policy.grant_lifetime_ms);
    policy.delegated_lifetime_ms = ms(options.delegated_s_max, policy.delegated_lifetime_ms);
    policy.issued_max = options.issued_max.unwrap_or(policy.issued_max);
    policy.working_key_age_ms = ms(options.working_key_age_s, policy.working_key_age_ms);
    policy.partition_key_age_ms = ms(options.partition_key_age_s, policy.partition_key_age_ms);
    if let Some(max) = options.credentials_per_key_max {
        policy.credentials_per_key_max = max.get();
    }
    if let Some(partitions) = options.file_partitions {
        policy.file_partitions = partitions.get();
    }
    policy.seal_capabilities = options.seal_capabilities.unwrap_or(policy.seal_capabilities);
    let seconds = |given: Option<u64>, default| given.map_or(default, Duration::from_secs);
    limits.login_timeout = seconds(options.login_s_max, limits.login_timeout);
    limits.frame_timeout = seconds(options.frame_s_max, limits.frame_timeout);
    limits.idle_timeout = seconds(options.idle_s_max, limits.idle_timeout);
    limits.connections_max = options.connections_max.unwrap_or(limits.connections_max);
    limits.carry_rate = options.carry_mib_s.map_or(limits.carry_rate, |mib| mib.saturating_mul(1 << 20));
    let unlock = keystore::unlock(&KeystoreArgs {
        keystore_key: options.keystore_key.clone(),
        passphrase_file: options.passphrase_file.clone(),
        keystore_credential: options.keystore_credential.clone(),
    })?;
    let directory = super::directory::config(options).directory(&mut policy)?;
    Ok(MetadataServerConfig {
        data: default.data,
        listen: options.listen.clone().unwrap_or(default.listen),
        advertise: options.advertise.clone(),
        time_listen: options.time_listen.clone(),
        time_source: options.time_source.clone(),
        time_key_file: options.time_key_file.clone(),
        insecure_time: options.insecure_time.unwrap_or(false),
        audit_mib_max: options.audit_mib_max.unwrap_or(default.audit_mib_max),
        chap_file: options.chap_file.clone(),
        policy,
        limits,
        keystore: unlock,
        location: super::store::location_of(options)?,
        directory,
        conceal_method: options.conceal_method.unwrap_or(false),
        insecure_paper_login: options.insecure_paper_login.clone(),
        accept_insecure: options.i_accept_insecure.unwrap_or(false),
    })
}

/// Issues a certificate for the device of a key file, into a folder.
fn issue_certificate(output: Output, data: &Path, key: &Path, out: &Path, days: u16) -> Outcome {
    let made = sealstone_cluster::issue_certificate(data, key, out, days)?;
    let authority = made.authority.map(|pin| pin.to_string());
    let value = serde_json::json!({
        "name": made.device, "certificate_name": made.name, "days": days, "authority": authority,
        "pin": made.pin.to_string(),
    });
    let value = with_paths(value, [("out", out)]);
    output.result(&value, || {
        format!(
            "certificate of {} for {days} days in {}\ncopy its files to the device's folder, and add the device with \
             --pin {}",
            made.device,
            out.shown(),
            authority.unwrap_or_default()
        )
    })
}
