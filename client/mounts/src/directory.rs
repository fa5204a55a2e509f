//! The mount of a stored directory.

use std::ffi::OsString;
use std::path::PathBuf;

use sealstone_client::nodes::Nodes;
use sealstone_client::{Client, FileKind};
use sealstone_daemon::Shutdown;
use sealstone_failure::{Failure, Outcome};
use sealstone_fuse::{IdMap, Mount, MountOptions, MountRoot, MountingUser};
use sealstone_mds_protocol::UserName;
use sealstone_transfer::StoredPath;

use crate::mount_point::{mount_failure, until_unmounted};

/// Options of the mount of a stored directory.
#[derive(Clone, Debug)]
pub struct DirectoryMountOptions {
    /// The stored directory.
    pub path: StoredPath,
    /// The directory of this machine to mount on.
    pub mountpoint: PathBuf,
    /// The source in the table of mounts.
    pub source: OsString,
    /// Refuse changes.
    pub read_only: bool,
    /// Refuse to execute programs on it.
    pub no_exec: bool,
    /// Other users may use it; the kernel then checks owners and permission bits.
    pub allow_other: bool,
    /// Number of users that this machine does not know.
    pub unknown_uid: u32,
    /// Number of groups that this machine does not know.
    pub unknown_gid: u32,
}

/// A mounted stored directory.
pub struct DirectoryMount {
    mounted: Mount,
    nodes: Nodes,
    client: Client,
    mountpoint: PathBuf,
    user: UserName,
}

impl DirectoryMount {
    /// Mounts a directory. `nodes` are files of `client`.
    ///
    /// # Errors
    /// It is no directory, the session is over, or the kernel refuses.
    pub async fn start(nodes: Nodes, client: Client, options: DirectoryMountOptions) -> Outcome<Self> {
        let user = client.whoami().await?.user;
        let path = &options.path;
        let root = nodes.resolve(path).await.map_err(|error| Failure::from(error).at(path))?;
        if root.kind != FileKind::Directory {
            return Err(Failure::operation("is not a directory").at(path));
        }
        let id_map = IdMap::new(MountingUser {
            user: user.clone(),
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            others: options.allow_other,
            unknown_uid: options.unknown_uid,
            unknown_gid: options.unknown_gid,
        });
        if options.allow_other {
            id_map.check_unknown_ids().map_err(|error| {
                Failure::usage(error)
                    .at("mount")
                    .hint("choose a number with --unknown-uid and --unknown-gid that no user has")
            })?;
        }
        let mountpoint = options.mountpoint.clone();
        let options = MountOptions {
            mountpoint: options.mountpoint,
            source: options.source,
            root: MountRoot::Directory,
            read_only: options.read_only,
            no_exec: options.no_exec,
            allow_other: options.allow_other,
        };
        // Mounting talks to the kernel and waits: not on a thread that answers it.
        let served = nodes.clone();
        let mount = move || sealstone_fuse::mount(served, root.node(), id_map, &options);
        let mounted = tokio::task::spawn_blocking(mount)
            .await
            .map_err(|error| Failure::operation(error).at("mount"))?
            .map_err(|error| mount_failure(error, &mountpoint))?;
        Ok(Self { mounted, nodes, client, mountpoint, user })
    }

    /// Returns the user of the session.
    #[must_use]
    pub const fn user(&self) -> &UserName {
        &self.user
    }

    /// Waits until it is unmounted, by others or because of the shutdown; then stores what programs
    /// have written.
    ///
    /// # Errors
    /// Not everything could be stored, or the connection to the kernel failed.
    pub async fn until_unmounted(self, shutdown: &Shutdown) -> Outcome {
        let ended = until_unmounted(self.mounted, &self.mountpoint, None, shutdown).await;
        let stored = self.nodes.shut_down().await;
        self.client.devices().close().await;
        stored.map_err(|error| Failure::from(error).at("not everything that was written could be stored"))?;
        ended
    }
}
