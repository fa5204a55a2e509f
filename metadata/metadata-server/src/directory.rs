//! LDAP directory of users and groups, from the configuration of the server.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use sealstone_failure::{Failure, FailureKind, Outcome, chain, secret_file};
use sealstone_mds::{Config, DirectoryLookup, DirectoryRoles};
use sealstone_mds_protocol::{GroupName, Role};
use sealstone_mds_server::{DirectorySettings, LdapDirectory, systemd_credential};
use serde_json::{Value, json};
use zeroize::Zeroizing;

/// Configuration of a directory of users and groups.
#[derive(Clone, Debug, Default)]
pub struct DirectoryConfig {
    /// URL of the directory; without it there is none.
    pub url: Option<String>,
    /// File with the certificate authority of the directory.
    pub ca_file: Option<PathBuf>,
    /// DN that searches the directory.
    pub bind_dn: Option<String>,
    /// Private file with the password of that DN.
    pub bind_password_file: Option<PathBuf>,
    /// Systemd credential with the password of that DN.
    pub bind_credential: Option<String>,
    /// Base DN of users.
    pub user_base: Option<String>,
    /// Filter of entries that are users.
    pub user_filter: Option<String>,
    /// Attribute with the name of a user.
    pub user_attribute: Option<String>,
    /// Attribute with the permanent id of a user.
    pub id_attribute: Option<String>,
    /// Base DN of groups.
    pub group_base: Option<String>,
    /// Filter of entries that are groups.
    pub group_filter: Option<String>,
    /// Attribute with the name of a group.
    pub group_attribute: Option<String>,
    /// Attributes with the DNs of members, separated by commas.
    pub member_attributes: Option<String>,
    /// Attributes with the names of members, separated by commas.
    pub member_name_attributes: Option<String>,
    /// Group of administrators.
    pub admin_group: Option<String>,
    /// Group of operators.
    pub operator_group: Option<String>,
    /// Group of users.
    pub user_group: Option<String>,
    /// Group of read-only users.
    pub read_only_group: Option<String>,
    /// Seconds between two look-ups of logged-in users.
    pub age_s_max: Option<NonZeroU64>,
    /// Seconds that a session is valid while the directory is unavailable.
    pub grace_s_max: Option<NonZeroU64>,
    /// Timeout of a request to the directory, seconds.
    pub timeout_s_max: Option<NonZeroU64>,
    /// Plain text to a directory beyond this machine is allowed.
    pub insecure: bool,
}

/// The entry of a user in the directory, and the role that its groups give.
#[derive(Clone, Debug)]
pub struct DirectoryUser {
    name: String,
    groups: Vec<GroupName>,
    role: Option<Role>,
}

impl DirectoryUser {
    fn groups(&self) -> Vec<&str> {
        self.groups.iter().map(GroupName::as_str).collect()
    }

    /// Returns the entry as `--json` prints it.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "user": self.name, "groups": self.groups(), "role": self.role.map(|role| role.as_str()) })
    }

    /// Returns the entry as text.
    #[must_use]
    pub fn text(&self) -> String {
        let role = self.role.map_or("as created", |role| role.as_str());
        format!("{}\ngroups: {}\nrole: {role}", self.name, self.groups().join(", "))
    }
}

impl DirectoryConfig {
    /// Looks a user up in the directory, as a login does.
    ///
    /// # Errors
    /// No directory is configured or it does not answer, or the user has no access.
    pub fn look_up(&self, name: &str) -> Outcome<DirectoryUser> {
        let mut policy = Config::default();
        let directory = self.directory(&mut policy)?.ok_or_else(|| {
            Failure::usage("no directory is configured")
                .hint("use --config FILE, or --directory-url and the bases")
        })?;
        match directory.look_up_name(name) {
            Ok(DirectoryLookup::Entry(found)) => {
                let by_groups = !policy.directory_roles.is_empty();
                let role = policy.directory_roles.of(&found.groups);
                let user = DirectoryUser { name: name.to_owned(), groups: found.groups, role };
                if by_groups && role.is_none() {
                    let what = format!("in no group with a role; groups: {}", user.groups().join(", "));
                    return Err(Failure::new(FailureKind::Denied, what)
                        .at(name)
                        .hint("check directory_user_group and the other role groups"));
                }
                Ok(user)
            }
            Ok(DirectoryLookup::NotFound) => Err(Failure::not_found("not in the directory")
                .at(name)
                .hint("check directory_user_base, directory_user_filter and directory_user_attribute")),
            Ok(DirectoryLookup::Closed(mark)) => {
                let what = format!("account is locked in the directory ({mark})");
                Err(Failure::new(FailureKind::Denied, what).at(name))
            }
            Err(error) => Err(Failure::operation(chain(&error)).at(name)),
        }
    }

    /// Returns the directory, if one is configured, and adds its roles and times to the policy of
    /// the server.
    ///
    /// # Errors
    /// The configuration is incomplete, or has keys that require others.
    pub fn directory(&self, policy: &mut Config) -> Outcome<Option<LdapDirectory>> {
        let Some(url) = &self.url else {
            return match alone(self) {
                Some(key) => Err(Failure::usage(format!("{key} requires directory_url")).at("configuration")),
                None => Ok(None),
            };
        };
        let needed = |value: &Option<String>, key: &str| {
            value.clone().ok_or_else(|| Failure::usage(format!("directory_url requires {key}")))
        };
        let mut settings = DirectorySettings::new(
            url,
            &needed(&self.user_base, "directory_user_base")?,
            &needed(&self.group_base, "directory_group_base")?,
        );
        let set = |value: &Option<String>, place: &mut String| {
            if let Some(value) = value {
                place.clone_from(value);
            }
        };
        set(&self.user_filter, &mut settings.user_filter);
        set(&self.user_attribute, &mut settings.user_attribute);
        set(&self.id_attribute, &mut settings.id_attribute);
        set(&self.group_filter, &mut settings.group_filter);
        set(&self.group_attribute, &mut settings.group_attribute);
        if let Some(names) = &self.member_attributes {
            settings.member_attributes = list(names);
        }
        if let Some(names) = &self.member_name_attributes {
            settings.member_name_attributes = list(names);
        }
        settings.ca_file.clone_from(&self.ca_file);
        settings.insecure = self.insecure;
        settings.bind = bind(self)?;
        if let Some(seconds) = self.timeout_s_max {
            settings.timeout = Duration::from_secs(seconds.get());
        }
        let ms = |seconds: Option<NonZeroU64>, default| {
            seconds.map_or(default, |seconds| seconds.get().saturating_mul(1000))
        };
        policy.directory_age_ms = ms(self.age_s_max, policy.directory_age_ms);
        policy.directory_grace_ms = ms(self.grace_s_max, policy.directory_grace_ms);
        if policy.directory_grace_ms < policy.directory_age_ms {
            // Sessions would end before the next look-up.
            return Err(Failure::usage("directory_grace_s_max is less than directory_age_s_max"));
        }
        let group = |name: &Option<String>, key: &str| {
            let name = name.as_ref().map(|name| GroupName::new(name.as_str())).transpose();
            name.map_err(|error| {
                Failure::usage(format!("invalid name of a group: {}", chain(&error))).at(key)
            })
        };
        policy.directory_roles = DirectoryRoles {
            admin: group(&self.admin_group, "directory_admin_group")?,
            operator: group(&self.operator_group, "directory_operator_group")?,
            user: group(&self.user_group, "directory_user_group")?,
            read_only: group(&self.read_only_group, "directory_read_only_group")?,
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
}

/// Returns the bind DN and its password, from a private file or a systemd credential.
fn bind(options: &DirectoryConfig) -> Outcome<Option<(String, Zeroizing<String>)>> {
    let secret = match (&options.bind_password_file, &options.bind_credential) {
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
    match (&options.bind_dn, secret) {
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
fn alone(options: &DirectoryConfig) -> Option<&'static str> {
    let there = [
        (options.ca_file.is_some(), "directory_ca_file"),
        (options.bind_dn.is_some(), "directory_bind_dn"),
        (options.bind_password_file.is_some(), "directory_bind_password_file"),
        (options.bind_credential.is_some(), "directory_bind_credential"),
        (options.user_base.is_some(), "directory_user_base"),
        (options.user_filter.is_some(), "directory_user_filter"),
        (options.group_base.is_some(), "directory_group_base"),
        (options.group_filter.is_some(), "directory_group_filter"),
        (options.admin_group.is_some(), "directory_admin_group"),
        (options.operator_group.is_some(), "directory_operator_group"),
        (options.user_group.is_some(), "directory_user_group"),
        (options.read_only_group.is_some(), "directory_read_only_group"),
    ];
    there.iter().find(|(there, _)| *there).map(|(_, key)| *key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> DirectoryConfig {
        DirectoryConfig {
            url: Some("ldap://localhost".into()),
            user_base: Some("ou=people".into()),
            group_base: Some("ou=groups".into()),
            ..DirectoryConfig::default()
        }
    }

    fn message(options: &DirectoryConfig) -> String {
        options.directory(&mut Config::default()).err().map(|failure| failure.to_string()).unwrap_or_default()
    }

    #[test]
    fn directory_configuration_must_be_complete() {
        let mut policy = Config::default();
        assert!(DirectoryConfig::default().directory(&mut policy).expect("none").is_none());
        assert!(options().directory(&mut policy).expect("one").is_some());
        let half = DirectoryConfig { admin_group: Some("admins".into()), ..DirectoryConfig::default() };
        assert!(message(&half).contains("directory_admin_group requires directory_url"));
        assert!(message(&DirectoryConfig { user_base: None, ..options() }).contains("directory_user_base"));
        let elsewhere = DirectoryConfig { url: Some("ldap://h".into()), ..options() };
        assert!(message(&elsewhere).contains("needs a CA file"), "{}", message(&elsewhere));
        let insecure = DirectoryConfig { insecure: true, ..elsewhere };
        assert_eq!(message(&insecure), "");
    }

    #[test]
    fn bind_password_is_read_from_private_file() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("ldap.pw");
        let dn = Some("cn=reader".to_owned());
        let with = |file: Option<PathBuf>| DirectoryConfig {
            bind_dn: dn.clone(),
            bind_password_file: file,
            ..options()
        };
        secret_file::write(&file, b"the password\nand more\n").expect("written");
        let found = bind(&with(Some(file.clone()))).expect("read").expect("a bind");
        assert_eq!((found.0.as_str(), found.1.as_str()), ("cn=reader", "the password"));
        assert!(message(&with(None)).contains("requires a password"));
        let nobody = DirectoryConfig { bind_dn: None, ..with(Some(file.clone())) };
        assert!(message(&nobody).contains("requires a password"));
        let both = DirectoryConfig { bind_credential: Some("c".into()), ..with(Some(file.clone())) };
        assert!(message(&both).contains("use either"));
        let credential = DirectoryConfig { bind_credential: Some("../etc".into()), ..with(None) };
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
        let seconds = NonZeroU64::new;
        let all = DirectoryConfig {
            age_s_max: seconds(20),
            grace_s_max: seconds(60),
            admin_group: Some("storage-admins".into()),
            member_attributes: Some("member, owner".into()),
            ..options()
        };
        let mut policy = Config::default();
        all.directory(&mut policy).expect("configured");
        assert_eq!((policy.directory_age_ms, policy.directory_grace_ms), (20_000, 60_000));
        assert_eq!(policy.directory_roles.admin.as_ref().map(GroupName::as_str), Some("storage-admins"));
        assert!(
            message(&DirectoryConfig { grace_s_max: seconds(19), ..all.clone() }).contains("is less than")
        );
        let blank = DirectoryConfig { admin_group: Some("Storage Admins".into()), ..all.clone() };
        assert!(message(&blank).contains("directory_admin_group"));
        assert!(message(&DirectoryConfig { timeout_s_max: seconds(21), ..all }).contains("1 to 20 s"));
    }
}
