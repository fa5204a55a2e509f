//! `sealstone osd …`.

use std::path::Path;

use sealstone_daemon::{AUDIT_FILE, MetricsPort};
use sealstone_device_server::{DeviceServer, StorePlace, create_device, new_key};
use sealstone_failure::text::{ShownPath as _, human_bytes, with_paths};
use sealstone_failure::{Failure, Outcome};

use crate::cli::{GlobalArgs, Osd};
use crate::command::maintenance;
use crate::config::{self, OsdOptions};
use crate::output::Output;

/// `sealstone osd …`.
pub(crate) fn command(global: &GlobalArgs, output: Output, command: Osd) -> Outcome {
    match command {
        Osd::Init { data, capacity, preallocate, device, force, name, key_out } => {
            let place = match (device, capacity) {
                (Some(path), capacity) => StorePlace::Raw { path, capacity, force },
                (None, Some(capacity)) => StorePlace::Files { capacity, preallocate },
                (None, None) => return Err(Failure::usage("a device in files requires --capacity")),
            };
            let made = create_device(&data, place, name.as_deref(), key_out.as_deref())?;
            if let Some(warning) = &made.warning {
                output.remark(warning);
            }
            let capacity = made.capacity;
            let value = serde_json::json!({
                "system_id": made.system_id, "name": made.name, "capacity": capacity, "pin": made.pin.to_string(),
                "warning": made.warning,
            });
            let value = with_paths(value, [("key", &made.key), ("data", &data)]);
            output.result(&value, || {
                format!(
                    "device {} of {} in {}\nsystem id {}\npin {} (of its certificate; must not be altered on the way to the metadata \
                     server)\ninitial key {} (secret: it is the device's master key)",
                    made.name,
                    human_bytes(capacity),
                    data.shown(),
                    made.system_id,
                    made.pin,
                    made.key.shown(),
                )
            })
        }
        Osd::NewKey { data, key_out } => {
            let (made, key) = new_key(&data, key_out.as_deref())?;
            output.remark(format!(
                "all keys of {} are void; add it again with `sealstone mds add-osd URL --key {}`",
                made.identity.name,
                key.shown()
            ));
            let value = serde_json::json!({ "name": made.identity.name });
            output.done(&with_paths(value, [("data", &data), ("key", &key)]))
        }
        Osd::Clock(command) => crate::command::clock::run(output, command, "device.toml"),
        Osd::Approve { device, show, wait } => {
            crate::command::block_on(crate::command::approve::run(global, output, &device, (show, wait)))
        }
        Osd::Drain(arguments) => crate::command::block_on(maintenance::drain(global, output, &arguments)),
        Osd::Rebalance(arguments) => {
            crate::command::block_on(maintenance::rebalance(global, output, &arguments))
        }
        Osd::Status { data } => maintenance::device_status(output, &data),
        Osd::Check { data, repair } => maintenance::check_device(output, &data, repair),
        Osd::Serve { data, config, options } => {
            let options = options.or(config::read(config.as_ref())?);
            super::run(serve(output, &data, &options))
        }
    }
}

async fn serve(output: Output, data: &Path, options: &OsdOptions) -> Outcome {
    let shutdown = super::shutdown_on_signals()?;
    let metrics = MetricsPort::bind(options.metrics.as_deref()).await?;
    let device = DeviceServer::start(options.device_config(data), &shutdown).await?;
    let metrics = metrics.serve(device.observed(), &shutdown);
    let (url, tls, pin) = (device.url(), device.tls().name(), device.pin());
    let value = serde_json::json!({
        "ready": "osd", "name": device.name(), "url": url, "address": device.address().to_string(), "tls": tls,
        "pin": pin.map(|pin| pin.to_string()), "time": device.time_server(),
        "metrics": metrics.map(|address| address.to_string()),
    });
    let value = with_paths(value, [("audit", &data.join(AUDIT_FILE))]);
    output.ready(&value, || match pin {
        Some(pin) => format!("ready {url}\npin {pin} (TLS {tls})"),
        None => format!("ready {url} (no TLS)"),
    });
    device.join().await
}
