//! A real PostgreSQL with its own port and folder, independent of system services.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, reason = "test support")]

use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const USER: &str = "sealstone";
pub const PASSWORD: &str = "only for tests";
/// How long the database may take to answer.
const START_MAX: Duration = Duration::from_secs(60);

/// Process and files of one PostgreSQL.
pub struct Postgres {
    folder: tempfile::TempDir,
    child: Option<Child>,
    pub port: u16,
    databases: AtomicU32,
}

/// Returns the path of the newest installed version; Debian installs them side by side.
fn tool(name: &str) -> PathBuf {
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten() {
        let path = entry.path().join("bin").join(name);
        let version = entry.file_name().to_str().and_then(|version| version.parse().ok());
        if let Some(version) = version.filter(|_| path.exists()) {
            found.push((version, path));
        }
    }
    found.sort();
    found.pop().map_or_else(|| PathBuf::from(name), |(_, path)| path)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Returns the user to run as: the database refuses to run as root, so it uses the package's
/// account.
fn other_user() -> Option<(u32, u32)> {
    if std::fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own)).unwrap() != 0 {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("postgres:"));
    let fields: Vec<&str> =
        line.expect("postgresql is installed: scripts/setup --tests").split(':').collect();
    Some((fields[2].parse().unwrap(), fields[3].parse().unwrap()))
}

fn command(name: &str) -> Command {
    let mut command = Command::new(tool(name));
    if let Some((user, group)) = other_user() {
        command.uid(user).gid(group);
    }
    command
        .current_dir("/")
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LC_ALL", "C")
        .stdout(Stdio::null());
    command
}

impl Postgres {
    /// Creates and starts a database server; with TLS if a certificate and its key are given, both
    /// PEM.
    pub fn start_with(tls: Option<(&str, &str)>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let at = |name: &str| folder.path().join(name);
        let give = |path: &Path, mode: u32| {
            if let Some((user, group)) = other_user() {
                chown(path, Some(user), Some(group)).unwrap();
            }
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for name in ["data", "socket"] {
            std::fs::create_dir(at(name)).unwrap();
            give(&at(name), 0o700);
        }
        give(&at("socket"), 0o755);
        std::fs::write(at("password"), PASSWORD).unwrap();
        give(&at("password"), 0o600);
        if let Some((certificate, key)) = tls {
            for (name, content) in [("cert.pem", certificate), ("key.pem", key)] {
                std::fs::write(at(name), content).unwrap();
                give(&at(name), 0o600);
            }
        }
        let made = command("initdb")
            .args(["--no-sync", "--encoding=UTF8", "--locale=C", "--auth-local=trust"])
            .args(["--auth-host=scram-sha-256", "-U", USER, "-D"])
            .arg(at("data"))
            .arg("--pwfile")
            .arg(at("password"))
            .status()
            .expect("postgresql is installed: scripts/setup --tests");
        assert!(made.success(), "initdb");
        let mut this = Self { folder, child: None, port: 0, databases: AtomicU32::new(0) };
        // Another process may have taken the port meanwhile.
        for _ in 0..5 {
            this.port = free_port();
            if this.try_start() {
                return this;
            }
        }
        panic!("postgres does not answer");
    }

    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts it again on the same port.
    pub fn restart(&mut self) {
        // Processes of a killed server must have ended first.
        let until = Instant::now() + START_MAX;
        while !self.try_start() {
            assert!(Instant::now() < until, "postgres does not answer");
        }
    }

    fn try_start(&mut self) -> bool {
        let mut postgres = command("postgres");
        postgres
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "shared_buffers=16MB", "-c", "fsync=off", "-p"])
            .arg(self.port.to_string())
            .arg("-D")
            .arg(self.folder.path().join("data"))
            .arg("-k")
            .arg(self.socket());
        if self.folder.path().join("cert.pem").exists() {
            let set = |name: &str, file: &str| format!("{name}={}", self.folder.path().join(file).display());
            postgres.args(["-c", "ssl=on", "-c", &set("ssl_cert_file", "cert.pem"), "-c"]);
            postgres.arg(set("ssl_key_file", "key.pem"));
        }
        let mut child =
            postgres.stderr(Stdio::null()).spawn().expect("postgresql is installed: scripts/setup --tests");
        let until = Instant::now() + START_MAX;
        while child.try_wait().unwrap().is_none() && Instant::now() < until {
            let answers = command("pg_isready").arg("-q").args(self.at()).status().unwrap();
            if answers.success() {
                self.child = Some(child);
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = child.kill();
        let _ = child.wait();
        false
    }

    fn at(&self) -> [String; 2] {
        [format!("--host={}", self.socket().display()), format!("--port={}", self.port)]
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Creates a database without tables and returns its name.
    pub fn database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let made = command("createdb").args(self.at()).args(["-U", USER, &name]).status().unwrap();
        assert!(made.success(), "createdb");
        name
    }

    /// Runs statements in a database and returns their plain output.
    pub fn sql(&self, database: &str, text: &str) -> String {
        let mut psql = command("psql");
        psql.args(self.at()).args([
            "-U",
            USER,
            "-d",
            database,
            "-X",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            text,
        ]);
        let output = psql.stdout(Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the URL of the local socket, which needs no password.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@/{database}?host={}&port={}", self.socket().display(), self.port)
    }

    /// Returns the URL over TCP, which needs the password.
    pub fn tcp_url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    /// Kills it, as a power failure would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The child processes notice that their parent is dead; a restart waits for that.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops it cleanly and closes every connection.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let ended = command("pg_ctl")
                .args(["stop", "-m", "fast", "-w", "-D"])
                .arg(self.folder.path().join("data"))
                .status();
            assert!(ended.unwrap().success(), "pg_ctl");
            let _ = child.wait();
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = command("pg_ctl")
                .args(["stop", "-m", "immediate", "-w", "-D"])
                .arg(self.folder.path().join("data"))
                .status();
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
