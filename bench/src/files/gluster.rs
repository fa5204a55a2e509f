//! GlusterFS: one brick on this disk and one FUSE client, without its manager.
//!
//! The smallest graph that serves files: storage, locks and threads at the brick, write-behind at
//! the client; no replication, which would cost more.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use super::folder::Folder;
use super::served::{ServerProcess, can_mount, needed, new_folder};
use crate::Outcome;

pub(crate) const NAME: &str = "glusterfs";

fn brick(data: &Path, port: u16) -> String {
    format!(
        "volume storage\n  type storage/posix\n  option directory {}\nend-volume\n\
         volume locks\n  type features/locks\n  subvolumes storage\nend-volume\n\
         volume brick\n  type performance/io-threads\n  option thread-count 16\n  subvolumes locks\nend-volume\n\
         volume server\n  type protocol/server\n  option transport-type tcp\n  \
         option transport.socket.bind-address 127.0.0.1\n  option transport.socket.listen-port {port}\n  \
         option auth.addr.brick.allow 127.0.0.1\n  subvolumes brick\nend-volume\n",
        data.display()
    )
}

fn client(port: u16) -> String {
    format!(
        "volume client\n  type protocol/client\n  option transport-type tcp\n  option remote-host 127.0.0.1\n  \
         option remote-port {port}\n  option remote-subvolume brick\nend-volume\n\
         volume behind\n  type performance/write-behind\n  subvolumes client\nend-volume\n"
    )
}

/// Starts and mounts one in a new folder.
pub(crate) fn start(folder: &Path) -> Outcome<Folder> {
    can_mount()?;
    let (server, mounter) =
        (needed("glusterfsd", "glusterfs-server")?, needed("glusterfs", "glusterfs-client")?);
    let (data, place) = (new_folder(&folder.join("brick"))?, new_folder(&folder.join("mount"))?);
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let at = |name: &str| folder.join(name);
    fs::write(at("brick.vol"), brick(&data, port))?;
    fs::write(at("client.vol"), client(port))?;
    let run = |program: &Path, volume: &str, name: &str| {
        let mut command = Command::new(program);
        command.arg("-N").arg("-f").arg(at(volume)).arg("-l").arg(at(&format!("{name}.log")));
        command.arg("-p").arg(at(&format!("{name}.pid")));
        command
    };
    let mut served = ServerProcess::start(run(&server, "brick.vol", "brick"), &at("brick.said"))?;
    served.wait("brick", || Ok(TcpStream::connect(("127.0.0.1", port)).is_ok()))?;
    let mut mount = run(&mounter, "client.vol", "client");
    mount.arg(&place);
    let mounted = ServerProcess::start(mount, &at("client.said"))?.mounts(&place)?;
    Ok(Folder::new(NAME, &place, vec![Box::new(mounted), Box::new(served)]))
}
