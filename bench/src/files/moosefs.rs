//! MooseFS: a master, one chunk server on this disk, one FUSE client.
//!
//! Its servers refuse loopback addresses, so they run in a separate network namespace with a pair
//! of interfaces. They raise their own priority, which matters on a busy machine.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::folder::{Folder, ServerGuard};
use super::net::{ADDRESS, NetworkNamespace};
use super::served::{ServerProcess, can_mount, needed, new_folder};
use crate::Outcome;

pub(crate) const NAME: &str = "moosefs";
/// Maximum starts of the client, with a pause, until the master accepts it.
const TRIES_MAX: u32 = 20;
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// Starts and mounts one in a new folder.
pub(crate) fn start(folder: &Path) -> Outcome<Folder> {
    can_mount()?;
    let master = needed("mfsmaster", "moosefs-master")?;
    let chunks = needed("mfschunkserver", "moosefs-chunkserver")?;
    let mounter = needed("mfsmount", "moosefs-client")?;
    let goal = needed("mfssetgoal", "moosefs-client")?;
    let at = |name: &str| folder.join(name);
    for name in ["master", "chunks", "data"] {
        new_folder(&at(name))?;
    }
    let place = new_folder(&at("mount"))?;
    let config = |name: &str, text: String| fs::write(at(name), text);
    let owner = "WORKING_USER = root\nWORKING_GROUP = root\n";
    fs::write(at("master").join("metadata.mfs"), "MFSM NEW")?;
    config("exports.cfg", "* / rw,alldirs,maproot=0,admin\n".into())?;
    config("topology.cfg", String::new())?;
    config("hdd.cfg", format!("{}\n", at("data").display()))?;
    config(
        "master.cfg",
        format!(
            "{owner}DATA_PATH = {}\nEXPORTS_FILENAME = {}\nTOPOLOGY_FILENAME = {}\nMATOCS_LISTEN_HOST = {ADDRESS}\n\
             MATOCL_LISTEN_HOST = {ADDRESS}\nMATOML_LISTEN_HOST = {ADDRESS}\n",
            at("master").display(),
            at("exports.cfg").display(),
            at("topology.cfg").display()
        ),
    )?;
    config(
        "chunks.cfg",
        format!(
            "{owner}DATA_PATH = {}\nHDD_CONF_FILENAME = {}\nMASTER_HOST = {ADDRESS}\nCSSERV_LISTEN_HOST = {ADDRESS}\n",
            at("chunks").display(),
            at("hdd.cfg").display()
        ),
    )?;
    let net = NetworkNamespace::new("mfs")?;
    let run = |program: &Path, config: &str| {
        let mut command = net.command(program);
        command.arg("-f").arg("-c").arg(at(config)).arg("start");
        command
    };
    let master = ServerProcess::start(run(&master, "master.cfg"), &at("master.log"))?;
    let chunks = ServerProcess::start(run(&chunks, "chunks.cfg"), &at("chunks.log"))?;
    let mut tries = 0;
    let mut mounted = loop {
        let mut mount = net.command(&mounter);
        mount.arg(&place).args(["-f", "-H", ADDRESS]);
        match ServerProcess::start(mount, &at("mount.log"))?.mounts(&place) {
            Ok(mounted) => break mounted,
            // It ends at once if the master does not listen yet.
            Err(error) if tries >= TRIES_MAX => return Err(error),
            Err(_) => tries += 1,
        }
        thread::sleep(TRY_AGAIN);
    };
    // One copy, as for all file systems here; there is one as soon as the chunk server is
    // registered.
    let set = net.command(&goal).args(["-r", "1"]).arg(&place).output()?;
    if !set.status.success() {
        return Err(format!("mfssetgoal: {}", String::from_utf8_lossy(&set.stderr).trim()).into());
    }
    let probe = place.join("probe");
    mounted.wait("chunk server", || {
        let written = fs::write(&probe, b"x").is_ok() && fs::File::open(&probe)?.sync_all().is_ok();
        let _ = fs::remove_file(&probe);
        Ok(written)
    })?;
    let keeps: Vec<Box<dyn ServerGuard>> =
        vec![Box::new(mounted), Box::new(chunks), Box::new(master), Box::new(net)];
    Ok(Folder::new(NAME, &place, keeps))
}
