//! The data folder: created once, opened at every start.
//!
//! Contract: the store gets its name, or a server's records, in the last step of [`init`]. Before
//! that, [`open`] returns `Unfinished` and [`init`] may be run again; afterwards [`init`] refuses.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sealstone_channel::{CertificateAuthority, IdentityError, Pin, TlsIdentity, TlsServer};
use sealstone_mds::audit::{AuditSink, NoAudit};
use sealstone_mds::store::{AdoptError, MetaStore, RandomFill, SealedStore, adopt, clear_mark, is_sealed};
use sealstone_mds::{Config, Mds, OpenError, ServerName};
use sealstone_mds_protocol::UserName;
use sealstone_mds_protocol::login::SUITE_STANDARD;
use sealstone_meta_store::EmbeddedMeta;
use zeroize::Zeroizing;

use crate::environment::Environment;
use crate::files::{self, FileError};
use crate::grant_log::{self, FileGrantLog, GrantLogSizes};
use crate::keystore::{
    KEYSTORE_FILE, KEYSTORE_KEY_FILE, Keystore, KeystoreError, KeystoreProtection, KeystoreSecrets,
};
use crate::location::{LOCATION_FILE, Location, LocationError, open_store};
use crate::tls::{self, CERTIFICATE_LIFE, CertificateFingerprint, SUBJECT};

/// File of the metadata store, mode 0600: its secrets are sealed by the keystore, all else is in
/// the clear.
pub(crate) const STORE_FILE: &str = "meta.redb";
/// Name of the store until setup is complete. The engine does not create its file atomically, and
/// an incomplete one must not be taken for a damaged store.
pub(crate) const STORE_FILE_NEW: &str = "meta.redb.new";
/// File with the server's name among those that share a store, 16 bytes.
const SERVER_FILE: &str = "server-name";
/// The server's certificate, DER; clients pin its SHA-256.
pub const CERTIFICATE_FILE: &str = "certificate.der";
/// The certificate's key, PKCS #8, mode 0600.
pub(crate) const KEY_FILE: &str = "certificate-key.der";
/// Certificate of the cluster's own authority, DER; it signed the server's and may sign those of
/// devices.
pub const AUTHORITY_FILE: &str = "ca.der";
/// The authority's key, PKCS #8, mode 0600. With it an attacker can impersonate the server or a
/// device to clients that pin the authority.
const AUTHORITY_KEY_FILE: &str = "ca-key.der";
/// The administrator's password with a trailing newline, or the text of a key file; mode 0600.
pub const ADMIN_SECRET_FILE: &str = "admin-secret";
/// Files that an interrupted setup may leave behind, temporary names included.
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

/// Reason why a data folder cannot be set up or used.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The folder is already set up.
    #[error("{} is set up already", .0.display())]
    AlreadySetUp(PathBuf),
    /// The folder has other files.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// Setup was interrupted or never started.
    #[error("{} is not set up, or its setup was interrupted: run init", .0.display())]
    Unfinished(PathBuf),
    /// A file cannot be used.
    #[error("cannot use a file of the data folder")]
    File(#[from] FileError),
    /// The store's file cannot be used.
    #[error("cannot open the metadata store")]
    Store(#[from] sealstone_meta_store::OpenError),
    /// The database cannot be used.
    #[cfg(feature = "postgres")]
    #[error("cannot open the metadata store")]
    Database(#[from] sealstone_meta_store::PostgresError),
    /// The LDAP server cannot be used.
    #[cfg(feature = "ldap")]
    #[error("cannot open the metadata store")]
    Ldap(#[from] sealstone_meta_store::LdapStoreError),
    /// The location of the store is invalid.
    #[error(transparent)]
    Location(#[from] LocationError),
    /// The store has content that is not a server's.
    #[error("the metadata store at {0} is not empty")]
    StoreNotEmpty(String),
    /// The content of the store cannot be used.
    #[error("cannot use the metadata store")]
    Contents(#[source] OpenError),
    /// The keystore cannot be used.
    #[error("cannot use the keystore")]
    Keystore(#[from] KeystoreError),
    /// The keystore does not belong to the store.
    #[error("the keystore does not belong to the metadata store")]
    Adopt(#[from] AdoptError),
    /// The certificate or its key cannot be used.
    #[error("the TLS certificate or its key cannot be used")]
    Certificate(#[from] IdentityError),
    /// The folder has no authority: it was created by an older release.
    #[error("{} has no authority of its own (ca.der)", .0.display())]
    NoAuthority(PathBuf),
}

impl SetupError {
    /// Whether a file with a secret was refused because other users may access it.
    #[must_use]
    pub const fn is_exposed(&self) -> bool {
        match self {
            Self::File(error) => error.is_exposed(),
            Self::Keystore(error) => error.is_exposed(),
            Self::Store(error) => matches!(error, sealstone_meta_store::OpenError::Exposed { .. }),
            _ => false,
        }
    }
}

/// The secret with which the first administrator logs in.
pub struct AdminSecret {
    /// Login suite: one for passwords, or one for service keys.
    suite: u16,
    secret: Zeroizing<Vec<u8>>,
    /// Content of [`ADMIN_SECRET_FILE`].
    file: Zeroizing<Vec<u8>>,
}

impl AdminSecret {
    /// Returns a random password.
    #[must_use]
    pub fn random_password(environment: &Environment) -> Self {
        let secret = new_secret(&mut *(environment.entropy)());
        let file = Zeroizing::new([secret.as_slice(), b"\n"].concat());
        Self { suite: SUITE_STANDARD, secret, file }
    }

    /// Returns a service key, with the text of its key file. The administrator is then a service
    /// account, whose login needs no Argon2id.
    #[must_use]
    pub fn service_key(suite: u16, secret: &[u8], file: &str) -> Self {
        let owned = |bytes: &[u8]| Zeroizing::new(bytes.to_vec());
        Self { suite, secret: owned(secret), file: owned(file.as_bytes()) }
    }
}

/// Results of a setup.
#[derive(Clone, Debug)]
pub struct InitReport {
    /// Name of the administrator.
    pub admin: UserName,
    /// Path of the file with the administrator's password or key.
    pub admin_secret: PathBuf,
    /// Fingerprint of the certificate, for clients to pin.
    pub fingerprint: CertificateFingerprint,
    /// Pin of the authority, which clients may use instead.
    pub authority: Pin,
}

/// Sets up a data folder: keystore, certificate, administrator, empty store. A run after an
/// interrupted one starts from the beginning. The keystore is sealed under a key file in the
/// folder.
///
/// # Errors
/// See [`SetupError`].
pub fn init(folder: &Path, admin: &UserName, environment: &Environment) -> Result<InitReport, SetupError> {
    let secret = AdminSecret::random_password(environment);
    init_under(folder, (admin, secret), environment, &KeystoreProtection::KeyFile(None), None)
}

/// Sets up a data folder with a keystore sealed under `protection`, and the metadata at `location`
/// if given.
///
/// # Errors
/// See [`SetupError`].
pub fn init_under(
    folder: &Path,
    (admin, secret): (&UserName, AdminSecret),
    environment: &Environment,
    protection: &KeystoreProtection,
    location: Option<&Location>,
) -> Result<InitReport, SetupError> {
    files::make_folder(folder)?;
    let (path, unnamed) = (folder.join(STORE_FILE), folder.join(STORE_FILE_NEW));
    if let Some(kept) = Location::of_folder(folder)? {
        // An interrupted run chose this location; the folder is set up if that store is.
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
        Some(location) => begin_at_location(location)?,
        None if is_new => Arc::new(begin_store(&unnamed)?),
        None => Arc::new(EmbeddedMeta::open(&path)?),
    };
    let mut rng = (environment.entropy)();
    let admin_secret = folder.join(ADMIN_SECRET_FILE);
    match Mds::is_set_up(&*store) {
        Ok(false) => {}
        Ok(true) => return Err(SetupError::AlreadySetUp(folder.to_owned())),
        Err(error) => return Err(SetupError::Contents(error)),
    }
    let authority = CertificateAuthority::new()?;
    files::write(&folder.join(AUTHORITY_KEY_FILE), &authority.key(), 0o600)?;
    files::write(&folder.join(AUTHORITY_FILE), authority.certificate(), 0o644)?;
    let certificate = certify(folder, &authority, environment.now_ms())?;
    files::write(&admin_secret, &secret.file, 0o600)?;
    let mut keystore = Keystore::generate(&mut *rng);
    keystore.write(folder, protection, &mut *rng)?;
    // Creates the credential log, which records that no credential was issued before.
    grant_log(folder)?;
    if let Some(location) = location {
        location.keep(folder)?;
    }
    let store = take_over(store, &keystore, environment)?;
    let login = (secret.suite, secret.secret.as_slice());
    Mds::set_up_with_suite(&store, admin, login, environment.now_ms(), &mut *rng).map_err(
        |error| match error {
            OpenError::AlreadySetUp => SetupError::AlreadySetUp(folder.to_owned()),
            other => SetupError::Contents(other),
        },
    )?;
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

/// Creates a certificate of the server, signed by its authority, and replaces the old one.
fn certify(
    folder: &Path,
    authority: &CertificateAuthority,
    now_ms: u64,
) -> Result<CertificateFingerprint, SetupError> {
    let made = authority.issue(SUBJECT, now_ms, CERTIFICATE_LIFE)?;
    let certificate = made.chain.first().ok_or(IdentityError::Empty)?;
    files::write(&folder.join(KEY_FILE), &made.key, 0o600)?;
    files::write(&folder.join(CERTIFICATE_FILE), certificate, 0o644)?;
    Ok(CertificateFingerprint::of(certificate))
}

fn authority(folder: &Path) -> Result<Option<CertificateAuthority>, SetupError> {
    let path = folder.join(AUTHORITY_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let key = files::read_secret(&folder.join(AUTHORITY_KEY_FILE))?;
    Ok(Some(CertificateAuthority::load(files::read(&path)?, &key)?))
}

/// Creates a key and a certificate for `name`, signed by the authority of the folder, valid from
/// now for `life`.
///
/// # Errors
/// `NoAuthority`, `File`, `Certificate`.
pub fn issue_certificate(
    folder: &Path,
    name: &str,
    life: core::time::Duration,
    environment: &Environment,
) -> Result<TlsIdentity, SetupError> {
    let authority = authority(folder)?.ok_or_else(|| SetupError::NoAuthority(folder.to_owned()))?;
    Ok(authority.issue(name, environment.now_ms(), life)?)
}

/// Creates a folder for a restored store, with an empty store under its temporary name.
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

/// Opens a store with its keystore.
pub(crate) fn take_over(
    store: Arc<dyn MetaStore>,
    keystore: &Keystore,
    environment: &Environment,
) -> Result<SealedStore, AdoptError> {
    let entropy = Arc::clone(&environment.entropy);
    let fill: RandomFill = Arc::new(move |into| entropy().fill_bytes(into));
    adopt(store, keystore.seal(), keystore.id(), fill)
}

/// Opens the folder's keystore. For a store whose secrets are not sealed yet, creates one under a
/// key file.
pub(crate) fn keystore_of(
    folder: &Path,
    store: &dyn MetaStore,
    secrets: &KeystoreSecrets,
    environment: &Environment,
) -> Result<Keystore, SetupError> {
    let sealed = is_sealed(store).map_err(AdoptError::from)?;
    if let Some(keystore) = Keystore::open(folder, secrets)? {
        return Ok(keystore);
    }
    if sealed {
        return Err(KeystoreError::Missing(folder.join(KEYSTORE_FILE)).into());
    }
    let mut rng = (environment.entropy)();
    let mut keystore = Keystore::generate(&mut *rng);
    keystore.write(folder, &KeystoreProtection::KeyFile(None), &mut *rng)?;
    tracing::warn!(
        "keys in the metadata store were in the clear and are now sealed; old copies may remain in free pages of \
         the file: rotate the devices' master keys (sealstone mds keys rotate master)"
    );
    Ok(keystore)
}

/// Creates the folder of another server on the same database. It gets the keystore, the certificate
/// and the location, and a credential log of its own.
///
/// # Errors
/// See [`SetupError`]; `NotShared` if the metadata is not in a database.
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
        // The keystore's key may be elsewhere or not exist; an old folder has no authority.
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

/// Reseals the keystore of a folder that no server uses under another protection.
///
/// # Errors
/// See [`SetupError`]; the folder's keystore is the old or the new one, and either is
/// accepted.
pub fn rekey_keystore(
    folder: &Path,
    secrets: &KeystoreSecrets,
    protection: &KeystoreProtection,
    environment: &Environment,
) -> Result<(), SetupError> {
    is_set_up(folder)?;
    let store = open_store(folder, None)?;
    let mut keystore = keystore_of(folder, &*store, secrets, environment)?;
    // The store must know the current generation before the next one exists.
    drop(take_over(Arc::clone(&store), &keystore, environment)?);
    let mut rng = (environment.entropy)();
    keystore.write(folder, protection, &mut *rng)?;
    take_over(store, &keystore, environment)?;
    let key = folder.join(KEYSTORE_KEY_FILE);
    if !matches!(protection, KeystoreProtection::KeyFile(None)) && key.exists() {
        files::remove(&key)?;
    }
    Ok(())
}

/// Creates an empty store under its temporary name and removes that of an interrupted run.
fn begin_store(path: &Path) -> Result<EmbeddedMeta, SetupError> {
    if path.exists() {
        // A run that is still in progress holds the lock.
        if let Err(error @ sealstone_meta_store::OpenError::InUse(_)) = EmbeddedMeta::open(path) {
            return Err(error.into());
        }
        files::remove(path)?;
    }
    Ok(EmbeddedMeta::open(path)?)
}

/// Creates an empty store at a location. Removes what an interrupted run left, at most the mark of
/// its keystore.
pub(crate) fn begin_at_location(location: &Location) -> Result<Arc<dyn MetaStore>, SetupError> {
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

/// Returns the name of the folder's server among those that share a store; chosen at random once.
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

/// An opened data folder, ready to be served.
pub struct OpenedServer {
    pub(crate) mds: Arc<Mds>,
    pub(crate) tls: TlsServer,
    fingerprint: CertificateFingerprint,
    authority: Option<Pin>,
}

impl OpenedServer {
    /// Returns the metadata server.
    #[must_use]
    pub fn mds(&self) -> &Arc<Mds> {
        &self.mds
    }

    /// Returns the fingerprint that clients pin.
    #[must_use]
    pub const fn fingerprint(&self) -> CertificateFingerprint {
        self.fingerprint
    }

    /// Returns the authority's pin, which clients may use instead; `None` in a folder of an older
    /// release.
    #[must_use]
    pub const fn authority(&self) -> Option<Pin> {
        self.authority
    }
}

/// Checks that the folder has a store; opening it may still fail with `Unfinished`.
///
/// # Errors
/// `Unfinished`.
pub fn is_set_up(folder: &Path) -> Result<(), SetupError> {
    let is_set_up = [STORE_FILE, LOCATION_FILE].iter().any(|name| folder.join(name).exists());
    if is_set_up { Ok(()) } else { Err(SetupError::Unfinished(folder.to_owned())) }
}

/// Opens a data folder without an audit log.
///
/// # Errors
/// See [`SetupError`].
pub fn open(folder: &Path, config: Config) -> Result<OpenedServer, SetupError> {
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
) -> Result<OpenedServer, SetupError> {
    open_under(folder, config, audit, &KeystoreSecrets::default(), None)
}

/// Opens a data folder with secrets for the keystore. The metadata is at `location`, if it differs
/// from the folder's own.
///
/// # Errors
/// See [`SetupError`].
pub fn open_under(
    folder: &Path,
    config: Config,
    audit: Arc<dyn AuditSink>,
    secrets: &KeystoreSecrets,
    location: Option<&Location>,
) -> Result<OpenedServer, SetupError> {
    is_set_up(folder)?;
    let environment = Environment::system();
    let location = crate::location::of(folder, location)?;
    let shared = location.is_shared();
    let server = if shared { server_name(folder, &environment)? } else { config.server };
    let config = Config { shared, server, ..config };
    let store = location.serve()?;
    if !shared {
        // Acquires a store that one server uses at a time. If another server wrote meanwhile, the
        // store is reloaded here, before anything read from it is kept.
        drop(store.begin().map_err(|error| SetupError::Contents(error.into()))?);
    }
    // A store whose setup was interrupted gets no keystore.
    if !Mds::is_set_up(&*store).map_err(SetupError::Contents)? {
        return Err(SetupError::Unfinished(folder.to_owned()));
    }
    let keystore = keystore_of(folder, &*store, secrets, &environment)?;
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
    let mut identity = TlsIdentity { chain: Vec::new(), key: Zeroizing::default() };
    let mut pin = None;
    if folder.join(AUTHORITY_FILE).exists() {
        let signer = files::read(&folder.join(AUTHORITY_FILE))?;
        pin = Some(Pin::authority(&signer));
        if !certificate.exists()
            && let Some(authority) = authority(folder)?
        {
            // An operator removed the certificate to have it renewed; clients that pin the
            // authority accept the new one.
            certify(folder, &authority, Environment::system().now_ms())?;
        }
        identity.chain.push(signer);
    }
    let certificate = files::read(&certificate)?;
    identity.key = files::read_secret(&folder.join(KEY_FILE))?;
    let fingerprint = CertificateFingerprint::of(&certificate);
    identity.chain.insert(0, certificate);
    let tls = tls::server(&identity)?;
    Ok(OpenedServer { mds: Arc::new(mds.with_audit(audit)), tls, fingerprint, authority: pin })
}
