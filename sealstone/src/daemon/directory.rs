//! `sealstone mds directory`, and the options of the LDAP directory of users and groups.

use sealstone_failure::{Failure, FailureKind, Outcome, chain};
use sealstone_mds::{Config, DirectoryLookup};
use sealstone_mds_protocol::GroupName;
use sealstone_metadata_server::DirectoryConfig;

use crate::config::MdsOptions;
use crate::output::Output;

/// Returns the configuration of the directory.
pub(crate) fn config(options: &MdsOptions) -> DirectoryConfig {
    DirectoryConfig {
        url: options.directory_url.clone(),
        ca_file: options.directory_ca_file.clone(),
        bind_dn: options.directory_bind_dn.clone(),
        bind_password_file: options.directory_bind_password_file.clone(),
        bind_credential: options.directory_bind_credential.clone(),
        user_base: options.directory_user_base.clone(),
        user_filter: options.directory_user_filter.clone(),
        user_attribute: options.directory_user_attribute.clone(),
        id_attribute: options.directory_id_attribute.clone(),
        group_base: options.directory_group_base.clone(),
        group_filter: options.directory_group_filter.clone(),
        group_attribute: options.directory_group_attribute.clone(),
        member_attributes: options.directory_member_attributes.clone(),
        member_name_attributes: options.directory_member_name_attributes.clone(),
        admin_group: options.directory_admin_group.clone(),
        operator_group: options.directory_operator_group.clone(),
        user_group: options.directory_user_group.clone(),
        read_only_group: options.directory_read_only_group.clone(),
        age_s_max: options.directory_age_s_max,
        grace_s_max: options.directory_grace_s_max,
        timeout_s_max: options.directory_timeout_s_max,
        insecure: options.insecure_directory.unwrap_or(false),
    }
}

/// `sealstone mds directory`.
pub(crate) fn ask(output: Output, name: &str, options: &MdsOptions) -> Outcome {
    let mut policy = Config::default();
    let directory = config(options).directory(&mut policy)?;
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
