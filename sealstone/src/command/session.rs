//! `login`, `logout`, `whoami` and `enrol`, and the session file that other commands use.

use std::io::{BufRead, IsTerminal};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use sealstone_administration::{LogoutRevocation, read_service_key, whoami_json, whoami_text};
use sealstone_chap_file::proofs;
use sealstone_client::tls::Fingerprint;
use sealstone_client::{Client, DeviceConnectOptions, PaperOptions, Proofs, Role, SavedSession};
use sealstone_failure::text::{ShownPath as _, with_paths};
use sealstone_failure::{Failure, FailureKind, Outcome, secret_file};
use sealstone_job_records::JobRecords;
use sealstone_mds_protocol::printable;
use sealstone_metadata_server::ClusterFile;
use zeroize::Zeroizing;

use crate::cli::{EnrolArgs, GlobalArgs, LoginArgs, PasswordArgs, ServerArgs};
use crate::output::Output;

/// Returns the path of the session file.
pub(crate) fn path(global: &GlobalArgs) -> Outcome<PathBuf> {
    if let Some(path) = &global.session {
        return Ok(path.clone());
    }
    SavedSession::default_path().ok_or_else(|| {
        Failure::usage("neither XDG_STATE_HOME nor HOME is set to an absolute path")
            .hint("use --session FILE")
    })
}

/// Returns the list of started jobs of the session.
pub(crate) fn job_records(global: &GlobalArgs) -> Outcome<JobRecords> {
    Ok(JobRecords::beside(&path(global)?))
}

/// Returns a client with the session of the session file.
pub(crate) fn client(global: &GlobalArgs) -> Outcome<(Client, SavedSession)> {
    let path = path(global)?;
    let saved = SavedSession::load(&path)
        .map_err(|error| Failure::from(error).at(path.shown()))?
        .ok_or_else(|| Failure::new(FailureKind::Denied, "not logged in").hint("sealstone login NAME"))?;
    Ok((Client::resume_proving(&saved, reach(global)?)?, saved))
}

/// Returns the options for connections to devices.
pub(crate) fn reach(global: &GlobalArgs) -> Outcome<DeviceConnectOptions> {
    let proofs = proofs(global.chap_file.as_ref())?;
    Ok(DeviceConnectOptions { proofs, tls: global.device_tls.into(), conceal_method: global.conceal_method })
}

/// Reads a password from a file, standard input, or the terminal, where a new one is typed twice.
pub(crate) fn password(source: &PasswordArgs, prompt: &str, new: bool) -> Outcome<Zeroizing<String>> {
    let first_line = |text: &str| Zeroizing::new(text.lines().next().unwrap_or_default().to_owned());
    let password = match &source.password_file {
        Some(path) if path.as_os_str() == "-" => {
            let mut line = Zeroizing::new(String::new());
            std::io::stdin().lock().read_line(&mut line)?;
            first_line(&line)
        }
        Some(path) => first_line(&secret_file::read(path)?),
        None if !std::io::stdin().is_terminal() => {
            return Err(
                Failure::usage("no terminal to ask for the password").hint("use --password-file FILE or -")
            );
        }
        None => {
            let prompt = printable(prompt);
            let password = Zeroizing::new(rpassword::prompt_password(format!("{prompt}: "))?);
            if new && *Zeroizing::new(rpassword::prompt_password("Again: ")?) != *password {
                return Err(Failure::usage("the two passwords differ"));
            }
            password
        }
    };
    if password.is_empty() {
        return Err(Failure::usage("the password is empty"));
    }
    Ok(password)
}

/// Returns the metadata server of the arguments, or else of the last session.
fn server(file: &Path, arguments: &ServerArgs) -> Outcome<(ClusterFile, Fingerprint)> {
    let cluster = match (&arguments.cluster, &arguments.mds, &arguments.pin) {
        (Some(path), _, _) => ClusterFile::read(path)?,
        (None, Some(mds), Some(pin)) => ClusterFile { mds: mds.clone(), pin: pin.clone() },
        _ => match SavedSession::load(file) {
            // A session of the paper's profile has no pin.
            Ok(Some(SavedSession { server, fingerprint: Some(pin), .. })) => {
                ClusterFile { mds: server, pin: pin.to_string() }
            }
            _ => {
                return Err(
                    Failure::usage("no metadata server given").hint("use --cluster FILE, or --mds and --pin")
                );
            }
        },
    };
    let pin: Fingerprint = cluster
        .pin
        .parse()
        .map_err(|error| Failure::usage(error).at("pin").hint("a pin is sha256: and 64 hex digits"))?;
    Ok((cluster, pin))
}

/// `sealstone enrol`.
pub(crate) async fn enrol(global: &GlobalArgs, output: Output, arguments: &EnrolArgs) -> Outcome {
    let (cluster, pin) = server(&path(global)?, &arguments.server)?;
    let name = &arguments.user;
    let code = match &arguments.code_file {
        Some(file) => secret_file::read(file)?,
        None if !std::io::stdin().is_terminal() => {
            return Err(Failure::usage("no terminal to ask for the code").hint("use --code-file FILE"));
        }
        None => Zeroizing::new(rpassword::prompt_password(format!("Code of {}: ", printable(name)))?),
    };
    let password = password(&arguments.password, &format!("New password for {name}"), true)?;
    let code = code.trim().as_bytes();
    Client::enrol(&cluster.mds, pin, name, code, password.as_bytes())
        .await
        .map_err(|error| Failure::from(error).at(name))?;
    output.remark(format!("set the password of {name}; log in with: sealstone login {name}"));
    output.done(&serde_json::json!({ "user": name, "mds": cluster.mds }))
}

/// `sealstone login --paper-profile`: the server is not authenticated by a pin.
async fn login_paper(global: &GlobalArgs, output: Output, arguments: &LoginArgs, server: &str) -> Outcome {
    let file = path(global)?;
    let name = arguments
        .name
        .as_deref()
        .ok_or_else(|| Failure::usage("missing argument NAME").hint("sealstone login NAME"))?;
    let mut addresses =
        tokio::net::lookup_host(server).await.map_err(|error| Failure::from(error).at(server))?;
    if !arguments.i_accept_insecure && !addresses.all(|address| address.ip().is_loopback()) {
        return Err(Failure::usage("--paper-profile is allowed on loopback only")
            .at(server)
            .hint("a recorded login reveals the passphrase; --i-accept-insecure allows it"));
    }
    let password = password(&arguments.password, &format!("Passphrase of {name}"), false)?;
    let paper = PaperOptions { conservative: arguments.conservative, ..PaperOptions::default() };
    let client = Client::connect_paper(server, paper, name, &password, Proofs::default()).await?;
    keep(&client, output, server, None, &file).await
}

/// Saves the session and prints its user.
async fn keep(
    client: &Client,
    output: Output,
    server: &str,
    pin: Option<Fingerprint>,
    file: &Path,
) -> Outcome {
    if let Some(folder) = file.parent() {
        // With a umask of 0 others could replace the session file.
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| Failure::from(error).at(folder.shown()))?;
    }
    client.save(server, pin, file).map_err(|error| Failure::from(error).at(file.shown()))?;
    let who = client.whoami().await?;
    let value = serde_json::json!({
        "user": who.user.as_str(), "role": who.role.as_str(), "admin": who.role == Role::Admin,
        "mds": server, "expires_ms": who.expires_ms,
        "profile": if pin.is_some() { "modern" } else { "paper" },
    });
    let value = with_paths(value, [("session", file)]);
    let insecurely = if pin.is_some() { "" } else { ", INSECURELY (the paper's profile)" };
    output.remark(format!("logged in as {} at {server}{insecurely}", who.user.as_str()));
    output.done(&value)
}

/// `sealstone login`.
pub(crate) async fn login(global: &GlobalArgs, output: Output, arguments: &LoginArgs) -> Outcome {
    if let Some(server) = &arguments.paper_profile {
        return login_paper(global, output, arguments, server).await;
    }
    let file = path(global)?;
    let (cluster, pin) = server(&file, &arguments.server)?;
    let client = match (&arguments.key_file, &arguments.name) {
        (Some(key), _) => {
            let key = read_service_key(key)?;
            Client::connect_with_key(&cluster.mds, pin, &key, Proofs::default()).await?
        }
        (None, Some(name)) => {
            let password = password(&arguments.password, &format!("Password of {name}"), false)?;
            Client::connect(&cluster.mds, pin, name, password.as_bytes()).await?
        }
        (None, None) => {
            return Err(
                Failure::usage("missing argument NAME").hint("sealstone login NAME, or --key-file FILE")
            );
        }
    };
    keep(&client, output, &cluster.mds, Some(pin), &file).await
}

/// `sealstone logout`.
pub(crate) async fn logout(global: &GlobalArgs, output: Output, revoke: bool) -> Outcome {
    let file = path(global)?;
    let (client, saved) = client(global)?;
    if revoke && matches!(saved.ticket.keys, sealstone_client::TicketKeys::Paper(_)) {
        // Checked first, so that the command does all or nothing.
        return Err(Failure::from(sealstone_client::ClientError::NotInPaperProfile)
            .hint("`sealstone logout` ends the session; its credentials expire"));
    }
    let response = if revoke { client.logout_revoking().await } else { client.logout().await.map(|()| None) };
    // The file is removed even if the server cannot be reached.
    SavedSession::remove(&file).map_err(|error| Failure::from(error).at(file.shown()))?;
    let user = saved.ticket.user.as_str();
    let revoking = match response {
        Ok(revoking) => revoking,
        // The session had ended already.
        Err(sealstone_client::ClientError::SessionOver) if !revoke => None,
        Err(error) => {
            let what = if matches!(error, sealstone_client::ClientError::SessionOver) {
                "the session file is removed, but nothing was revoked"
            } else {
                "the session file is removed, but the session did not end on the server"
            };
            return Err(Failure::from(error).at(what));
        }
    };
    let mut value = serde_json::json!({ "user": user });
    let ended = revoke.then(|| LogoutRevocation::new(revoking)).transpose()?;
    ended.iter().for_each(|ended| output.remark(ended.text()));
    output.remark(format!("logged out {user}"));
    value["revocation"] = ended.map(|ended| ended.json()).unwrap_or_default();
    output.done(&value)
}

/// `sealstone whoami`.
pub(crate) async fn whoami(global: &GlobalArgs, output: Output) -> Outcome {
    let (client, saved) = client(global)?;
    let who = client.whoami().await?;
    output.result(&whoami_json(&who, &saved.server), || whoami_text(&who, &saved.server))
}
