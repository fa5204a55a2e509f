//! `sealstone mds directory`, and the options of the LDAP directory of users and groups.

use sealstone_failure::Outcome;
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
pub(crate) fn look_up(output: Output, name: &str, options: &MdsOptions) -> Outcome {
    let report = config(options).look_up(name)?;
    output.result(&report.json(), || report.text())
}
