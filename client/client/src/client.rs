//! The public interface to files.
//!
//! Does: names and metadata through the metadata server, bytes directly to and from the devices.
//! Does not: cache data or names; two clients see each other's commits at once.
//! Contract: generic over [`Devices`] and [`Metadata`]; [`Client::connect`] uses TLS and iSCSI.

use core::ops::Range;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use sealstone_initiator::{Environment, OsdOptions, Proofs, SystemEnvironment, TlsPolicy};
use sealstone_mds_protocol::login::Revoking;
use sealstone_mds_protocol::{
    Access, Device, DirEntry, FileKind, FilePath, GroupName, Layout, Method, Name, PAGE_MAX, PlacementRecord,
    Request, Response, Role, Stat, UserName,
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::buffers::Buffers;
use crate::get::{self, GetOptions};
use crate::mds::{MdsClient, MdsDial, MdsOptions, PaperOptions, PlainDial, TlsDial};
use crate::open::{ClientCore, OpenObjects};
use crate::pool::DevicePool;
use crate::put::{self, PutOptions, StoredFile};
use crate::session_file::SavedSession;
use crate::tls::Fingerprint;
use crate::{ClientError, Devices, MemoryBudget, Metadata, ServiceKey, Tuning};

/// How long connecting to the metadata server may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum requests for one recursive removal.
const REMOVE_STEPS_MAX: u32 = 1_000_000;

/// A user's view of the file system. Clones share all state.
///
/// ```no_run
/// use sealstone_client::{Client, GetOptions, PutOptions};
/// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
/// let pin = "6a…".parse()?;
/// let client = Client::connect("mds.example:3270", pin, "alice", b"correct horse").await?;
/// client.put("/notes.txt", &b"hello"[..], PutOptions::default()).await?;
/// let mut text = Vec::new();
/// client.get("/notes.txt", &mut text, GetOptions::default()).await?;
/// assert_eq!(text, b"hello");
/// # Ok(())
/// # }
/// ```
pub struct Client<M = MdsClient, D = DevicePool> {
    pub(crate) core: Arc<ClientCore<M, D>>,
}

impl<M, D> Clone for Client<M, D> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone() }
    }
}

/// Options for connections to devices.
#[derive(Clone, Debug, Default)]
pub struct DeviceConnectOptions {
    /// CHAP credentials for devices that require login authentication.
    pub proofs: Proofs,
    /// When TLS is used.
    pub tls: TlsPolicy,
    /// Conceals the method of each command with the ESM paper's cipher, for devices that require
    /// it. It gives no protection.
    pub conceal_method: bool,
}

impl From<Proofs> for DeviceConnectOptions {
    fn from(proofs: Proofs) -> Self {
        Self { proofs, ..Self::default() }
    }
}

/// Space on all devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFree {
    /// Total bytes of all devices.
    pub total: u64,
    /// Bytes used on the devices.
    pub used: u64,
    /// Number of devices that accept new objects.
    pub active: u32,
    /// Number of devices.
    pub devices: u32,
}

/// The user of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhoAmI {
    /// The account.
    pub user: UserName,
    /// The role of the account.
    pub role: Role,
    /// The groups of the account.
    pub groups: Vec<GroupName>,
    /// When the session ends, in milliseconds since 1970.
    pub expires_ms: u64,
}

impl Client {
    /// Logs in over TLS with default options. Runs Argon2id on the calling task: three passes over
    /// 64 MiB.
    ///
    /// # Errors
    /// `LoginRefused`, `LoginBusy`, `LoginFailed`, `Connection`.
    pub async fn connect(
        server: &str,
        pin: Fingerprint,
        user: &str,
        password: &[u8],
    ) -> Result<Self, ClientError> {
        Self::connect_proving(server, pin, user, password, Proofs::default()).await
    }

    /// As [`Client::connect`], with options for connections to devices.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_proving(
        server: &str,
        pin: Fingerprint,
        user: &str,
        password: &[u8],
        reach: impl Into<DeviceConnectOptions>,
    ) -> Result<Self, ClientError> {
        Self::connect_with(server, pin, MdsOptions::default(), user, password, reach.into()).await
    }

    /// As [`Client::connect_proving`], with options of the metadata server connection, among them
    /// the login suite.
    pub(crate) async fn connect_with(
        server: &str,
        pin: Fingerprint,
        options: MdsOptions,
        user: &str,
        password: &[u8],
        reach: DeviceConnectOptions,
    ) -> Result<Self, ClientError> {
        let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment);
        let user = user_name(user)?;
        let dial = Arc::new(tls(server, pin));
        let mds = MdsClient::login(dial, environment.clone(), options, &user, password).await?;
        Ok(Self::over_iscsi_proving(mds, environment, Tuning::default(), reach))
    }

    /// Logs in with the paper's protocol over plain TCP at `HOST:PORT`. Insecure: from a recorded
    /// login the passphrase can be guessed.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_paper(
        server: &str,
        paper: PaperOptions,
        user: &str,
        passphrase: &str,
        reach: impl Into<DeviceConnectOptions>,
    ) -> Result<Self, ClientError> {
        let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment);
        let (user, options) = (user_name(user)?, MdsOptions::default());
        let mds =
            MdsClient::login_paper(plain(server), environment.clone(), options, paper, &user, passphrase)
                .await?;
        Ok(Self::over_iscsi_proving(mds, environment, Tuning::default(), reach))
    }

    /// Resumes a session from a file; connects at the first request.
    ///
    /// # Errors
    /// None today; an ended session is reported by the first request.
    pub fn resume(saved: &SavedSession) -> Result<Self, ClientError> {
        Self::resume_proving(saved, Proofs::default())
    }

    /// As [`Client::resume`], with options for connections to devices.
    ///
    /// # Errors
    /// As [`Client::resume`].
    pub fn resume_proving(
        saved: &SavedSession,
        reach: impl Into<DeviceConnectOptions>,
    ) -> Result<Self, ClientError> {
        Self::resume_tuned(saved, reach, Tuning::default(), None)
    }

    /// As [`Client::resume_proving`], with limits of memory and parallelism, and optionally a
    /// service's key that logs in again when the session ends.
    ///
    /// # Errors
    /// `LoginFailed` if the key is of a different user; `NotInPaperProfile`.
    pub fn resume_tuned(
        saved: &SavedSession,
        reach: impl Into<DeviceConnectOptions>,
        tuning: Tuning,
        key: Option<ServiceKey>,
    ) -> Result<Self, ClientError> {
        let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment);
        let dial: Arc<dyn MdsDial> = match saved.fingerprint {
            Some(pin) => Arc::new(tls(&saved.server, pin)),
            None => Arc::new(plain(&saved.server)),
        };
        let mds = MdsClient::resume(dial, environment.clone(), MdsOptions::default(), saved.ticket.clone());
        let mds = match key {
            Some(key) => mds.renewing(key)?,
            None => mds,
        };
        Ok(Self::over_iscsi_proving(mds, environment, tuning, reach))
    }

    /// Creates a client over any metadata connection; devices are reached by iSCSI over TCP.
    #[must_use]
    pub fn over_iscsi(mds: MdsClient, environment: Arc<dyn Environment>, tuning: Tuning) -> Self {
        Self::over_iscsi_proving(mds, environment, tuning, Proofs::default())
    }

    /// As [`Client::over_iscsi`], with options for connections to devices.
    #[must_use]
    pub fn over_iscsi_proving(
        mds: MdsClient,
        environment: Arc<dyn Environment>,
        tuning: Tuning,
        reach: impl Into<DeviceConnectOptions>,
    ) -> Self {
        let mut options = OsdOptions::new(&*environment);
        let DeviceConnectOptions { proofs, tls, conceal_method } = reach.into();
        options.session.proofs = proofs;
        options.tls = tls;
        options.conceal_method = conceal_method;
        // Clocks of devices follow the metadata server, so its offset is a good first estimate.
        options.clock_offset_ms = mds.clock_offset_ms();
        let devices = DevicePool::tcp(environment.clone(), options);
        let offset = mds.clock_offset_ms();
        Self::new(mds, devices, environment, offset, tuning)
    }

    /// Saves the session to a file that only its owner can read.
    ///
    /// # Errors
    /// `SessionFileIo`.
    pub fn save(
        &self,
        server: &str,
        fingerprint: Option<Fingerprint>,
        path: &Path,
    ) -> Result<(), ClientError> {
        let ticket = self.core.metadata.ticket().clone();
        SavedSession { server: server.to_owned(), fingerprint, ticket }.save(path)
    }

    /// Ends the session at the server and closes the connections to devices. Credentials that were
    /// issued stay valid until they expire, some minutes at most.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`.
    pub async fn logout(&self) -> Result<(), ClientError> {
        self.core.devices.close().await;
        self.core.metadata.logout().await
    }

    /// As [`Client::logout`], and revokes the credentials of the session. Returns none if too many
    /// revocations are in progress; then they stay valid until they expire. [`Client::revocation`]
    /// reports the progress to the same user.
    ///
    /// # Errors
    /// As [`Client::logout`]; `NotInPaperProfile`.
    pub async fn logout_revoking(&self) -> Result<Option<Revoking>, ClientError> {
        self.core.devices.close().await;
        self.core.metadata.logout_revoking().await
    }
}

fn plain(server: &str) -> PlainDial {
    PlainDial { address: server.to_owned(), timeout: CONNECT_TIMEOUT }
}

pub(crate) fn tls(server: &str, pin: Fingerprint) -> impl MdsDial {
    TlsDial { address: server.to_owned(), pin, timeout: CONNECT_TIMEOUT }
}

/// Extracts the expected response; any other one is a protocol error.
macro_rules! expect {
    ($answer:expr, $pattern:pat => $value:expr) => {
        match $answer {
            $pattern => Ok($value),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    };
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Creates a client over any metadata server and devices. `clock_offset_ms` is the server's
    /// clock minus that of `environment`; it may change.
    #[must_use]
    pub fn new(
        metadata: M,
        devices: D,
        environment: Arc<dyn Environment>,
        clock_offset_ms: Arc<AtomicI64>,
        tuning: Tuning,
    ) -> Self {
        let tuning = tuning.bounded();
        let core = ClientCore {
            metadata,
            devices,
            environment,
            clock_offset_ms,
            known: tokio::sync::Mutex::new(BTreeMap::new()),
            budget: MemoryBudget::new(tuning.memory_bytes),
            buffers: Buffers::new(tuning.memory_bytes),
            tuning,
        };
        Self { core: Arc::new(core) }
    }

    /// Returns the metadata server, for requests that have no method here.
    #[must_use]
    pub fn metadata(&self) -> &M {
        &self.core.metadata
    }

    /// Returns the devices.
    #[must_use]
    pub fn devices(&self) -> &D {
        &self.core.devices
    }

    /// Returns the memory budget of transfers.
    #[must_use]
    pub fn memory(&self) -> &MemoryBudget {
        &self.core.budget
    }

    /// Returns the user of the session.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`; as for all methods here.
    pub async fn whoami(&self) -> Result<WhoAmI, ClientError> {
        let answer = self.core.metadata.call(Request::WhoAmI {}).await?;
        expect!(answer, Response::WhoAmI { user, role, groups, expires_ms, .. } => WhoAmI { user, role, groups, expires_ms })
    }

    /// Returns the attributes of a file or directory.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn stat(&self, path: impl AsRef<[u8]>) -> Result<Stat, ClientError> {
        let answer = self.core.metadata.call(Request::Stat { path: file_path(path)? }).await?;
        expect!(answer, Response::Stat { stat } => stat)
    }

    /// Returns the layout of a file and why it was chosen; none for nodes without bytes.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn placement(
        &self,
        path: impl AsRef<[u8]>,
    ) -> Result<(Option<Layout>, Option<PlacementRecord>), ClientError> {
        let answer = self.core.metadata.call(Request::Placement { path: file_path(path)? }).await?;
        expect!(answer, Response::Placement { layout, placed } => (layout, placed))
    }

    /// As [`Client::stat`], without following a symbolic link at the end of the path.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn lstat(&self, path: impl AsRef<[u8]>) -> Result<Stat, ClientError> {
        let answer = self.core.metadata.call(Request::Lstat { path: file_path(path)? }).await?;
        expect!(answer, Response::Stat { stat } => stat)
    }

    /// Returns the entries of a directory, fetched page by page.
    ///
    /// # Errors
    /// `Name` if the path is not valid.
    pub fn list(&self, path: impl AsRef<[u8]>) -> Result<Listing<M, D>, ClientError> {
        let path = file_path(path)?;
        Ok(Listing { core: self.core.clone(), path, page: VecDeque::new(), after: None, more: true })
    }

    /// Creates a directory. With `parents`, missing parents are created and the directory may
    /// exist.
    ///
    /// # Errors
    /// `Refused` with `Exists`, `NotFound` or `Denied` among others.
    pub async fn mkdir(&self, path: impl AsRef<[u8]>, parents: bool, mode: u16) -> Result<Stat, ClientError> {
        let request = Request::MakeDir { path: file_path(path)?, parents, mode };
        expect!(self.core.metadata.call(request).await?, Response::Stat { stat } => stat)
    }

    /// Renames a file or directory. With `replace`, it may replace a file or an empty directory.
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `Exists`, `Cycle` among others.
    pub async fn rename(
        &self,
        from: impl AsRef<[u8]>,
        to: impl AsRef<[u8]>,
        replace: bool,
    ) -> Result<(), ClientError> {
        let request = Request::Rename { from: file_path(from)?, to: file_path(to)?, replace };
        expect!(self.core.metadata.call(request).await?, Response::Done {} | Response::Stat { .. } => ())
    }

    /// Removes a file or directory, with `recursive` also everything below it. Returns the number
    /// of removed nodes.
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `NotEmpty`, `Denied` among others.
    pub async fn remove(&self, path: impl AsRef<[u8]>, recursive: bool) -> Result<u64, ClientError> {
        let path = file_path(path)?;
        let mut removed = 0u64;
        for _ in 0..REMOVE_STEPS_MAX {
            let request = Request::Remove { path: path.clone(), recursive };
            let answer = self.core.metadata.call(request).await?;
            let (count, more) = expect!(answer, Response::Removed { count, more } => (count, more))?;
            removed = removed.saturating_add(count);
            if !more {
                break;
            }
        }
        Ok(removed)
    }

    /// Changes the permission bits.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn set_mode(&self, path: impl AsRef<[u8]>, mode: u16) -> Result<Stat, ClientError> {
        let request = Request::SetMode { path: file_path(path)?, mode };
        expect!(self.core.metadata.call(request).await?, Response::Stat { stat } => stat)
    }

    /// Stores all bytes of `source` as a file.
    ///
    /// # Errors
    /// Any [`ClientError`]. Nothing new is visible under the name then, unless it is
    /// `OutcomeUnknown` of the commit.
    pub async fn put(
        &self,
        path: impl AsRef<[u8]>,
        source: impl AsyncRead + Unpin + Send,
        options: PutOptions,
    ) -> Result<Stat, ClientError> {
        put::put(&self.core, &file_path(path)?, source, options).await
    }

    /// Stores a local file with its size, modification time and holes.
    ///
    /// # Errors
    /// As [`Client::put`]; `SourceChanged` if it changes while it is read.
    pub async fn put_file(
        &self,
        path: impl AsRef<[u8]>,
        local: &Path,
        options: PutOptions,
    ) -> Result<Stat, ClientError> {
        let source = tokio::fs::File::open(local).await.map_err(ClientError::Source)?.into_std().await;
        Ok(put::put_file(&self.core, &file_path(path)?, source, options, false).await?.stat)
    }

    /// Stores an open local file from its beginning, with size, modification time and holes. With
    /// `is_final` it is stored even if it changes meanwhile; if it grows, a prefix of it.
    ///
    /// # Errors
    /// As [`Client::put_file`].
    pub async fn put_open_file(
        &self,
        path: impl AsRef<[u8]>,
        file: std::fs::File,
        options: PutOptions,
        is_final: bool,
    ) -> Result<StoredFile, ClientError> {
        put::put_file(&self.core, &file_path(path)?, file, options, is_final).await
    }

    /// Reads a file into `sink`.
    ///
    /// # Errors
    /// Any [`ClientError`]. The sink then has a part of the file at most, or wrong bytes if it is
    /// `ChecksumMismatch`.
    pub async fn get(
        &self,
        path: impl AsRef<[u8]>,
        sink: impl AsyncWrite + Unpin + Send,
        options: GetOptions,
    ) -> Result<Stat, ClientError> {
        get::get(&self.core, &file_path(path)?, sink, options).await
    }

    /// Reads a file into an empty local file from its current offset on. Holes are preserved.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn get_file(
        &self,
        path: impl AsRef<[u8]>,
        file: &mut tokio::fs::File,
        options: GetOptions,
    ) -> Result<Stat, ClientError> {
        get::get_file(&self.core, &file_path(path)?, file, options).await
    }

    /// Opens a file for reading at any offset.
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `Denied`, `IsADirectory` among others.
    pub async fn open(&self, path: impl AsRef<[u8]>, method: Method) -> Result<OpenFile<M, D>, ClientError> {
        let (stat, objects) = get::open(&self.core, &file_path(path)?, Access::Read, method).await?;
        Ok(OpenFile { stat, objects })
    }

    /// Returns all devices.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`.
    pub async fn device_list(&self) -> Result<Vec<Device>, ClientError> {
        self.core.list_devices().await
    }

    /// Returns the space on all devices.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`.
    pub async fn disk_free(&self) -> Result<DiskFree, ClientError> {
        let answer = self.core.metadata.call(Request::DiskFree {}).await?;
        expect!(answer, Response::DiskFree { total, used, active, devices } => DiskFree { total, used, active, devices })
    }
}

/// The entries of a directory, in byte order of their names.
pub struct Listing<M = MdsClient, D = DevicePool> {
    core: Arc<ClientCore<M, D>>,
    path: FilePath,
    page: VecDeque<DirEntry>,
    after: Option<Name>,
    more: bool,
}

impl<M: Metadata, D: Devices> Listing<M, D> {
    /// Returns the next entry; requests the next page when the current one is used up.
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `NotADirectory` or `Denied` among others.
    pub async fn next(&mut self) -> Result<Option<DirEntry>, ClientError> {
        while self.page.is_empty() && self.more {
            let after = self.after.clone();
            let request = Request::ReadDir { path: self.path.clone(), after, limit: PAGE_MAX };
            let answer = self.core.metadata.call(request).await?;
            let (entries, more) = expect!(answer, Response::Directory { entries, more } => (entries, more))?;
            let last = entries.last().map(|entry| entry.name.clone());
            if last.is_some() && last <= self.after {
                return Err(ClientError::Protocol("directory entries out of order"));
            }
            self.more = more && last.is_some();
            self.after = last.or(self.after.take());
            self.page = entries.into();
        }
        Ok(self.page.pop_front())
    }

    /// Returns all remaining entries.
    ///
    /// # Errors
    /// As [`Listing::next`].
    pub async fn collect(mut self) -> Result<Vec<DirEntry>, ClientError> {
        let mut all = Vec::new();
        while let Some(entry) = self.next().await? {
            all.push(entry);
        }
        Ok(all)
    }
}

/// A file that was opened for reading; it is read as of the open.
pub struct OpenFile<M = MdsClient, D = DevicePool> {
    stat: Stat,
    objects: Arc<OpenObjects<M, D>>,
}

impl<M: Metadata, D: Devices> OpenFile<M, D> {
    /// Returns the attributes as of the open.
    #[must_use]
    pub const fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Whether it is a regular file.
    #[must_use]
    pub const fn is_file(&self) -> bool {
        matches!(self.stat.kind, FileKind::File)
    }

    /// Fills `into` from `offset` on; returns the number of bytes before the end of the file.
    ///
    /// # Errors
    /// `Device`, `DataMissing`; `Refused` with `Stale` if the file was replaced or removed and its
    /// data no longer exists.
    pub async fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, ClientError> {
        get::read_at(&self.objects.latest(), self.stat.size, offset, into).await
    }

    /// Reads a range, as far as the file has it.
    ///
    /// # Errors
    /// As [`OpenFile::read_at`].
    pub async fn read(&self, range: Range<u64>) -> Result<Vec<u8>, ClientError> {
        let end = range.end.min(self.stat.size);
        let length = usize::try_from(end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length];
        let count = self.read_at(range.start, &mut bytes).await?;
        bytes.truncate(count);
        Ok(bytes)
    }
}

/// Parses a path. Its bytes are stored as they are, without escapes.
pub(crate) fn file_path(path: impl AsRef<[u8]>) -> Result<FilePath, ClientError> {
    FilePath::new(path).map_err(ClientError::Name)
}

/// Parses the name of an account.
pub(crate) fn user_name(text: &str) -> Result<UserName, ClientError> {
    UserName::new(text).map_err(ClientError::Name)
}
