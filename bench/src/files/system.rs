//! The Sealstone system: a metadata server, devices, a session, mounts.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::mount::{UnmountFlags, unmount};
use sealstone_client::{Client as Sealstone, Proofs, SavedSession, Tuning};

use super::folder::{Folder, ServerGuard};
use super::postgres::Postgres;
use super::served::{can_mount, new_folder};
use super::slapd::Slapd;
use crate::Outcome;
use crate::daemon::{Daemon, MdsDaemon, Osd};
use crate::rotation::{BenchUser, text};

/// A metadata server and its devices, each a process.
pub(crate) struct System {
    mds: Option<MdsDaemon>,
    osds: Vec<Osd>,
    user: BenchUser,
    folder: PathBuf,
    binary: PathBuf,
    // Dropped after its clients.
    _database: StoreServer,
}

/// Kind of metadata store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metadata {
    Embedded,
    Postgres,
    Ldap,
}

/// External server of the metadata store, if there is one.
enum StoreServer {
    None,
    Postgres(Postgres),
    Ldap(Slapd),
}

impl StoreServer {
    /// Returns the flags of `mds init`.
    fn flags(&self) -> Outcome<Vec<String>> {
        Ok(match self {
            Self::None => Vec::new(),
            Self::Postgres(postgres) => vec!["--meta".into(), postgres.url()],
            Self::Ldap(slapd) => {
                let password = text(slapd.password_file())?.to_owned();
                vec!["--meta".into(), slapd.url().to_owned(), "--meta-password-file".into(), password]
            }
        })
    }
}

impl System {
    /// Starts a system and logs in as its administrator.
    pub(crate) fn start(
        binary: &Path,
        folder: &Path,
        devices: usize,
        metadata: Metadata,
    ) -> Outcome<Rc<Self>> {
        new_folder(folder)?;
        let database = match metadata {
            Metadata::Embedded => StoreServer::None,
            Metadata::Postgres => StoreServer::Postgres(Postgres::start(&folder.join("postgres"))?),
            Metadata::Ldap => StoreServer::Ldap(Slapd::start(&folder.join("slapd"))?),
        };
        let flags = database.flags()?;
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mds = MdsDaemon::with_store(binary, &folder.join("mds"), &flags)?;
        let user = BenchUser::new(binary, &folder.join("session"));
        user.login(&mds)?;
        let mut osds = Vec::new();
        for number in 0..devices {
            let name = format!("osd{number}");
            let osd = Osd::named(binary, &folder.join(&name), &name)?;
            let key = osd.data.join("initial.key");
            user.run(&["mds", "add-osd", &osd.url, "--key", text(&key)?, "--wait", "60"])?;
            osds.push(osd);
        }
        let (folder, binary) = (folder.to_owned(), binary.to_owned());
        Ok(Rc::new(Self { mds: Some(mds), osds, user, folder, binary, _database: database }))
    }

    /// Returns a client of the library with its own connections.
    pub(crate) fn client(&self) -> Outcome<Sealstone> {
        let saved = SavedSession::load(&self.user.session)?.ok_or("no session")?;
        Ok(Sealstone::resume_tuned(&saved, Proofs::default(), Tuning::default(), None)?)
    }

    /// Mounts it; `name` is the name in tables.
    pub(crate) fn mount(self: &Rc<Self>, name: &str, flags: &[&str]) -> Outcome<Folder> {
        can_mount()?;
        let place = new_folder(&self.folder.join(name))?;
        let mut arguments = vec!["mount", text(&place)?, "--foreground"];
        arguments.extend(flags);
        // Created before the process, so that it is always unmounted.
        let mut mounted = MountProcess { place: place.clone(), daemon: None };
        let log = self.folder.join(format!("{name}.log"));
        mounted.daemon = Some(Daemon::spawn(self.user.command(&arguments), "mount", &log)?);
        Ok(Folder::new(name, &place, vec![Box::new(mounted), Box::new(self.clone())]))
    }

    /// Returns the process of the metadata server.
    pub(crate) fn mds_pid(&self) -> Option<u32> {
        self.mds.as_ref().map(MdsDaemon::pid)
    }

    /// Ends the metadata server, by kill or cleanly, and starts it again. Returns the seconds until
    /// it is ready.
    pub(crate) fn restart_mds(&mut self, kill: bool) -> Outcome<f64> {
        let Some(mds) = self.mds.take() else { return Err("no metadata server".into()) };
        let data = mds.data.clone();
        if kill {
            mds.kill()?
        } else {
            mds.stop()?
        }
        let again = MdsDaemon::start(&self.binary, &data, &[])?;
        let seconds = again.ready_s();
        self.mds = Some(again);
        Ok(seconds)
    }

    /// Returns the bytes of the metadata store's files.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        let data = self.folder.join("mds");
        let entries = fs::read_dir(data).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
    }
}

impl ServerGuard for Rc<System> {
    fn processes(&self) -> Vec<u32> {
        self.mds_pid().into_iter().chain(self.osds.iter().map(Osd::pid)).collect()
    }
}

/// Process of a mount; unmounted and ended when dropped.
struct MountProcess {
    place: PathBuf,
    daemon: Option<Daemon>,
}

impl ServerGuard for MountProcess {
    fn processes(&self) -> Vec<u32> {
        self.daemon.iter().map(Daemon::pid).collect()
    }
}

impl Drop for MountProcess {
    fn drop(&mut self) {
        let _ = unmount(&self.place, UnmountFlags::DETACH);
        if let Some(daemon) = self.daemon.take() {
            // It ends by itself after the unmount; it may have ended already.
            let _ = daemon.stop();
        }
    }
}
