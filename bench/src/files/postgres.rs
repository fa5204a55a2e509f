//! A separate PostgreSQL for a metadata server, with its own folder and socket, and default
//! durability.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::served::{ServerProcess, needed, new_folder, program};
use crate::Outcome;

/// Folder of Debian's installed versions.
const VERSIONS: &str = "/usr/lib/postgresql";
const USER: &str = "sealstone";
const DATABASE: &str = "files";
/// No TCP: the number is only part of the socket's name.
const PORT: &str = "5432";

/// Folders above it that the run created: the system's, and the temporary folder.
const OWN_FOLDERS: usize = 2;

/// A database server, ended when dropped.
pub(crate) struct Postgres {
    _served: ServerProcess,
    socket: PathBuf,
}

/// Returns the path of one of its programs, of the newest version.
fn tool(name: &str) -> Outcome<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for entry in fs::read_dir(VERSIONS).into_iter().flatten().flatten() {
        let file = entry.path().join("bin").join(name);
        let version = entry.file_name().to_str().and_then(|version| version.parse().ok());
        found.extend(version.filter(|_| file.is_file()).map(|version| (version, file)));
    }
    found.sort();
    match found.pop() {
        Some((_, file)) => Ok(file),
        None => program(name).map_or_else(|| needed(name, "postgresql"), Ok),
    }
}

/// Returns the user to run as: it refuses to run as root, so it uses the package's account.
fn owner() -> Outcome<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let line = users.lines().find(|line| line.starts_with("postgres:")).ok_or("no user postgres")?;
    let mut numbers = line.split(':').skip(2).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(user)), Some(Ok(group))) => Ok(Some((user, group))),
        _ => Err("the user postgres has no numbers".into()),
    }
}

impl Postgres {
    /// Creates one in this folder and starts it.
    pub(crate) fn start(folder: &Path) -> Outcome<Self> {
        let owner = owner()?;
        let command = |name: &str| -> Outcome<Command> {
            let mut command = Command::new(tool(name)?);
            if let Some((user, group)) = owner {
                command.uid(user).gid(group);
            }
            command.current_dir("/").env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C");
            Ok(command)
        };
        new_folder(folder)?;
        // Its user needs access to the folders above, which this run created.
        for above in folder.ancestors().skip(1).take(OWN_FOLDERS) {
            let mode = fs::metadata(above)?.permissions().mode();
            if mode & 0o001 == 0 {
                fs::set_permissions(above, fs::Permissions::from_mode(mode | 0o011))?;
            }
        }
        if let Some((user, group)) = owner {
            chown(folder, Some(user), Some(group))?;
        }
        let (data, socket) = (folder.join("data"), folder.to_owned());
        let made = command("initdb")?
            .args([
                "--encoding=UTF8",
                "--locale=C",
                "--auth-local=trust",
                "--auth-host=reject",
                "-U",
                USER,
                "-D",
            ])
            .arg(&data)
            .stdin(Stdio::null())
            .output()?;
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stderr);
            return Err(format!("initdb failed: {}", said.lines().last().unwrap_or("")).into());
        }
        let mut postgres = command("postgres")?;
        postgres.args(["-c", "listen_addresses=", "-p", PORT, "-D"]).arg(&data).arg("-k").arg(&socket);
        let mut served = ServerProcess::start(postgres, &folder.with_extension("log"))?;
        let at = [format!("--host={}", socket.display()), format!("--port={PORT}")];
        served.wait("database", || {
            let answers = command("pg_isready")?.arg("-q").args(&at).status()?;
            Ok(answers.success())
        })?;
        let made = command("createdb")?.args(&at).args(["-U", USER, DATABASE]).output()?;
        match made.status.success() {
            true => Ok(Self { _served: served, socket }),
            false => Err(format!("createdb failed: {}", String::from_utf8_lossy(&made.stderr)).into()),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://{USER}@/{DATABASE}?host={}&port={PORT}", self.socket.display())
    }
}
