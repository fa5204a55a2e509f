//! Functions that are stored with copies on the devices.

use sealstone_client::functions::{FunctionError, FunctionPublication};
use sealstone_client::{Client, FilePath, Method};
use sealstone_failure::text::human_bytes;
use sealstone_failure::{Failure, Outcome};
use sealstone_mds_protocol::DeviceState;
use serde_json::Value;

use crate::function_report::function_json;
use crate::library::{LIBRARY, at_function, is_in_library};
use crate::observer::RunObserver;

/// Stores a function. Creates [`LIBRARY`] for one in it.
///
/// # Errors
/// The user may not store it, or it exists and is not to be replaced.
pub async fn publish_function(
    client: &Client,
    path: &FilePath,
    code: &[u8],
    publication: &FunctionPublication,
) -> Outcome {
    if is_in_library(path) {
        // All users find functions there; its owner decides who stores some.
        client.mkdir(LIBRARY, true, 0o755).await.map_err(|error| Failure::from(error).at(LIBRARY))?;
    }
    client.put_function(path, code, publication).await.map_err(|error| Failure::from(error).at(path))?;
    Ok(())
}

/// Makes copies of a function on the active devices; returns their number. The observer receives a
/// warning about a device that does not answer.
///
/// # Errors
/// There is no such function, or its code changed.
pub async fn copy_to_devices(
    client: &Client,
    path: &FilePath,
    method: Method,
    observer: &dyn RunObserver,
) -> Outcome<usize> {
    let devices = client.device_list().await?;
    let active: Vec<_> = devices.iter().filter(|device| device.state == DeviceState::Active).collect();
    observer.begin(active.len() as u64, "copies");
    let mut made = 0;
    for device in active {
        match client.copy_function(path, &[device.id], method).await {
            Ok(count) => made += count,
            Err(error @ (FunctionError::NoCopy { .. } | FunctionError::DigestMismatch { .. })) => {
                return Err(at_function(error, path));
            }
            Err(error) => {
                let failure = Failure::from(error).at(&device.name);
                if failure.fatal {
                    return Err(failure);
                }
                observer.warn(&format!("no copy was made: {failure}; the first run on the device makes it"));
            }
        }
        observer.part_ended();
    }
    observer.end();
    Ok(made)
}

/// Stores a function, with copies on the active devices if `has_copies`; returns it as `--json`
/// prints it.
///
/// # Errors
/// The user may not store it, it exists and is not to be replaced, or its code changed meanwhile.
pub async fn store_function(
    client: &Client,
    path: &FilePath,
    code: &[u8],
    publication: &FunctionPublication,
    has_copies: bool,
    observer: &dyn RunObserver,
) -> Outcome<Value> {
    publish_function(client, path, code, publication).await?;
    let method = publication.method;
    let copies = match has_copies {
        true => copy_to_devices(client, path, method, observer).await?,
        false => 0,
    };
    let found = client.function(path, method).await.map_err(|error| at_function(error, path))?;
    let signed = if found.description.signature.is_some() { ", signed" } else { "" };
    observer.remark(&format!(
        "stored {path} ({}{signed}) with copies on {} devices",
        human_bytes(code.len() as u64),
        copies + 1
    ));
    Ok(function_json(path, &found))
}
