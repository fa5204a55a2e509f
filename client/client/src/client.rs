//! Files: the public interface.
//!
//! Does: names and metadata through the metadata server, bytes straight to and from the devices.
//! Does not: cache data or names; two clients see each other's commits at once.
//! Contract: generic over its two seams; [`Client::connect`] fills them with TLS and iSCSI.

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
use crate::mds::{Mds, MdsDial, MdsOptions, PaperOptions, PlainDial, TlsDial};
use crate::open::{Core, OpenObjects};
use crate::pool::DevicePool;
use crate::put::{self, PutOptions, StoredFile};
use crate::session_file::SavedSession;
use crate::tls::Fingerprint;
use crate::{ClientError, Devices, MemoryBudget, Metadata, ServiceKey, Tuning};

/// How long connecting to the metadata server may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests that one removal of a tree takes at most.
const REMOVE_STEPS_MAX: u32 = 1_000_000;

/// A user's view of the file system. Clones share everything.
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
pub struct Client<M = Mds, D = DevicePool> {
    pub(crate) core: Arc<Core<M, D>>,
}

impl<M, D> Clone for Client<M, D> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone() }
    }
}

/// How devices are reached.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// What we prove to those that ask who logs in.
    pub proofs: Proofs,
    /// When they are talked to inside TLS.
    pub tls: TlsPolicy,
    /// Conceal the method of each command by the ESM paper's cipher, for devices that ask for it; it protects nothing.
    pub conceal_method: bool,
}

impl From<Proofs> for Reach {
    fn from(proofs: Proofs) -> Self {
        Self { proofs, ..Self::default() }
    }
}

/// Space on all devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFree {
    /// Bytes of all devices.
    pub total: u64,
    /// Bytes in use on them.
    pub used: u64,
    /// Devices that take new objects.
    pub active: u32,
    /// All devices.
    pub devices: u32,
}

/// Whose session it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhoAmI {
    /// Account.
    pub user: UserName,
    /// What it may do.
    pub role: Role,
    /// Its groups.
    pub groups: Vec<GroupName>,
    /// When the session ends, milliseconds since 1970.
    pub expires_ms: u64,
}

impl Client {
    /// Logs in over TLS with usual settings. Runs Argon2id on the calling task: three passes over 64 MiB.
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

    /// [`Client::connect`], with what we prove to devices that ask who logs in, and when they
    /// are talked to inside TLS.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_proving(
        server: &str,
        pin: Fingerprint,
        user: &str,
        password: &[u8],
        reach: impl Into<Reach>,
    ) -> Result<Self, ClientError> {
        Self::connect_with(server, pin, MdsOptions::default(), user, password, reach.into()).await
    }

    /// [`Client::connect_proving`], with settings of its own: the suite of the account among them.
    pub(crate) async fn connect_with(
        server: &str,
        pin: Fingerprint,
        options: MdsOptions,
        user: &str,
        password: &[u8],
        reach: Reach,
    ) -> Result<Self, ClientError> {
        let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment);
        let user = user_name(user)?;
        let dial = Arc::new(tls(server, pin));
        let mds = Mds::login(dial, environment.clone(), options, &user, password).await?;
        Ok(Self::over_iscsi_proving(mds, environment, Tuning::default(), reach))
    }

    /// Logs in as the paper has it, over plain TCP at `HOST:PORT`. Insecure: whoever records it can guess the passphrase.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_paper(
        server: &str,
        paper: PaperOptions,
        user: &str,
        passphrase: &str,
        reach: impl Into<Reach>,
    ) -> Result<Self, ClientError> {
        let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment);
        let (user, options) = (user_name(user)?, MdsOptions::default());
        let mds =
            Mds::login_paper(plain(server), environment.clone(), options, paper, &user, passphrase).await?;
        Ok(Self::over_iscsi_proving(mds, environment, Tuning::default(), reach))
    }

    /// Goes on with a session from a file; connects at the first request.
    ///
    /// # Errors
    /// None today; the session may turn out to be over at the first request.
    pub fn resume(saved: &SavedSession) -> Result<Self, ClientError> {
        Self::resume_proving(saved, Proofs::default())
    }

    /// [`Client::resume`], with what we prove to devices that ask who logs in, and when they
    /// are talked to inside TLS.
    ///
    /// # Errors
    /// As [`Client::resume`].
    pub fn resume_proving(saved: &SavedSession, reach: impl Into<Reach>) -> Result<Self, ClientError> {
        Self::resume_tuned(saved, reach, Tuning::default(), None)
    }

    /// [`Client::resume_proving`], with memory and parallelism of one's own, and a service's key perhaps that begins
    /// another session whenever one is over.
    ///
    /// # Errors
    /// `LoginFailed` if the key is another user's; `NotInPaperProfile`.
    pub fn resume_tuned(
        saved: &SavedSession,
        reach: impl Into<Reach>,
        tuning: Tuning,
        key: Option<ServiceKey>,
    ) -> Result<Self, ClientError> {
        let environment: Arc<dyn Environment> = Arc::new(SystemEnvironment);
        let dial: Arc<dyn MdsDial> = match saved.fingerprint {
            Some(pin) => Arc::new(tls(&saved.server, pin)),
            None => Arc::new(plain(&saved.server)),
        };
        let mds = Mds::resume(dial, environment.clone(), MdsOptions::default(), saved.ticket.clone());
        let mds = match key {
            Some(key) => mds.renewing(key)?,
            None => mds,
        };
        Ok(Self::over_iscsi_proving(mds, environment, tuning, reach))
    }

    /// With any way to the metadata server; the devices are reached by iSCSI over TCP.
    #[must_use]
    pub fn over_iscsi(mds: Mds, environment: Arc<dyn Environment>, tuning: Tuning) -> Self {
        Self::over_iscsi_proving(mds, environment, tuning, Proofs::default())
    }

    /// [`Client::over_iscsi`], with what we prove to devices that ask who logs in, and when they
    /// are talked to inside TLS.
    #[must_use]
    pub fn over_iscsi_proving(
        mds: Mds,
        environment: Arc<dyn Environment>,
        tuning: Tuning,
        reach: impl Into<Reach>,
    ) -> Self {
        let mut options = OsdOptions::new(&*environment);
        let Reach { proofs, tls, conceal_method } = reach.into();
        options.session.proofs = proofs;
        options.tls = tls;
        options.conceal_method = conceal_method;
        // Devices follow the metadata server: what is known of its clock is a good guess at theirs.
        options.clock_offset_ms = mds.clock_offset_ms();
        let devices = DevicePool::tcp(environment.clone(), options);
        let offset = mds.clock_offset_ms();
        Self::new(mds, devices, environment, offset, tuning)
    }

    /// Keeps the session in a file that only its owner can read.
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

    /// Ends the session at the server and closes the connections to devices. Credentials that it was given live until
    /// they expire, some minutes at most.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`.
    pub async fn logout(&self) -> Result<(), ClientError> {
        self.core.devices.close().await;
        self.core.metadata.logout().await
    }

    /// The same, and has the credentials revoked that the session was given; none if too many revocations are under way,
    /// and then they live until they expire. [`Client::revocation`] tells how far it is, to the same user.
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

/// Takes the wanted answer apart; any other one breaks the protocol.
macro_rules! expect {
    ($answer:expr, $pattern:pat => $value:expr) => {
        match $answer {
            $pattern => Ok($value),
            _ => Err(ClientError::OTHER_ANSWER),
        }
    };
}

impl<M: Metadata, D: Devices> Client<M, D> {
    /// Over any two seams. `clock_offset_ms` is the server's clock minus that of `environment`; it may change.
    #[must_use]
    pub fn new(
        metadata: M,
        devices: D,
        environment: Arc<dyn Environment>,
        clock_offset_ms: Arc<AtomicI64>,
        tuning: Tuning,
    ) -> Self {
        let tuning = tuning.bounded();
        let core = Core {
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

    /// The metadata server, for requests without a method of their own here.
    #[must_use]
    pub fn metadata(&self) -> &M {
        &self.core.metadata
    }

    /// The devices.
    #[must_use]
    pub fn devices(&self) -> &D {
        &self.core.devices
    }

    /// Memory that transfers hold and may hold.
    #[must_use]
    pub fn memory(&self) -> &MemoryBudget {
        &self.core.budget
    }

    /// Whose session it is.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`; as for all methods here.
    pub async fn whoami(&self) -> Result<WhoAmI, ClientError> {
        let answer = self.core.metadata.call(Request::WhoAmI {}).await?;
        expect!(answer, Response::WhoAmI { user, role, groups, expires_ms, .. } => WhoAmI { user, role, groups, expires_ms })
    }

    /// What is known of a file or directory.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn stat(&self, path: impl AsRef<[u8]>) -> Result<Stat, ClientError> {
        let answer = self.core.metadata.call(Request::Stat { path: file_path(path)? }).await?;
        expect!(answer, Response::Stat { stat } => stat)
    }

    /// Where the bytes of a file lie, and why there; nothing for what has no bytes.
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

    /// The same; of a symbolic link under the last name what is known of itself.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn lstat(&self, path: impl AsRef<[u8]>) -> Result<Stat, ClientError> {
        let answer = self.core.metadata.call(Request::Lstat { path: file_path(path)? }).await?;
        expect!(answer, Response::Stat { stat } => stat)
    }

    /// The entries of a directory, page by page.
    ///
    /// # Errors
    /// `Message` for a path that is none.
    pub fn list(&self, path: impl AsRef<[u8]>) -> Result<Listing<M, D>, ClientError> {
        let path = file_path(path)?;
        Ok(Listing { core: self.core.clone(), path, page: VecDeque::new(), after: None, more: true })
    }

    /// Makes a directory; with `parents` missing ones above it too, and it may exist.
    ///
    /// # Errors
    /// `Refused` with `Exists`, `NotFound` or `Denied` among others.
    pub async fn mkdir(&self, path: impl AsRef<[u8]>, parents: bool, mode: u16) -> Result<Stat, ClientError> {
        let request = Request::MakeDir { path: file_path(path)?, parents, mode };
        expect!(self.core.metadata.call(request).await?, Response::Stat { stat } => stat)
    }

    /// Moves a file or directory; with `replace` it may take the place of an older file or empty directory.
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

    /// Removes a file or directory; with `recursive` all below it too. Gives the number of things removed.
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

    /// Changes permission bits.
    ///
    /// # Errors
    /// `Refused` with `NotFound` or `Denied` among others.
    pub async fn set_mode(&self, path: impl AsRef<[u8]>, mode: u16) -> Result<Stat, ClientError> {
        let request = Request::SetMode { path: file_path(path)?, mode };
        expect!(self.core.metadata.call(request).await?, Response::Stat { stat } => stat)
    }

    /// Stores a file: all bytes that `source` gives until its end.
    ///
    /// # Errors
    /// Any [`ClientError`]; then nothing is visible under the name that was not there before, unless it is
    /// `OutcomeUnknown` of the commit.
    pub async fn put(
        &self,
        path: impl AsRef<[u8]>,
        source: impl AsyncRead + Unpin + Send,
        options: PutOptions,
    ) -> Result<Stat, ClientError> {
        put::put(&self.core, &file_path(path)?, source, options).await
    }

    /// Stores a local file with its size, time of change and holes.
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

    /// Stores an open local file from its beginning, with its size, time of change and holes. `is_final`: it is stored also
    /// if it changes while it is read, as a prefix if it grows.
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
    /// Any [`ClientError`]; the sink then holds a part of the file at most, and with `ChecksumMismatch` wrong bytes.
    pub async fn get(
        &self,
        path: impl AsRef<[u8]>,
        sink: impl AsyncWrite + Unpin + Send,
        options: GetOptions,
    ) -> Result<Stat, ClientError> {
        get::get(&self.core, &file_path(path)?, sink, options).await
    }

    /// Reads a file into an empty regular file of this machine, from its current place on. Holes stay holes.
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

    /// Opens a file to read parts of it.
    ///
    /// # Errors
    /// `Refused` with `NotFound`, `Denied`, `IsADirectory` among others.
    pub async fn open(&self, path: impl AsRef<[u8]>, method: Method) -> Result<OpenFile<M, D>, ClientError> {
        let (stat, objects) = get::open(&self.core, &file_path(path)?, Access::Read, method).await?;
        Ok(OpenFile { stat, objects })
    }

    /// All devices.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`.
    pub async fn device_list(&self) -> Result<Vec<Device>, ClientError> {
        self.core.list_devices().await
    }

    /// Space on all devices.
    ///
    /// # Errors
    /// `SessionOver`, `Connection`.
    pub async fn disk_free(&self) -> Result<DiskFree, ClientError> {
        let answer = self.core.metadata.call(Request::DiskFree {}).await?;
        expect!(answer, Response::DiskFree { total, used, active, devices } => DiskFree { total, used, active, devices })
    }
}

/// The entries of a directory, in byte order of their names.
pub struct Listing<M = Mds, D = DevicePool> {
    core: Arc<Core<M, D>>,
    path: FilePath,
    page: VecDeque<DirEntry>,
    after: Option<Name>,
    more: bool,
}

impl<M: Metadata, D: Devices> Listing<M, D> {
    /// The next entry; asks for the next page when one is used up.
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
                return Err(ClientError::Protocol("the directory does not ascend"));
            }
            self.more = more && last.is_some();
            self.after = last.or(self.after.take());
            self.page = entries.into();
        }
        Ok(self.page.pop_front())
    }

    /// All entries that are left.
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

/// A file opened for reading: what it was when it was opened.
pub struct OpenFile<M = Mds, D = DevicePool> {
    stat: Stat,
    objects: Arc<OpenObjects<M, D>>,
}

impl<M: Metadata, D: Devices> OpenFile<M, D> {
    /// What was known of it when it was opened.
    #[must_use]
    pub const fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Is it a file with data?
    #[must_use]
    pub const fn is_file(&self) -> bool {
        matches!(self.stat.kind, FileKind::File)
    }

    /// Fills `into` from `offset` on; gives the number of bytes before the end of the file.
    ///
    /// # Errors
    /// `Device`, `DataMissing`; `Refused` with `Stale` if the file was replaced or removed and its data is gone.
    pub async fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, ClientError> {
        get::read_at(&self.objects.latest(), self.stat.size, offset, into).await
    }

    /// The bytes of a range, as far as the file has them.
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

/// Checks a path. Its bytes are the stored ones: nothing in them is an escape.
pub(crate) fn file_path(path: impl AsRef<[u8]>) -> Result<FilePath, ClientError> {
    FilePath::new(path).map_err(ClientError::Name)
}

/// An account's name as the caller wrote it.
pub(crate) fn user_name(text: &str) -> Result<UserName, ClientError> {
    UserName::new(text).map_err(ClientError::Name)
}
