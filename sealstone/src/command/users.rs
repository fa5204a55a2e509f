//! `sealstone user`: adds, changes, disables and removes accounts, and creates enrolment codes and
//! service keys.

use std::time::Instant;

use sealstone_administration::{
    account_json, read_service_key, rotate_service_key, set_paper_passphrase, users_json, users_text,
};
use sealstone_client::{AccountKind, Client, ClientError, Role};
use sealstone_failure::text::{ShownPath as _, set_path, with_paths};
use sealstone_failure::{Failure, Outcome, secret_file};
use sealstone_units::utc;

use crate::cli::{CodeArgs, GlobalArgs, PasswordArgs, User};
use crate::command::revoke;
use crate::command::session::{client, password};
use crate::output::Output;

/// `sealstone user …`.
pub(crate) async fn run(global: &GlobalArgs, output: Output, command: &User) -> Outcome {
    let (client, saved) = client(global)?;
    match command {
        User::Add { name, role, admin, enrol, directory, code, service, key_file, password: source } => {
            let role = if *admin { Role::Admin } else { *role };
            let at = |error: ClientError| Failure::from(error).at(name);
            if *enrol {
                let kind = if *directory { AccountKind::Directory } else { AccountKind::Password };
                return invite(&client, output, name, (kind, role, false), code).await;
            }
            if *service {
                let file =
                    key_file.as_ref().ok_or_else(|| Failure::usage("--service requires --key-file"))?;
                secret_file::ensure_new(file)?;
                let key = client.add_service(name, role).await.map_err(at)?;
                secret_file::write(file, key.to_text().as_bytes())?;
                output.remark(format!("added {name}; its key is in {}", file.shown()));
                return output.done(&with_paths(account_json(name, Some(role)), [("key_file", file)]));
            }
            let password = password(source, &format!("Password for {name}"), true)?;
            client.add_user(name, password.as_bytes(), role).await.map_err(at)?;
            output.remark(format!("added {name}"));
            output.done(&account_json(name, Some(role)))
        }
        User::Reset { name, code } => {
            invite(&client, output, name, (AccountKind::Password, Role::User, true), code).await
        }
        User::Role { name, role } => {
            client.set_user_role(name, *role).await.map_err(|error| Failure::from(error).at(name))?;
            output.remark(format!("changed the role of {name} to {}; its sessions ended", role.as_str()));
            output.done(&serde_json::json!({ "user": name, "role": role.as_str() }))
        }
        User::RotateKey { name, key_file, old_key } => {
            secret_file::ensure_new(key_file)?;
            let old = old_key.as_deref().map(read_service_key).transpose()?;
            let own = saved.ticket.user.as_str();
            let (suite, key) = rotate_service_key(&client, own, name, old.as_ref()).await?;
            secret_file::write(key_file, key.to_text().as_bytes())?;
            output.remark(format!(
                "the new key of {name} is in {}; the old one is valid until `sealstone user retire-key`",
                key_file.shown()
            ));
            let value = serde_json::json!({ "user": name, "old_suite": format!("{suite:04x}") });
            output.done(&with_paths(value, [("key_file", key_file)]))
        }
        User::RetireKey { name, key_file, suite } => {
            let suite = match (suite, key_file) {
                (Some(suite), _) => *suite,
                (None, Some(file)) => {
                    let key = read_service_key(file)?;
                    if key.user.as_str() != name {
                        return Err(
                            Failure::usage(format!("the key belongs to {}", key.user)).at(file.shown())
                        );
                    }
                    key.suite
                }
                (None, None) => return Err(Failure::usage("missing option --key-file FILE or --suite HEX")),
            };
            client.retire_key(name, suite).await.map_err(|error| Failure::from(error).at(name))?;
            output.remark(format!("key {suite:04x} of {name} retired"));
            output.done(&serde_json::json!({ "user": name, "suite": format!("{suite:04x}") }))
        }
        User::Passwd { name, old_password_file, password: source } => {
            let own = saved.ticket.user.as_str();
            let name = name.as_deref().unwrap_or(own);
            let old = if name == own {
                let source = PasswordArgs { password_file: old_password_file.clone() };
                Some(password(&source, &format!("Old password of {name}"), false)?)
            } else if old_password_file.is_some() {
                return Err(Failure::usage(format!("not needed for the password of {name}"))
                    .at("--old-password-file"));
            } else {
                None
            };
            let password = password(source, &format!("New password for {name}"), true)?;
            let changed = match &old {
                Some(old) => client.change_password(old.as_bytes(), password.as_bytes()).await,
                None => client.set_password(name, password.as_bytes()).await,
            };
            changed.map_err(|error| Failure::from(error).at(name))?;
            output.remark(format!("changed the password of {name}"));
            output.done(&serde_json::json!({ "user": name }))
        }
        User::Paper { name, remove: true, .. } => {
            client.set_paper_passphrase(name, None).await.map_err(|error| Failure::from(error).at(name))?;
            output.remark(format!("removed the paper passphrase of {name}"));
            output.done(&serde_json::json!({ "user": name, "paper": false }))
        }
        User::Paper { name, remove: false, password: source } => {
            let password = password(source, &format!("Passphrase for {name}"), true)?;
            set_paper_passphrase(&client, name, &password).await?;
            output.remark(format!(
                "{name} can log in by the paper's login; recorded logins can be guessed offline"
            ));
            output.done(&serde_json::json!({ "user": name, "paper": true }))
        }
        User::List => {
            let users = client.users().await?;
            output.result(&users_json(&users), || users_text(&users))
        }
        User::Enable { name } => {
            client.enable_user(name).await.map_err(|error| Failure::from(error).at(name))?;
            output.remark(format!("enabled {name}"));
            output.done(&serde_json::json!({ "user": name, "enabled": true }))
        }
        User::Disable { name, wait } => {
            let started = Instant::now();
            let revoking = client.disable_user(name).await.map_err(|error| Failure::from(error).at(name))?;
            output.remark(format!("disabled {name}; its sessions ended"));
            let value = serde_json::json!({ "user": name, "enabled": false });
            revoke::follow(&client, output, revoking, (*wait).into(), started, value).await
        }
        User::Rm { name, wait } => {
            let started = Instant::now();
            let revoking = client.remove_user(name).await.map_err(|error| Failure::from(error).at(name))?;
            output.remark(format!("removed {name}"));
            let value = serde_json::json!({ "user": name });
            revoke::follow(&client, output, revoking, (*wait).into(), started, value).await
        }
    }
}

/// Creates an enrolment code and prints it, or writes it to a private file.
async fn invite(
    client: &Client,
    output: Output,
    name: &str,
    (kind, role, replace): (AccountKind, Role, bool),
    code: &CodeArgs,
) -> Outcome {
    if let Some(file) = &code.code_file {
        secret_file::ensure_new(file)?;
    }
    let invitation = client.invite(name, kind, role, code.hours * 3600, replace).await;
    let invitation = invitation.map_err(|error| Failure::from(error).at(name))?;
    let text = String::from_utf8_lossy(invitation.code.expose()).into_owned();
    let until = utc(invitation.expires_ms);
    let mut value = account_json(name, (!replace).then_some(role));
    value["expires_ms"] = invitation.expires_ms.into();
    match &code.code_file {
        Some(file) => {
            secret_file::write(file, format!("{text}\n").as_bytes())?;
            set_path(&mut value, "code_file", file);
            output.remark(format!("the one-time code of {name} is in {}, valid until {until}", file.shown()));
            output.done(&value)
        }
        None => {
            value["code"] = serde_json::json!(text);
            output.remark(format!("one-time code of {name}, valid until {until}; it is not shown again"));
            output.result(&value, || text.clone())
        }
    }
}
