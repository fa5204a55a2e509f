//! LDAP directory of users and groups, from the configuration of the metadata server; `mds
//! directory`.

use std::time::Duration;

use sealstone_failure::{Failure, FailureKind, Outcome, chain, secret_file};
use sealstone_mds::{Config, DirectoryLookup, DirectoryRoles};
use sealstone_mds_protocol::GroupName;
use sealstone_mds_server::{DirectorySettings, LdapDirectory, systemd_credential};
use zeroize::Zeroizing;

use crate::config::MdsOptions;
use crate::output::Output;

/// Returns the directory, if one is configured, and adds its roles and times to the policy of the
/// server.
pub(crate) fn configured(options: &MdsOptions, policy: &mut Config) -> Outcome<Option<LdapDirectory>> {
    let Some(url) = &options.directory_url else {
        return match alone(options) {
            Some(key) => Err(Failure::usage(format!("{key} requires directory_url")).at("configuration")),
            None => Ok(None),
        };
    };
    let needed = |value: &Option<String>, key: &str| {
        value.clone().ok_or_else(|| Failure::usage(format!("directory_url requires {key}")))
    };
    let mut settings = DirectorySettings::new(
        url,
        &needed(&options.directory_user_base, "directory_user_base")?,
        &needed(&options.directory_group_base, "directory_group_base")?,
    );
    let set = |value: &Option<String>, place: &mut String| {
        if let Some(value) = value {
            place.clone_from(value);
        }
    };
    set(&options.directory_user_filter, &mut settings.user_filter);
    set(&options.directory_user_attribute, &mut settings.user_attribute);
    set(&options.directory_id_attribute, &mut settings.id_attribute);
    set(&options.directory_group_filter, &mut settings.group_filter);
    set(&options.directory_group_attribute, &mut settings.group_attribute);
    if let Some(names) = &options.directory_member_attributes {
        settings.member_attributes = list(names);
    }
    if let Some(names) = &options.directory_member_name_attributes {
        settings.member_name_attributes = list(names);
    }
    settings.ca_file.clone_from(&options.directory_ca_file);
    settings.insecure = options.insecure_directory.unwrap_or(false);
    settings.bind = bind(options)?;
    if let Some(seconds) = options.directory_timeout_s_max {
        settings.timeout = Duration::from_secs(seconds.get());
    }
    let ms = |seconds: Option<core::num::NonZeroU64>, default| {
        seconds.map_or(default, |seconds| seconds.get().saturating_mul(1000))
    };
    policy.directory_age_ms = ms(options.directory_age_s_max, policy.directory_age_ms);
    policy.directory_grace_ms = ms(options.directory_grace_s_max, policy.directory_grace_ms);
    if policy.directory_grace_ms < policy.directory_age_ms {
        // Sessions would end before the next look-up.
        return Err(Failure::usage("directory_grace_s_max is less than directory_age_s_max"));
    }
    let group = |name: &Option<String>, key: &str| {
        let name = name.as_ref().map(|name| GroupName::new(name.as_str())).transpose();
        name.map_err(|error| Failure::usage(format!("invalid name of a group: {}", chain(&error))).at(key))
    };
    policy.directory_roles = DirectoryRoles {
        admin: group(&options.directory_admin_group, "directory_admin_group")?,
        operator: group(&options.directory_operator_group, "directory_operator_group")?,
        user: group(&options.directory_user_group, "directory_user_group")?,
        read_only: group(&options.directory_read_only_group, "directory_read_only_group")?,
    };
    let directory = LdapDirectory::new(settings).map_err(|error| {
        Failure::usage(error).hint("see docs/how-to/users.md, or `sealstone config example mds`")
    })?;
    if directory.is_exposed() {
        tracing::warn!(
            "--insecure-directory: a man in the middle can read the bind password and forge group memberships"
        );
    }
    Ok(Some(directory))
}

/// `sealstone mds directory`.
pub(crate) fn ask(output: Output, name: &str, options: &MdsOptions) -> Outcome {
    let mut policy = Config::default();
    let directory = configured(options, &mut policy)?;
    let directory = directory.ok_or_else(|| {
        Failure::usage("no directory is configured")
            .hint("use --config FILE, or --directory-url and the bases")
    })?;
    match directory.look_up_name(name) {
        Ok(DirectoryLookup::Entry(found)) => {
            let groups: Vec<&str> = found.groups.iter().map(GroupName::as_str).collect();
            let by_groups = !policy.directory_roles.is_empty();
            let role = policy.directory_roles.of(&found.groups);
            if by_groups && role.is_none() {
                let what = format!("in no group with a role; groups: {}", groups.join(", "));
                return Err(Failure::new(FailureKind::Denied, what)
                    .at(name)
                    .hint("check directory_user_group and the other role groups"));
            }
            let value = serde_json::json!({
                "user": name, "groups": groups, "role": role.map(|role| role.as_str()),
            });
            output.result(&value, || {
                let role = role.map_or("as created", |role| role.as_str());
                format!("{name}\ngroups: {}\nrole: {role}", groups.join(", "))
            })
        }
        Ok(DirectoryLookup::NotFound) => Err(Failure::new(FailureKind::NotFound, "not in the directory")
            .at(name)
            .hint("check directory_user_base, directory_user_filter and directory_user_attribute")),
        Ok(DirectoryLookup::Closed(mark)) => {
            Err(Failure::new(FailureKind::Denied, format!("account is locked in the directory ({mark})"))
                .at(name))
        }
        Err(error) => Err(Failure::operation(chain(&error)).at(name)),
    }
}

/// Returns the bind DN and its password, from a private file or a systemd credential.
fn bind(options: &MdsOptions) -> Outcome<Option<(String, Zeroizing<String>)>> {
    let secret = match (&options.directory_bind_password_file, &options.directory_bind_credential) {
        (Some(_), Some(_)) => {
            return Err(Failure::usage(
                "use either directory_bind_password_file or directory_bind_credential",
            ));
        }
        (Some(file), None) => Some(secret_file::read(file)?),
        (None, Some(name)) => {
            let bytes = systemd_credential(name).map_err(|error| {
                Failure::new(FailureKind::Denied, chain(&error)).at("directory_bind_credential")
            })?;
            let text = core::str::from_utf8(&bytes)
                .map_err(|_| Failure::usage("not UTF-8").at("directory_bind_credential"))?;
            Some(Zeroizing::new(text.to_owned()))
        }
        (None, None) => None,
    };
    match (&options.directory_bind_dn, secret) {
        (None, None) => Ok(None),
        (Some(dn), Some(secret)) => {
            let first = Zeroizing::new(secret.lines().next().unwrap_or_default().to_owned());
            Ok(Some((dn.clone(), first)))
        }
        _ => Err(Failure::usage("directory_bind_dn requires a password, and a password requires it")
            .hint("use directory_bind_password_file or directory_bind_credential")),
    }
}

fn list(names: &str) -> Vec<String> {
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(ToOwned::to_owned).collect()
}

/// Returns a key that is set, but requires a directory.
fn alone(options: &MdsOptions) -> Option<&'static str> {
    let there = [
        (options.directory_ca_file.is_some(), "directory_ca_file"),
        (options.directory_bind_dn.is_some(), "directory_bind_dn"),
        (options.directory_bind_password_file.is_some(), "directory_bind_password_file"),
        (options.directory_bind_credential.is_some(), "directory_bind_credential"),
        (options.directory_user_base.is_some(), "directory_user_base"),
        (options.directory_user_filter.is_some(), "directory_user_filter"),
        (options.directory_group_base.is_some(), "directory_group_base"),
        (options.directory_group_filter.is_some(), "directory_group_filter"),
        (options.directory_admin_group.is_some(), "directory_admin_group"),
        (options.directory_operator_group.is_some(), "directory_operator_group"),
        (options.directory_user_group.is_some(), "directory_user_group"),
        (options.directory_read_only_group.is_some(), "directory_read_only_group"),
    ];
    there.iter().find(|(there, _)| *there).map(|(_, key)| *key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> MdsOptions {
        MdsOptions {
            directory_url: Some("ldap://localhost".into()),
            directory_user_base: Some("ou=people".into()),
            directory_group_base: Some("ou=groups".into()),
            ..MdsOptions::default()
        }
    }

    fn message(options: &MdsOptions) -> String {
        configured(options, &mut Config::default())
            .err()
            .map(|failure| failure.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn directory_configuration_must_be_complete() {
        let mut policy = Config::default();
        assert!(configured(&MdsOptions::default(), &mut policy).expect("none").is_none());
        assert!(configured(&options(), &mut policy).expect("one").is_some());
        let half = MdsOptions { directory_admin_group: Some("admins".into()), ..MdsOptions::default() };
        assert!(message(&half).contains("directory_admin_group requires directory_url"));
        assert!(
            message(&MdsOptions { directory_user_base: None, ..options() }).contains("directory_user_base")
        );
        let elsewhere = MdsOptions { directory_url: Some("ldap://h".into()), ..options() };
        assert!(message(&elsewhere).contains("needs a CA file"), "{}", message(&elsewhere));
        let insecure = MdsOptions { insecure_directory: Some(true), ..elsewhere };
        assert_eq!(message(&insecure), "");
    }

    #[test]
    fn bind_password_is_read_from_private_file() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("ldap.pw");
        let dn = Some("cn=reader".to_owned());
        let with = |file: Option<std::path::PathBuf>| MdsOptions {
            directory_bind_dn: dn.clone(),
            directory_bind_password_file: file,
            ..options()
        };
        secret_file::write(&file, b"the password\nand more\n").expect("written");
        let found = bind(&with(Some(file.clone()))).expect("read").expect("a bind");
        assert_eq!((found.0.as_str(), found.1.as_str()), ("cn=reader", "the password"));
        assert!(message(&with(None)).contains("requires a password"));
        let nobody = MdsOptions { directory_bind_dn: None, ..with(Some(file.clone())) };
        assert!(message(&nobody).contains("requires a password"));
        let both = MdsOptions { directory_bind_credential: Some("c".into()), ..with(Some(file.clone())) };
        assert!(message(&both).contains("use either"));
        let credential = MdsOptions { directory_bind_credential: Some("../etc".into()), ..with(None) };
        assert!(message(&credential).contains("not a valid systemd credential name"));
        secret_file::write(&file, b"\n").expect("written");
        assert!(
            message(&with(Some(file.clone()))).contains("must not be empty"),
            "an empty password binds as nobody"
        );
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .expect("its mode");
        assert!(message(&with(Some(file))).contains("lets others read it"));
    }

    #[test]
    fn roles_and_times_reach_the_policy() {
        let seconds = core::num::NonZeroU64::new;
        let all = MdsOptions {
            directory_age_s_max: seconds(20),
            directory_grace_s_max: seconds(60),
            directory_admin_group: Some("storage-admins".into()),
            directory_member_attributes: Some("member, owner".into()),
            ..options()
        };
        let mut policy = Config::default();
        configured(&all, &mut policy).expect("configured");
        assert_eq!((policy.directory_age_ms, policy.directory_grace_ms), (20_000, 60_000));
        assert_eq!(policy.directory_roles.admin.as_ref().map(GroupName::as_str), Some("storage-admins"));
        assert!(
            message(&MdsOptions { directory_grace_s_max: seconds(19), ..all.clone() })
                .contains("is less than")
        );
        let blank = MdsOptions { directory_admin_group: Some("Storage Admins".into()), ..all.clone() };
        assert!(message(&blank).contains("directory_admin_group"));
        assert!(message(&MdsOptions { directory_timeout_s_max: seconds(21), ..all }).contains("1 to 20 s"));
    }
}
