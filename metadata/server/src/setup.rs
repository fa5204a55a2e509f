//! The data folder: made once, opened on every start.
//!
//! Contract: the store gets its name, or becomes a server's, as the last step of [`init`]; before it, [`open`] says
//! `Unfinished` and [`init`] may be run again; after it, [`init`] refuses.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sealstone_channel::{Authority, Identity, IdentityError, Pin, Server};
use sealstone_mds::audit::{AuditSink, NoAudit};
use sealstone_mds::store::{AdoptError, MetaStore, RandomFill, SealedStore, adopt, clear_mark, is_sealed};
use sealstone_mds::{Config, Mds, OpenError, ServerName};
use sealstone_mds_protocol::UserName;
use sealstone_meta::EmbeddedMeta;
use zeroize::Zeroizing;

use crate::environment::Environment;
use crate::files::{self, FileError};
use crate::grant_log::{self, FileGrantLog, GrantLogSizes};
use crate::keystore::{KEYSTORE_FILE, KEYSTORE_KEY_FILE, Keystore, KeystoreError, Protection, Unlock};
use crate::location::{LOCATION_FILE, Location, LocationError, open_store};
use crate::tls::{self, CERTIFICATE_LIFE, Fingerprint, SUBJECT};

/// The metadata store, mode 0600: its secrets are sealed by the keystore, all else is in the clear.
pub(crate) const STORE_FILE: &str = "meta.redb";
/// Its name until it is set up. The engine's own file is not made in one step, so a half-made one must not be taken for
/// a store that was damaged later.
pub(crate) const STORE_FILE_NEW: &str = "meta.redb.new";
/// The name of a server among those that use one store, 16 bytes.
const SERVER_FILE: &str = "server-name";
/// The server's certificate, DER; its SHA-256 is what clients pin.
pub const CERTIFICATE_FILE: &str = "certificate.der";
/// The certificate's key, PKCS #8, mode 0600.
pub(crate) const KEY_FILE: &str = "certificate-key.der";
/// The certificate of the cluster's own authority, DER; it signed the server's and may sign those of devices.
pub const AUTHORITY_FILE: &str = "ca.der";
/// Its key, PKCS #8, mode 0600: whoever has it can be the server, or a device, for those who know them by the authority.
const AUTHORITY_KEY_FILE: &str = "ca-key.der";
/// The administrator's password, mode 0600; a line end follows it.
pub const ADMIN_SECRET_FILE: &str = "admin-secret";
/// What an interrupted setup may leave behind, temporary names included.
const OWN_FILES: [&str; 20] = [
    LOCATION_FILE,
    grant_log::FOLDER,
    KEYSTORE_FILE,
    KEYSTORE_KEY_FILE,
    "keystore.new",
    "metadata-store.new",
    "backup.new",
    STORE_FILE_NEW,
    // A server that found the store not set up leaves an empty journal beside it.
    "meta.redb.journal-0",
    "meta.redb.journal-1",
    CERTIFICATE_FILE,
    KEY_FILE,
    AUTHORITY_FILE,
    AUTHORITY_KEY_FILE,
    ADMIN_SECRET_FILE,
    "ca.new",
    "ca-key.new",
    "certificate.new",
    "certificate-key.new",
    "admin-secret.new",
];
/// Random characters of that password: 26 of 32 letters and digits are 130 bits.
const SECRET_CHARACTERS: usize = 26;

/// Why a data folder cannot be set up or used.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// It is set up already.
    #[error("{} is set up already", .0.display())]
    AlreadySetUp(PathBuf),
    /// The folder has something else in it.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// Setup was interrupted or never begun: run it (again).
    #[error("{} is not set up, or its setup was interrupted: run init", .0.display())]
    Unfinished(PathBuf),
    /// A file cannot be used.
    #[error("cannot use a file of the data folder")]
    File(#[from] FileError),
    /// The store's file cannot be used.
    #[error("cannot open the metadata store")]
    Store(#[from] sealstone_meta::OpenError),
    /// The database cannot be used.
    #[cfg(feature = "postgres")]
    #[error("cannot open the metadata store")]
    Database(#[from] sealstone_meta::PostgresError),
    /// The LDAP server cannot be used.
    #[cfg(feature = "ldap")]
    #[error("cannot open the metadata store")]
    Ldap(#[from] sealstone_meta::LdapStoreError),
    /// It is not known where the store is.
    #[error(transparent)]
    Location(#[from] LocationError),
    /// There is something in the store, and it is not a server's.
    #[error("the metadata store at {0} is not empty")]
    StoreNotEmpty(String),
    /// What the store holds cannot be used.
    #[error("cannot use the metadata store")]
    Contents(#[source] OpenError),
    /// The keystore cannot be used.
    #[error("cannot use the keystore")]
    Keystore(#[from] KeystoreError),
    /// The keystore is not the store's.
    #[error("the keystore does not fit the metadata store")]
    Adopt(#[from] AdoptError),
    /// The certificate or its key cannot be used.
    #[error("the TLS certificate or its key cannot be used")]
    Certificate(#[from] IdentityError),
    /// The folder has no authority: it was set up before there was one.
    #[error("{} has no authority of its own (ca.der)", .0.display())]
    NoAuthority(PathBuf),
}

impl SetupError {
    /// Is it that others may read a file that holds a secret?
    #[must_use]
    pub const fn is_exposed(&self) -> bool {
        match self {
            Self::File(error) => error.is_exposed(),
            Self::Keystore(error) => error.is_exposed(),
            Self::Store(error) => matches!(error, sealstone_meta::OpenError::Exposed { .. }),
            _ => false,
        }
    }
}

/// What setup made.
#[derive(Clone, Debug)]
pub struct InitReport {
    /// The administrator's name.
    pub admin: UserName,
    /// Where the administrator's password is.
    pub admin_secret: PathBuf,
    /// What clients pin.
    pub fingerprint: Fingerprint,
    /// What clients may pin instead.
    pub authority: Pin,
}

/// Sets a data folder up: keystore, certificate, administrator, empty store. A second run after an interrupted one
/// begins anew. The keystore is sealed under a key file in the folder.
///
/// # Errors
/// See [`SetupError`].
pub fn init(folder: &Path, admin: &UserName, environment: &Environment) -> Result<InitReport, SetupError> {
    init_under(folder, admin, environment, &Protection::KeyFile(None), None)
}

/// The same, with the keystore sealed under `protection`, and the metadata at `location`, if there is one.
///
/// # Errors
/// See [`SetupError`].
pub fn init_under(
    folder: &Path,
    admin: &UserName,
    environment: &Environment,
    protection: &Protection,
    location: Option<&Location>,
) -> Result<InitReport, SetupError> {
    files::make_folder(folder)?;
    let (path, unnamed) = (folder.join(STORE_FILE), folder.join(STORE_FILE_NEW));
    if let Some(kept) = Location::of_folder(folder)? {
        // Where an interrupted run meant to go; it counts if it arrived.
        if Mds::is_set_up(&*kept.open()?).map_err(SetupError::Contents)? {
            return Err(SetupError::AlreadySetUp(folder.to_owned()));
        }
        files::remove(&folder.join(LOCATION_FILE))?;
    }
    let is_new = !path.exists();
    if is_new && files::others(folder, &OWN_FILES)? {
        return Err(SetupError::NotEmpty(folder.to_owned()));
    }
    // Holds the file's lock until the end, so that two runs cannot mix.
    let store: Arc<dyn MetaStore> = match location {
        Some(_) if !is_new => return Err(SetupError::AlreadySetUp(folder.to_owned())),
        Some(location) => begin_elsewhere(location)?,
        None if is_new => Arc::new(begin_store(&unnamed)?),
        None => Arc::new(EmbeddedMeta::open(&path)?),
    };
    let mut rng = (environment.entropy)();
    let secret = new_secret(&mut *rng);
    let admin_secret = folder.join(ADMIN_SECRET_FILE);
    match Mds::is_set_up(&*store) {
        Ok(false) => {}
        Ok(true) => return Err(SetupError::AlreadySetUp(folder.to_owned())),
        Err(error) => return Err(SetupError::Contents(error)),
    }
    let authority = Authority::new()?;
    files::write(&folder.join(AUTHORITY_KEY_FILE), &authority.key(), 0o600)?;
    files::write(&folder.join(AUTHORITY_FILE), authority.certificate(), 0o644)?;
    let certificate = certify(folder, &authority, environment.now_ms())?;
    files::write(&admin_secret, &[secret.as_slice(), b"\n"].concat(), 0o600)?;
    let mut keystore = Keystore::draw(&mut *rng);
    keystore.write(folder, protection, &mut *rng)?;
    // Nothing was given out yet, and the log knows it.
    grant_log(folder)?;
    if let Some(location) = location {
        location.keep(folder)?;
    }
    let store = take_over(store, &keystore, environment)?;
    Mds::set_up(&store, admin, &secret, environment.now_ms(), &mut *rng).map_err(|error| match error {
        OpenError::AlreadySetUp => SetupError::AlreadySetUp(folder.to_owned()),
        other => SetupError::Contents(other),
    })?;
    if is_new && location.is_none() {
        files::rename(&unnamed, &path)?;
    }
    Ok(InitReport {
        admin: admin.clone(),
        admin_secret,
        fingerprint: certificate,
        authority: authority.pin(),
    })
}

fn grant_log(folder: &Path) -> Result<FileGrantLog, FileError> {
    let boot = FileGrantLog::boot_id();
    FileGrantLog::open(folder, GrantLogSizes::default(), boot.as_deref())
        .map_err(|source| FileError::Io { path: folder.join(grant_log::FOLDER), source })
}

/// A certificate of the server, signed by its authority, in the place of an older one.
fn certify(folder: &Path, authority: &Authority, now_ms: u64) -> Result<Fingerprint, SetupError> {
    let made = authority.issue(SUBJECT, now_ms, CERTIFICATE_LIFE)?;
    let certificate = made.chain.first().ok_or(IdentityError::Empty)?;
    files::write(&folder.join(KEY_FILE), &made.key, 0o600)?;
    files::write(&folder.join(CERTIFICATE_FILE), certificate, 0o644)?;
    Ok(Fingerprint::of(certificate))
}

fn authority(folder: &Path) -> Result<Option<Authority>, SetupError> {
    let path = folder.join(AUTHORITY_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let key = files::read_secret(&folder.join(AUTHORITY_KEY_FILE))?;
    Ok(Some(Authority::load(files::read(&path)?, &key)?))
}

/// A new key and a certificate for `name`, signed by the authority of the folder, from now on for so long.
///
/// # Errors
/// `NoAuthority`, `File`, `Certificate`.
pub fn issue_certificate(
    folder: &Path,
    name: &str,
    life: core::time::Duration,
    environment: &Environment,
) -> Result<Identity, SetupError> {
    let authority = authority(folder)?.ok_or_else(|| SetupError::NoAuthority(folder.to_owned()))?;
    Ok(authority.issue(name, environment.now_ms(), life)?)
}

/// A folder for a store from elsewhere, and an empty store in it under its first name.
pub(crate) fn begin_folder(folder: &Path) -> Result<EmbeddedMeta, SetupError> {
    files::make_folder(folder)?;
    if is_set_up(folder).is_ok() {
        return Err(SetupError::AlreadySetUp(folder.to_owned()));
    }
    if files::others(folder, &OWN_FILES)? {
        return Err(SetupError::NotEmpty(folder.to_owned()));
    }
    begin_store(&folder.join(STORE_FILE_NEW))
}

/// A store with its keystore on top.
pub(crate) fn take_over(
    store: Arc<dyn MetaStore>,
    keystore: &Keystore,
    environment: &Environment,
) -> Result<SealedStore, AdoptError> {
    let entropy = Arc::clone(&environment.entropy);
    let fill: RandomFill = Arc::new(move |into| entropy().fill_bytes(into));
    adopt(store, keystore.seal(), keystore.id(), fill)
}

/// The folder's keystore, opened. One is made, under a key file, for a store whose secrets are not sealed yet.
pub(crate) fn keystore_of(
    folder: &Path,
    store: &dyn MetaStore,
    unlock: &Unlock,
    environment: &Environment,
) -> Result<Keystore, SetupError> {
    let sealed = is_sealed(store).map_err(AdoptError::from)?;
    if let Some(keystore) = Keystore::open(folder, unlock)? {
        return Ok(keystore);
    }
    if sealed {
        return Err(KeystoreError::Missing(folder.join(KEYSTORE_FILE)).into());
    }
    let mut rng = (environment.entropy)();
    let mut keystore = Keystore::draw(&mut *rng);
    keystore.write(folder, &Protection::KeyFile(None), &mut *rng)?;
    tracing::warn!(
        "the keys in the metadata store were in the clear and are sealed now; what they were may stay in free pages \
         of the file: change the devices' master keys (sealstone mds keys rotate master)"
    );
    Ok(keystore)
}

/// Makes a folder for another server beside one whose metadata is in a database: it gets the keystore, the certificate and
/// the database's place, and a record of credentials of its own.
///
/// # Errors
/// See [`SetupError`]; `NotShared` if the other's metadata is in a file.
pub fn join(from: &Path, folder: &Path) -> Result<(), SetupError> {
    is_set_up(from)?;
    let location = Location::of_folder(from)?.filter(Location::is_shared);
    let location = location.ok_or_else(|| LocationError::NotShared(from.to_owned()))?;
    files::make_folder(folder)?;
    if is_set_up(folder).is_ok() {
        return Err(SetupError::AlreadySetUp(folder.to_owned()));
    }
    if files::others(folder, &OWN_FILES)? {
        return Err(SetupError::NotEmpty(folder.to_owned()));
    }
    for (name, mode) in [
        (KEYSTORE_FILE, 0o600),
        (KEYSTORE_KEY_FILE, 0o600),
        (KEY_FILE, 0o600),
        (CERTIFICATE_FILE, 0o644),
        (AUTHORITY_FILE, 0o644),
    ] {
        let path = from.join(name);
        // The keystore's key may be elsewhere, or there is none; an old folder has no authority.
        if [KEYSTORE_KEY_FILE, AUTHORITY_FILE].contains(&name) && !path.exists() {
            continue;
        }
        let content =
            if mode == 0o600 { files::read_secret(&path)? } else { Zeroizing::new(files::read(&path)?) };
        files::write(&folder.join(name), &content, mode)?;
    }
    grant_log(folder)?;
    location.keep(folder)
}

/// Seals the keystore of a folder that nobody serves under another protection.
///
/// # Errors
/// See [`SetupError`]; the folder's keystore is the old or the new one, and either is accepted.
pub fn rekey_keystore(
    folder: &Path,
    unlock: &Unlock,
    protection: &Protection,
    environment: &Environment,
) -> Result<(), SetupError> {
    is_set_up(folder)?;
    let store = open_store(folder, None)?;
    let mut keystore = keystore_of(folder, &*store, unlock, environment)?;
    // The store knows the present generation before there is a next one.
    drop(take_over(Arc::clone(&store), &keystore, environment)?);
    let mut rng = (environment.entropy)();
    keystore.write(folder, protection, &mut *rng)?;
    take_over(store, &keystore, environment)?;
    let key = folder.join(KEYSTORE_KEY_FILE);
    if !matches!(protection, Protection::KeyFile(None)) && key.exists() {
        files::remove(&key)?;
    }
    Ok(())
}

/// An empty store under its first name, in the place of what an interrupted run left there.
fn begin_store(path: &Path) -> Result<EmbeddedMeta, SetupError> {
    if path.exists() {
        // A run that is still under way holds the lock.
        if let Err(error @ sealstone_meta::OpenError::InUse(_)) = EmbeddedMeta::open(path) {
            return Err(error.into());
        }
        files::remove(path)?;
    }
    Ok(EmbeddedMeta::open(path)?)
}

/// An empty store at a location. What an interrupted run left there, which is the mark of its keystore at most, goes.
pub(crate) fn begin_elsewhere(location: &Location) -> Result<Arc<dyn MetaStore>, SetupError> {
    let store = location.open()?;
    match Mds::is_set_up(&*store) {
        Ok(false) => {}
        Ok(true) => return Err(SetupError::StoreNotEmpty(location.shown())),
        Err(error) => return Err(SetupError::Contents(error)),
    }
    clear_mark(&*store).map_err(AdoptError::from)?;
    let rest = store.snapshot().and_then(|view| view.scan(&[], &[0xFF], 1)).map_err(AdoptError::from)?;
    if !rest.is_empty() {
        return Err(SetupError::StoreNotEmpty(location.shown()));
    }
    Ok(store)
}

fn new_secret(rng: &mut dyn sealstone_mds::Entropy) -> Zeroizing<Vec<u8>> {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut bytes = Zeroizing::new([0; SECRET_CHARACTERS]);
    rng.fill_bytes(&mut *bytes);
    Zeroizing::new(bytes.iter().map(|byte| ALPHABET[usize::from(byte % 32)]).collect())
}

/// What the folder's server is called among those that use one store; drawn once.
fn server_name(folder: &Path, environment: &Environment) -> Result<ServerName, SetupError> {
    let path = folder.join(SERVER_FILE);
    if path.exists() {
        let found = files::read(&path)?;
        return Ok(found.try_into().map_err(|_| LocationError::ServerName(path))?);
    }
    let mut name = ServerName::default();
    (environment.entropy)().fill_bytes(&mut name);
    files::write(&path, &name, 0o600)?;
    Ok(name)
}

/// A data folder that is ready to be served.
pub struct Opened {
    pub(crate) mds: Arc<Mds>,
    pub(crate) tls: Server,
    fingerprint: Fingerprint,
    authority: Option<Pin>,
}

impl Opened {
    /// The server.
    #[must_use]
    pub fn mds(&self) -> &Arc<Mds> {
        &self.mds
    }

    /// What clients pin.
    #[must_use]
    pub const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// What clients may pin instead; none in a folder that is older than authorities.
    #[must_use]
    pub const fn authority(&self) -> Option<Pin> {
        self.authority
    }
}

/// Is there a store in the folder? It may still prove not to be set up when it is opened.
///
/// # Errors
/// `Unfinished`.
pub fn is_set_up(folder: &Path) -> Result<(), SetupError> {
    let is_set_up = [STORE_FILE, LOCATION_FILE].iter().any(|name| folder.join(name).exists());
    if is_set_up { Ok(()) } else { Err(SetupError::Unfinished(folder.to_owned())) }
}

/// Opens a data folder; decisions are not recorded.
///
/// # Errors
/// See [`SetupError`].
pub fn open(folder: &Path, config: Config) -> Result<Opened, SetupError> {
    open_with_audit(folder, config, Arc::new(NoAudit))
}

/// Opens a data folder; decisions are recorded in `audit`.
///
/// # Errors
/// See [`SetupError`].
pub fn open_with_audit(
    folder: &Path,
    config: Config,
    audit: Arc<dyn AuditSink>,
) -> Result<Opened, SetupError> {
    open_under(folder, config, audit, &Unlock::default(), None)
}

/// The same, with what opens the keystore, and the metadata at `location` if it is not where the folder says.
///
/// # Errors
/// See [`SetupError`].
pub fn open_under(
    folder: &Path,
    config: Config,
    audit: Arc<dyn AuditSink>,
    unlock: &Unlock,
    location: Option<&Location>,
) -> Result<Opened, SetupError> {
    is_set_up(folder)?;
    let environment = Environment::system();
    let location = crate::location::of(folder, location)?;
    let shared = location.is_shared();
    let server = if shared { server_name(folder, &environment)? } else { config.server };
    let config = Config { shared, server, ..config };
    let store = location.serve()?;
    if !shared {
        // A store that one server uses at a time becomes this one's with the first change, and is read anew then if another
        // one wrote meanwhile: nothing that was read before that may be kept.
        drop(store.begin().map_err(|error| SetupError::Contents(error.into()))?);
    }
    // A store whose setup was interrupted gets no keystore.
    if !Mds::is_set_up(&*store).map_err(SetupError::Contents)? {
        return Err(SetupError::Unfinished(folder.to_owned()));
    }
    let keystore = keystore_of(folder, &*store, unlock, &environment)?;
    let store = Arc::new(take_over(store, &keystore, &environment)?);
    let mds = Mds::open(store, config).map_err(|error| match error {
        OpenError::NotSetUp => SetupError::Unfinished(folder.to_owned()),
        other => SetupError::Contents(other),
    })?;
    mds.register(environment.now_ms()).map_err(|error| SetupError::Contents(OpenError::Store(error)))?;
    let mds = mds
        .with_grant_log(Arc::new(grant_log(folder)?), environment.now_ms())
        .map_err(|error| SetupError::Contents(OpenError::Store(error)))?;
    let certificate = folder.join(CERTIFICATE_FILE);
    let mut identity = Identity { chain: Vec::new(), key: Zeroizing::default() };
    let mut pin = None;
    if folder.join(AUTHORITY_FILE).exists() {
        let signer = files::read(&folder.join(AUTHORITY_FILE))?;
        pin = Some(Pin::authority(&signer));
        if !certificate.exists()
            && let Some(authority) = authority(folder)?
        {
            // Somebody took it away to have another: who knows the server by its authority does not mind.
            certify(folder, &authority, Environment::system().now_ms())?;
        }
        identity.chain.push(signer);
    }
    let certificate = files::read(&certificate)?;
    identity.key = files::read_secret(&folder.join(KEY_FILE))?;
    let fingerprint = Fingerprint::of(&certificate);
    identity.chain.insert(0, certificate);
    let tls = tls::server(&identity)?;
    Ok(Opened { mds: Arc::new(mds.with_audit(audit)), tls, fingerprint, authority: pin })
}
