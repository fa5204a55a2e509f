//! Units of devices as text.

use sealstone_block::UnitProtection;
use sealstone_device_server::{ProtectionReport, UnitReport};
use sealstone_failure::text::human_bytes;

/// Returns a value of the unit's record; `-` if the record is damaged, and so the value unknown.
fn recorded(unit: &UnitReport, value: impl Into<String>) -> String {
    if unit.block_size == 0 { "-".to_owned() } else { value.into() }
}

/// Returns the write cache mode, and whether it is set for the unit.
const fn cache(unit: &UnitReport) -> &'static str {
    match (unit.write_through, unit.write_cache) {
        (true, _) => "write-through (set)",
        (false, false) => "write-through",
        (false, true) => "write-back",
    }
}

/// Returns the kind of provisioning.
const fn kind(unit: &UnitReport) -> &'static str {
    if unit.thin { "thin" } else { "thick" }
}

/// Returns the level, and the profile unless it is the default one.
fn protection(unit: &UnitReport) -> String {
    let default = UnitProtection::parse(&unit.protect).map(UnitProtection::profile);
    match unit.profile.as_deref() {
        Some(profile) if default.is_ok_and(|default| default.name() != profile) => {
            format!("{} ({profile})", unit.protect)
        }
        _ => unit.protect.clone(),
    }
}

/// Returns the protection of a unit as text.
#[must_use]
pub fn protection_text(status: &ProtectionReport) -> String {
    let mut rows = vec![
        ("name", status.name.clone()),
        ("protection", status.protect.clone()),
        ("available", if status.available { "yes" } else { "no" }.to_owned()),
    ];
    if let Some(reason) = &status.unavailable {
        rows.push(("reason", reason.clone()));
    }
    if let Some(profile) = &status.profile {
        let versions = format!("{} unverified, {} unverifiable", status.unverified, status.unverifiable);
        let window = format!(
            "oldest {} ms, p99 {} ms, longest {} ms",
            status.oldest_ms, status.window_p99_ms, status.window_max_ms
        );
        let log = format!("{} of {}", human_bytes(status.log_bytes), human_bytes(status.log_bytes_max));
        rows.extend([
            ("profile", profile.clone()),
            ("key epoch", status.key_epoch.to_string()),
            ("versions", versions),
            ("window", window),
            ("log", log),
            ("verified", format!("{} versions, {} writes at once", status.verified, status.eager)),
            ("rejected", format!("{} writes, {} refused at once", status.rejected, status.refused_writes)),
            ("busy", format!("{} writes", status.busy)),
            ("reports", format!("{} of intact blocks", status.false_reports)),
        ]);
    }
    rows.push(("damage", format!("{} failed commands", status.damaged)));
    let sessions = format!(
        "{} ended by forged bytes, {} malformed writes, {} refused logins (of the device)",
        status.sessions.forged, status.sessions.malformed_writes, status.sessions.refused_logins
    );
    rows.push(("sessions", sessions));
    let lines: Vec<String> = rows.iter().map(|(name, value)| format!("{name:11}  {value}")).collect();
    lines.join("\n")
}

/// Returns a unit as text.
#[must_use]
pub fn unit_text(unit: &UnitReport) -> String {
    let rows = [
        ("name", unit.name.clone()),
        ("LUN", unit.lun.to_string()),
        ("size", recorded(unit, human_bytes(unit.size))),
        ("used", human_bytes(unit.used)),
        ("block size", recorded(unit, unit.block_size.to_string())),
        ("kind", recorded(unit, kind(unit))),
        ("write cache", recorded(unit, cache(unit))),
        ("protection", protection(unit)),
        ("serial", recorded(unit, &unit.serial[..])),
        ("URL", unit.url.clone().unwrap_or_else(|| "-".to_owned())),
    ];
    let unavailable = unit.unavailable.clone().map(|reason| ("unavailable", reason));
    let lines: Vec<String> =
        rows.into_iter().chain(unavailable).map(|(name, value)| format!("{name:11}  {value}")).collect();
    lines.join("\n")
}

/// Returns units as a table.
#[must_use]
pub fn units_text(units: &[UnitReport]) -> String {
    if units.is_empty() {
        return "no block units".into();
    }
    let mut lines = vec![format!(
        "{:>3}  {:20} {:>10} {:>10} {:>5}  {:5}  {:19}  {:12}  {}",
        "LUN", "NAME", "SIZE", "USED", "BLOCK", "KIND", "CACHE", "PROTECTION", "URL"
    )];
    lines.extend(units.iter().map(|unit| {
        format!(
            "{:>3}  {:20} {:>10} {:>10} {:>5}  {:5}  {:19}  {:12}  {}",
            unit.lun,
            unit.name,
            recorded(unit, human_bytes(unit.size)),
            human_bytes(unit.used),
            recorded(unit, unit.block_size.to_string()),
            recorded(unit, kind(unit)),
            recorded(unit, cache(unit)),
            protection(unit),
            match (&unit.unavailable, &unit.url) {
                (Some(_), _) => "unavailable, see `block status`",
                (None, Some(url)) => url,
                (None, None) => "-",
            },
        )
    }));
    lines.join("\n")
}
