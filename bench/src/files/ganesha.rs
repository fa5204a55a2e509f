//! NFS-Ganesha: its server over this disk, and a user-space client over libnfs, which needs no
//! kernel NFS.
//!
//! The server's page cache holds writes until a sync. The server runs in a separate network
//! namespace, with its own port mapper.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::Instant;

use super::folder::ServerGuard;
use super::job::{ClientJob, FileOperation, JobClient, Subject};
use super::net::NetworkNamespace;
use super::served::{ServerProcess, needed, new_folder};
use crate::Outcome;

pub(crate) const NAME: &str = "nfs-ganesha";
const SOURCE: &str = include_str!("ganesha.c");
const EXPORT: &str = "/files";

/// The server, and how to reach it.
pub(crate) struct Ganesha {
    program: PathBuf,
    // In the order in which they end.
    server: ServerProcess,
    mapper: ServerProcess,
    net: Rc<NetworkNamespace>,
}

fn config(data: &Path) -> String {
    format!(
        "NFS_CORE_PARAM {{ Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false; }}\n\
         EXPORT {{ Export_Id = 1; Path = {}; Pseudo = {EXPORT}; Access_Type = RW; Squash = None; SecType = sys;\n  \
         Protocols = 3; FSAL {{ Name = VFS; }} }}\nLOG {{ Default_Log_Level = WARN; }}\n",
        data.display()
    )
}

fn build(folder: &Path) -> Outcome<PathBuf> {
    let compiler = needed("gcc", "gcc")?;
    if !Path::new("/usr/include/nfsc/libnfs.h").is_file() {
        return Err("libnfs is not there to build with (package libnfs-dev)".into());
    }
    let (source, program) = (folder.join("client.c"), folder.join("client"));
    fs::write(&source, SOURCE)?;
    let built = Command::new(compiler)
        .arg("-O2")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .arg("-lnfs")
        .stdin(Stdio::null())
        .output()?;
    match built.status.success() {
        true => Ok(program),
        false => {
            Err(format!("its client cannot be built: {}", String::from_utf8_lossy(&built.stderr)).into())
        }
    }
}

/// Starts a server in a new folder.
pub(crate) fn start(folder: &Path) -> Outcome<Ganesha> {
    let daemon = needed("ganesha.nfsd", "nfs-ganesha and nfs-ganesha-vfs")?;
    let map = needed("rpcbind", "rpcbind")?;
    new_folder(folder)?;
    let program = build(folder)?;
    let data = new_folder(&folder.join("data"))?;
    fs::write(folder.join("ganesha.conf"), config(&data))?;
    let net = Rc::new(NetworkNamespace::new("nfs")?);
    let mut command = net.command(&map);
    command.args(["-f", "-i"]);
    let mapper = ServerProcess::start(command, &folder.join("rpcbind.log"))?;
    let mut command = net.command(&daemon);
    command.arg("-F").arg("-f").arg(folder.join("ganesha.conf")).arg("-L").arg(folder.join("ganesha.log"));
    command.arg("-p").arg(folder.join("ganesha.pid"));
    let server = ServerProcess::start(command, &folder.join("ganesha.said"))?;
    let mut ganesha = Ganesha { program, server, mapper, net };
    // The server is ready when a client can mount it.
    let (net, program) = (ganesha.net.clone(), ganesha.program.clone());
    ganesha.server.wait("export", || Ok(NfsClient::new(&net, &program, &data).is_ok()))?;
    Ok(ganesha)
}

impl Ganesha {
    fn data(&self) -> PathBuf {
        self.program.with_file_name("data")
    }
}

impl Subject for Ganesha {
    fn name(&self) -> &str {
        NAME
    }

    fn client(&self) -> Outcome<Box<dyn JobClient>> {
        Ok(Box::new(NfsClient::new(&self.net, &self.program, &self.data())?))
    }

    fn processes(&self) -> Vec<u32> {
        self.server.processes().into_iter().chain(self.mapper.processes()).collect()
    }
}

/// Process of a client.
struct NfsClient {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl NfsClient {
    fn new(net: &NetworkNamespace, program: &Path, data: &Path) -> Outcome<Self> {
        let mut child = net
            .command(program)
            .arg("127.0.0.1")
            .arg(data)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (Some(to), Some(from)) = (to, from) else { return Err("no pipes to the client".into()) };
        let mut mounted = Self { child, to, from: BufReader::new(from) };
        match mounted.line()?.as_str() {
            "ready" => Ok(mounted),
            other => Err(format!("the client says: {other}").into()),
        }
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl JobClient for NfsClient {
    fn perform(&mut self, job: &ClientJob) -> Outcome<u64> {
        if job.durable {
            return Err("the client in user space does not ask for it".into());
        }
        let seconds = job.until.saturating_duration_since(Instant::now()).as_secs_f64();
        let ClientJob { step, directory, letter, count, .. } = job;
        writeln!(self.to, "{step:?} /{directory} {letter} {count} {seconds}")?;
        self.to.flush()?;
        let said = self.line()?;
        let done = said.strip_prefix("done ").and_then(|number| number.parse().ok());
        let done: u64 = done.ok_or_else(|| format!("the client says: {said}"))?;
        match *step == FileOperation::List && done != *count {
            true => Err(format!("{done} of {count} files are listed").into()),
            false => Ok(done),
        }
    }
}

impl Drop for NfsClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
