//! Configuration of the iSCSI target of a device.

use std::net::SocketAddr;
use std::time::Duration;

use sealstone_channel::TlsIdentity;
use sealstone_failure::{Failure, Outcome};
use sealstone_iscsi_target::{CommandPacing, ConnectionRate, ListenerTls, TargetConfig, TlsMode};

use crate::config::{DeviceServerConfig, PortalTls};
use crate::identity;

/// Burst of new connections of one address, as a multiple of those per second.
const CONNECTS_BURST: u32 = 4;
/// Unsolicited bytes of a write if the data of writes is limited.
const PULL_FIRST_BURST: u32 = 64 * 1024;

/// Returns the configuration of the target; `tls` is the mode of the portal and its certificate.
pub(crate) fn target_config(
    config: &DeviceServerConfig,
    target_name: &str,
    tls: Option<(PortalTls, &TlsIdentity)>,
) -> Outcome<TargetConfig> {
    let mut target = TargetConfig::new(target_name.to_owned());
    target.connections_max = config.connections_max;
    // A sixteenth is reserved for other addresses.
    let fair = target.connections_max - target.connections_max / 16;
    target.connections_per_source_max = config.connections_per_address_max.unwrap_or(fair);
    let per_second = config.connects_per_address_s_max;
    let burst = per_second.saturating_mul(CONNECTS_BURST);
    target.connection_rate_per_source = ConnectionRate { burst, per_second };
    target.logins_per_source_max = config.logins_per_address_max;
    target.memory_max = config.buffer_mib_max.saturating_mul(1 << 20);
    // Long commands of one address use half of the processors; short commands of all clients
    // have the others.
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    target.long_per_source_max = (cores / 2).max(1);
    // An address that does not read its responses can hold half of the buffers.
    let longest = (target.protocol.data_out_max as usize).next_power_of_two();
    target.memory_per_source_max = (target.memory_max / 2).max(longest).min(target.memory_max);
    target.memory_per_connection_max = target.memory_per_connection_max.min(target.memory_max);
    target.protocol.ping_after_ms = config.idle_s_max.saturating_mul(1000);
    target.protocol.login_timeout_ms = config.login_s_max.saturating_mul(1000);
    target.tls = tls.map(|(tls, own)| portal_tls(tls, own, config)).transpose()?;
    let pdu_ms = config.pdu_s_max.saturating_mul(1000);
    target.protocol.pdu_timeout_ms = pdu_ms;
    target.protocol.transfer_timeout_ms = pdu_ms;
    target.drain_seconds = config.drain_s_max;
    target.pace = CommandPacing { short_first: config.short_first, slices: config.time_slices };
    if config.pull_kib > 0 {
        target.protocol.pull_bytes = Some(config.pull_kib.saturating_mul(1024));
        target.protocol.policy.first_burst = PULL_FIRST_BURST;
    }
    target.protocol.allow_target_reset = config.allow_target_reset;
    Ok(target)
}

/// Returns the TLS mode of a portal at this address.
pub(crate) fn listener_tls(config: &DeviceServerConfig, address: SocketAddr) -> Outcome<PortalTls> {
    let here = address.ip().to_canonical().is_loopback();
    let tls = config.tls.unwrap_or(if here { PortalTls::Optional } else { PortalTls::Required });
    if tls == PortalTls::Off && !here && !config.insecure_no_tls {
        return Err(Failure::usage("TLS can be off on loopback addresses only")
            .at(format!("listen {address}"))
            .hint("omit --tls; --insecure-no-tls allows plain text"));
    }
    if tls != PortalTls::Required && !here {
        tracing::warn!(tls = tls.name(), "clients that do not start TLS are served in plain text");
    }
    Ok(tls)
}

/// Returns the TLS configuration of the portal.
fn portal_tls(tls: PortalTls, own: &TlsIdentity, config: &DeviceServerConfig) -> Outcome<ListenerTls> {
    Ok(ListenerTls {
        mode: if tls == PortalTls::Required { TlsMode::Required } else { TlsMode::Optional },
        timeout: Duration::from_secs(config.login_s_max),
        server: identity::server(own, &config.data)?,
    })
}
