//! End-to-end protected disks: keys of users, records at the metadata server, leases.
//!
//! Does: creates, grants, revokes, rotates, shows; opens a disk for `block attach`.
//! Does not: seal data; `sealstone-block-client` does.
//! Contract: the metadata server and the device see neither the key of a disk nor the secret key of
//! a user.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use sealstone_block_client::e2e::{
    DiskKeys, E2eDisk, E2eError, E2eOptions, RootStore, RootStoreError, SealedMedium, UnitMedium,
    WriteGuarantee, fast_aead,
};
use sealstone_block_client::{BlockError, BlockUnitClient};
use sealstone_block_e2e::{
    BLOCK_LEN, DiskHeader, DiskRoot, DiskSealer, HEADER_MAGIC, KeyEpoch, LeaseEpoch, ROOT_LEN, UnitId,
    UnitKey, UnitKeyRing, UserPublicKey, UserSecretKey,
};
use sealstone_client::{Client, ClientError, disk_name};
use sealstone_failure::text::{ShownPath as _, hex};
use sealstone_failure::{Failure, FailureKind, Outcome, chain, secret_file};
use sealstone_initiator::{Environment as _, SystemEnvironment};
use sealstone_mds_protocol::{
    DISK_UNIT_BYTES, DiskAccess, DiskInfo, DiskKeyCopy, DiskRotation, ErrorCode, Name,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::cli::GlobalArgs;
use crate::command::block_rewrite::rewrite;
use crate::command::session;
use crate::output::Output;

/// First line of a file with a user's secret key.
const KEY_FILE_HEAD: &str = "sealstone disk key 1";
/// Time between two renewals of a lease. It is valid for 12 s.
const RENEWAL: Duration = Duration::from_secs(4);
/// Time between two publications of what was flushed.
const PUBLICATION: Duration = Duration::from_secs(1);
/// Time for which the end of another client's lease is awaited.
const LEASE_WAIT: Duration = Duration::from_secs(20);

/// A protected disk in use.
pub(super) type AttachedDisk = E2eDisk<LeasedMedium, MdsRoots>;

/// The user of a command, with its secret key for disks.
struct DiskUser {
    client: Client,
    name: String,
    key_file: PathBuf,
}

impl DiskUser {
    fn new(global: &GlobalArgs) -> Outcome<Self> {
        let (client, saved) = session::client(global)?;
        let name = saved.ticket.user.to_string();
        let key_file = session::path(global)?.with_file_name(format!("{name}.disk-key"));
        Ok(Self { client, name, key_file })
    }

    /// Reads the secret key.
    fn secret(&self) -> Outcome<UserSecretKey> {
        let text = secret_file::read(&self.key_file).map_err(|failure| match failure.kind {
            FailureKind::NotFound => {
                failure.hint("`sealstone block key` creates one; without the old one its disks are lost")
            }
            _ => failure,
        })?;
        parse_secret(&text).ok_or_else(|| {
            Failure::operation("the file has no secret key for disks").at(self.key_file.shown())
        })
    }

    /// Reads the secret key, or creates it; the metadata server gets its public key.
    async fn secret_or_new(&self, output: Output) -> Outcome<UserSecretKey> {
        let secret = if self.key_file.exists() {
            self.secret()?
        } else {
            let secret = UserSecretKey::new(*random());
            let digits = secret_file::to_hex(secret.expose());
            let text = [KEY_FILE_HEAD, "\n", &digits, "\n"].map(str::as_bytes);
            secret_file::write(&self.key_file, &Zeroizing::new(text.concat()))?;
            output.remark(format!(
                "created {}: without it, disks that no other user has are lost; keep a copy",
                self.key_file.shown()
            ));
            secret
        };
        let public = secret.public();
        if self.client.disk_public_key(&self.name).await? != Some(public.0) {
            self.client.set_disk_public_key(public.0).await?;
        }
        Ok(secret)
    }

    async fn access(&self, disk: &str) -> Outcome<(Name, DiskAccess)> {
        let name = disk_name(disk)?;
        Ok((name.clone(), self.client.disk(name).await?))
    }

    /// Returns all keys of a disk.
    fn keys(&self, access: &DiskAccess) -> Outcome<UnitKeyRing> {
        let unit = UnitId(access.info.unit);
        let wrapped = access.wrapped.as_ref().ok_or_else(|| {
            Failure::new(FailureKind::Denied, format!("you have no key of disk {}", access.info.name))
                .hint(format!("{} can grant it: sealstone block grant", access.info.owner))
        })?;
        let (epoch, key) = self
            .secret()?
            .unwrap(&unit, self.name.as_bytes(), wrapped)
            .map_err(|error| Failure::operation(error).at(self.key_file.shown()))?;
        UnitKeyRing::with_previous(unit, epoch, key, &access.previous, fast_aead).map_err(Failure::operation)
    }

    /// Returns the epoch of the oldest key that blocks of a disk may have; `None` if the user
    /// cannot open its root.
    fn oldest_key(&self, access: &DiskAccess) -> Option<u16> {
        let sealer = DiskSealer::new(self.keys(access).ok()?, LeaseEpoch(0));
        Some(DiskRoot::open(&access.root?, &sealer).ok()?.oldest_key.0)
    }
}

/// Creates the user's key if there is none, and shows its public digest.
pub(super) async fn key(global: &GlobalArgs, output: Output) -> Outcome {
    let user = DiskUser::new(global)?;
    let digest = digest(&user.secret_or_new(output).await?.public());
    let value = json!({ "user": user.name, "key": digest, "file": user.key_file.shown().to_string() });
    output.result(&value, || format!("{} {digest}", user.name))
}

/// Gives a user the key of a disk.
pub(super) async fn grant(
    global: &GlobalArgs,
    output: Output,
    (disk, grantee, expected): (&str, &str, Option<&str>),
) -> Outcome {
    let user = DiskUser::new(global)?;
    let (name, access) = user.access(disk).await?;
    let keys = user.keys(&access)?;
    let public = user.client.disk_public_key(grantee).await?.map(UserPublicKey).ok_or_else(|| {
        Failure::operation(format!("user {grantee} has no key for disks"))
            .hint(format!("{grantee} runs `sealstone block key` first"))
    })?;
    let digest = digest(&public);
    match expected {
        Some(expected) if !expected.eq_ignore_ascii_case(&digest) => {
            return Err(Failure::new(FailureKind::Denied, format!("the key of {grantee} is {digest}"))
                .at("--key")
                .hint("compare it with the output of `sealstone block key` of that user"));
        }
        Some(_) => {}
        None => output.remark(format!(
            "compare the key of {grantee} with `sealstone block key` there: {digest} (or give --key)"
        )),
    }
    let wrapped = wrap(&public, &keys, grantee)?;
    user.client.set_disk_access(name, grantee, Some(wrapped)).await?;
    output.done(&json!({ "disk": disk, "user": grantee, "key": digest }))
}

/// Takes the key of a disk from a user.
pub(super) async fn revoke(global: &GlobalArgs, output: Output, disk: &str, revoked: &str) -> Outcome {
    let user = DiskUser::new(global)?;
    user.client.set_disk_access(disk_name(disk)?, revoked, None).await?;
    output.remark(format!(
        "{revoked} may have kept the key: `sealstone block rotate {disk}` protects what is written from then on"
    ));
    output.done(&json!({ "disk": disk, "user": revoked }))
}

/// Replaces the key of a disk.
pub(super) async fn rotate(global: &GlobalArgs, output: Output, disk: &str) -> Outcome {
    let user = DiskUser::new(global)?;
    let (name, access) = user.access(disk).await?;
    let mut keys = user.keys(&access)?;
    let key_epoch = keys.newest().0;
    let previous = keys.rotate(UnitKey::new(*random())).map_err(Failure::operation)?;
    let mut copies = Vec::new();
    for name in &access.users {
        let public =
            user.client.disk_public_key(name.as_str()).await?.map(UserPublicKey).ok_or_else(|| {
                Failure::operation(format!("user {name} has no key for disks any more"))
                    .hint(format!("sealstone block revoke {disk} {name}"))
            })?;
        copies.push(DiskKeyCopy { user: name.clone(), wrapped: wrap(&public, &keys, name.as_str())? });
    }
    let users = copies.len();
    user.client.rotate_disk(name, DiskRotation { key_epoch, previous, copies }).await?;
    output.remark(
        "clients that have the disk attached use the new key after they attach it again; its blocks get it in the \
         background then",
    );
    output.done(&json!({ "disk": disk, "key_epoch": key_epoch + 1, "users": users }))
}

/// Shows one disk, or all disks of the user.
pub(super) async fn status(global: &GlobalArgs, output: Output, disk: Option<&str>) -> Outcome {
    let user = DiskUser::new(global)?;
    let Some(disk) = disk else {
        let mut disks: Vec<DiskInfo> = Vec::new();
        loop {
            let after = disks.last().map(|disk| disk.name.clone());
            let (page, more) = user.client.disks(after).await?;
            disks.extend(page);
            if !more {
                break;
            }
        }
        let values: Vec<Value> = disks.iter().map(disk_json).collect();
        return output.result(&json!({ "disks": values }), || match disks.is_empty() {
            true => "no end-to-end protected disks".to_owned(),
            false => disks.iter().map(disk_line).collect::<Vec<_>>().join("\n"),
        });
    };
    let (_, access) = user.access(disk).await?;
    let mut value = disk_json(&access.info);
    let users: Vec<String> = access.users.iter().map(ToString::to_string).collect();
    value["users"] = users.clone().into();
    let oldest = user.oldest_key(&access);
    value["oldest_key_epoch"] = oldest.into();
    output.result(&value, || {
        let info = &access.info;
        let mut rows = vec![
            ("disk", info.name.to_string()),
            ("protection", "end-to-end".to_owned()),
            ("unit", hex(&info.unit)),
            ("owner", info.owner.to_string()),
            ("users", users.join(", ")),
            ("key epoch", info.key_epoch.to_string()),
            ("oldest key", oldest.map_or("unknown".to_owned(), |epoch| format!("epoch {epoch}"))),
            ("root", info.root_version.map_or("none".to_owned(), |version| format!("version {version}"))),
            ("in use", in_use(info)),
            ("failures", info.failures.to_string()),
        ];
        if let Some(text) = &info.last_failure {
            rows.push(("last failure", text.to_string()));
        }
        rows.into_iter().map(|(name, value)| format!("{name:12}  {value}")).collect::<Vec<_>>().join("\n")
    })
}

fn in_use(info: &DiskInfo) -> String {
    match &info.lease {
        Some(lease) if lease.left_ms > 0 => format!("by {}, lease {}", lease.user, lease.epoch),
        _ => "no".to_owned(),
    }
}

fn disk_json(info: &DiskInfo) -> Value {
    let lease = info.lease.as_ref().filter(|lease| lease.left_ms > 0);
    json!({
        "name": info.name.to_string(), "protection": "e2e", "unit": hex(&info.unit),
        "owner": info.owner.to_string(), "created_ms": info.created_ms, "key_epoch": info.key_epoch,
        "root_version": info.root_version, "in_use_by": lease.map(|lease| lease.user.to_string()),
        "failures": info.failures, "last_failure": info.last_failure.as_ref().map(ToString::to_string),
    })
}

fn disk_line(info: &DiskInfo) -> String {
    let failures = match info.failures {
        0 => String::new(),
        count => format!(", {count} integrity failures"),
    };
    format!(
        "{}  owner {}, key epoch {}, in use: {}{failures}",
        info.name,
        info.owner,
        info.key_epoch,
        in_use(info)
    )
}

/// A record of a disk whose unit is not formatted yet.
pub(super) struct NewDisk {
    user: DiskUser,
    name: Name,
    keys: DiskKeys,
}

/// Creates the record of a disk and its key, after a warning.
pub(super) async fn create(global: &GlobalArgs, output: Output, disk: &str) -> Outcome<NewDisk> {
    let user = DiskUser::new(global)?;
    output.remark(format!(
        "only {} and users that you grant can open disk {disk}: if all these keys are lost, its data are lost",
        user.key_file.shown()
    ));
    let secret = user.secret_or_new(output).await?;
    let (name, unit) = (disk_name(disk)?, UnitId(*random()));
    let ring = UnitKeyRing::new(unit, KeyEpoch(1), UnitKey::new(*random()), fast_aead);
    let keys = Arc::new(ring.map_err(Failure::operation)?);
    let wrapped = wrap(&secret.public(), &keys, &user.name)?;
    user.client.create_disk(name.clone(), unit.0, wrapped).await.map_err(|error| {
        let is_used = matches!(&error, ClientError::Refused(refused) if refused.code == ErrorCode::Exists);
        match Failure::from(error) {
            failure if is_used => failure.hint(format!(
                "choose another name; if the unit of that disk is lost: sealstone block rm {disk} --record"
            )),
            failure => failure,
        }
    })?;
    Ok(NewDisk { user, name, keys })
}

impl NewDisk {
    /// Formats the unit.
    pub(super) async fn format(&self, unit: BlockUnitClient) -> Outcome {
        let roots = MdsRoots::new(self.user.client.clone(), self.name.clone());
        let medium = LeasedMedium { unit: UnitMedium::new(unit), lease: roots.lease.clone() };
        let formatted = roots.renew_during(E2eDisk::format(&medium, &roots, &self.keys)).await;
        roots.end().await;
        formatted.map_err(|error| Failure::operation(chain(&error)))
    }

    /// Removes the record of a disk whose unit could not be created.
    pub(super) async fn discard(self) {
        if let Err(error) = self.user.client.remove_disk(self.name).await {
            tracing::warn!(%error, "cannot remove the record of the disk; remove it with `sealstone block rm NAME --record`");
        }
    }
}

/// Removes the record of a disk and all copies of its key. With a unit, only that of its disk.
pub(super) async fn remove_record(
    global: &GlobalArgs,
    disk: &str,
    unit: Option<[u8; DISK_UNIT_BYTES]>,
) -> Outcome {
    let user = DiskUser::new(global)?;
    let (name, access) = user.access(disk).await?;
    if unit.is_some_and(|unit| unit != access.info.unit) {
        return Err(Failure::not_found("the metadata server has another disk of this name"));
    }
    Ok(user.client.remove_disk(name).await?)
}

/// Removes the record of a disk whose unit was removed, or describes how. Returns whether it did.
pub(super) async fn remove_record_of(
    global: &GlobalArgs,
    output: Output,
    disk: &str,
    unit: [u8; DISK_UNIT_BYTES],
) -> Outcome<bool> {
    match remove_record(global, disk, Some(unit)).await {
        Ok(()) => Ok(true),
        Err(failure) => {
            output.remark(format!(
                "the unit is removed, but not the record of disk {disk} at the metadata server: {}; its owner removes \
                 it: sealstone block rm {disk} --record",
                failure.message
            ));
            Ok(false)
        }
    }
}

/// Returns the header of a protected disk, if the unit has one. A first block that is damaged has
/// none: it can be written again.
pub(super) async fn header(unit: &BlockUnitClient) -> Outcome<Option<DiskHeader>> {
    if unit.geometry().bytes < BLOCK_LEN as u64 {
        return Ok(None);
    }
    let block = match unit.read(0, BLOCK_LEN as u64).await {
        Err(error @ (BlockError::Medium { .. } | BlockError::NotAuthentic(_))) => {
            tracing::warn!(%error, "the first block of the unit is unreadable");
            return Ok(None);
        }
        read => read.map_err(|error| Failure::operation(chain(&error)))?,
    };
    match block.first_chunk() {
        Some(block) if block.starts_with(HEADER_MAGIC) => {
            DiskHeader::parse(block).map(Some).map_err(Failure::operation)
        }
        _ => Ok(None),
    }
}

/// Compares a unit with the records of protected disks at the metadata server: a device can remove
/// the header of a disk, or present another one. `name` is that of the unit, unless it was given by
/// its URL. Without a session on this machine there is nothing to compare.
pub(super) async fn check_record(
    global: &GlobalArgs,
    name: Option<&str>,
    header: Option<&DiskHeader>,
) -> Outcome {
    let has_session = session::path(global).is_ok_and(|path| path.exists());
    if !has_session || name.is_none() && header.is_some() {
        return Ok(());
    }
    let plain = "--protect none attaches a plain unit";
    let user = DiskUser::new(global)?;
    let Some(name) = name else {
        let (disks, _) = user.client.disks(None).await.map_err(|error| Failure::from(error).hint(plain))?;
        return match disks.is_empty() {
            true => Ok(()),
            false => Err(Failure::new(
                FailureKind::Denied,
                "the unit has no end-to-end protection, and you have disks with it: the device may have removed it",
            )
            .hint(format!("--protect e2e requires it, {plain}"))),
        };
    };
    let disk = disk_name(name)?;
    let access = match user.client.disk(disk.clone()).await {
        Ok(access) => access,
        Err(ClientError::Refused(failure)) if failure.code == ErrorCode::NotFound => return Ok(()),
        Err(error) => return Err(Failure::from(error).hint(plain)),
    };
    let text = match header {
        Some(header) if header.unit.0 == access.info.unit => return Ok(()),
        Some(_) => "the unit has another disk than its record at the metadata server",
        None => "the unit has no end-to-end protection, but the metadata server has a record of it",
    };
    MdsRoots::new(user.client.clone(), disk).report(text).await;
    Err(Failure::new(FailureKind::Denied, text).hint(
        "the device replaced or removed the header of the disk; --protect none attaches it as a plain unit",
    ))
}

/// Opens the disk on a unit.
pub(super) async fn open(
    global: &GlobalArgs,
    unit: BlockUnitClient,
    header: &DiskHeader,
) -> Outcome<AttachedDisk> {
    let user = DiskUser::new(global)?;
    let name = disk_of_unit(&user.client, &header.unit).await?;
    let access = user.client.disk(name.clone()).await?;
    let keys: DiskKeys = Arc::new(user.keys(&access)?);
    let seen = SeenRoot::new(global, &header.unit)?;
    let options = E2eOptions { seen_root: seen.load(&keys)?, ..E2eOptions::default() };
    let roots = MdsRoots::new(user.client.clone(), name);
    let medium = LeasedMedium { unit: UnitMedium::new(unit), lease: roots.lease.clone() };
    let opening = E2eDisk::open(medium, roots.clone(), keys, options);
    let opened = roots.renew_during(opening).await;
    let (disk, report) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            if error.is_integrity_failure() {
                roots.report(&error.to_string()).await;
            }
            roots.end().await;
            return Err(disk_failure(&error, &access.info.name));
        }
    };
    tracing::info!(
        disk = %access.info.name,
        was_clean = report.was_clean,
        records = report.records,
        recovered_blocks = report.recovered_blocks,
        unreadable_blocks = report.unreadable_blocks,
        "end-to-end protected disk opened"
    );
    if let Err(failure) = seen.store(&disk) {
        roots.end().await;
        return Err(failure);
    }
    Ok(disk)
}

/// Renews the lease, publishes what was flushed, sends reports and replaces old keys, until it is
/// dropped.
pub(super) async fn keep(
    disk: AttachedDisk,
    is_read_only: bool,
    mut reports: tokio::sync::mpsc::Receiver<String>,
) {
    // A publication can wait for the device longer than the lease is valid, so none waits for
    // another.
    let publications = async {
        loop {
            if let Err(error) = disk.publish().await {
                tracing::warn!(%error, "cannot publish the root of the disk; retrying");
            }
            tokio::time::sleep(PUBLICATION).await;
        }
    };
    let reports = async {
        while let Some(text) = reports.recv().await {
            disk.roots().report(&text).await;
        }
    };
    let rewriting = async {
        if !is_read_only && disk.has_old_keys() {
            rewrite(&disk, &disk.roots().name).await;
        }
    };
    disk.roots().renew_during(async { tokio::join!(publications, reports, rewriting) }).await;
}

/// Flushes, publishes and returns the lease.
pub(super) async fn close(global: &GlobalArgs, disk: &AttachedDisk) -> Outcome {
    let flushed = disk.flush(&disk.flush_cursor()).await;
    let closed = disk.close().await;
    let stored = match closed {
        Ok(()) => SeenRoot::new(global, &disk.keys().unit()).and_then(|seen| seen.store(disk)),
        Err(_) => Ok(()),
    };
    disk.roots().end().await;
    disk.medium().unit.unit().close().await;
    flushed.and(closed).map_err(|error| disk_failure(&error, &disk.roots().name))?;
    stored
}

fn disk_failure(error: &E2eError, name: &Name) -> Failure {
    let failure = Failure::operation(chain(error)).at(format!("disk {name}"));
    match error {
        E2eError::RootStore(RootStoreError::LeaseLost) => {
            failure.hint("attach it again; acknowledged writes of the last seconds may be lost")
        }
        E2eError::LostWrites => failure.hint("check the file system on the disk"),
        error if error.is_integrity_failure() => failure.hint(
            "the device or its medium is not trustworthy; restore a copy, see `sealstone block status`",
        ),
        _ => failure,
    }
}

async fn disk_of_unit(client: &Client, unit: &UnitId) -> Outcome<Name> {
    let mut after = None;
    loop {
        let (page, more) = client.disks(after).await?;
        if let Some(disk) = page.iter().find(|disk| disk.unit == unit.0) {
            return Ok(disk.name.clone());
        }
        after = page.last().map(|disk| disk.name.clone());
        if !more {
            let text = "the unit has an end-to-end protected disk of which you have no key";
            return Err(
                Failure::new(FailureKind::Denied, text).hint("its owner can grant it: sealstone block grant")
            );
        }
    }
}

/// The file with the last root that this client has seen, sealed as the metadata server has it.
struct SeenRoot(PathBuf);

impl SeenRoot {
    fn new(global: &GlobalArgs, unit: &UnitId) -> Outcome<Self> {
        Ok(Self(session::path(global)?.with_file_name(format!("{}.disk-root", hex(&unit.0)))))
    }

    fn load(&self, keys: &DiskKeys) -> Outcome<Option<DiskRoot>> {
        if !self.0.exists() {
            return Ok(None);
        }
        let bytes = secret_file::read_bytes(&self.0)?;
        let sealed: Option<[u8; ROOT_LEN]> = bytes.as_slice().try_into().ok();
        let sealer = DiskSealer::new(Arc::clone(keys), LeaseEpoch(0));
        let root = sealed.and_then(|sealed| DiskRoot::open(&sealed, &sealer).ok()).ok_or_else(|| {
            Failure::operation("the last root that was seen does not open").at(self.0.shown()).hint(
                "the key is another one, or the file is damaged; remove it only if you know why: an old state of the \
                 disk is then not detected",
            )
        })?;
        Ok(Some(root))
    }

    fn store(&self, disk: &AttachedDisk) -> Outcome {
        let root = disk.root();
        let sealer = DiskSealer::new(disk.keys(), root.lease_epoch);
        secret_file::write(&self.0, &root.seal(&sealer))
    }
}

/// The lease of a disk, as this client has it.
#[derive(Clone, Copy)]
struct HeldLease {
    epoch: u32,
    /// Until when the client may write.
    until: Instant,
}

/// The lease that requests to the unit and to the metadata server share.
#[derive(Clone, Default)]
struct SharedLease(Arc<Mutex<Option<HeldLease>>>);

impl SharedLease {
    fn is_valid(&self) -> bool {
        self.0.lock().is_some_and(|lease| Instant::now() < lease.until)
    }
}

/// A unit that is written only while the lease is valid.
pub(super) struct LeasedMedium {
    unit: UnitMedium,
    lease: SharedLease,
}

impl LeasedMedium {
    fn check(&self) -> Result<(), BlockError> {
        if self.lease.is_valid() { Ok(()) } else { Err(BlockError::Reserved) }
    }
}

impl SealedMedium for LeasedMedium {
    fn blocks(&self) -> u64 {
        self.unit.blocks()
    }

    fn keeps_order(&self) -> bool {
        self.unit.keeps_order()
    }

    async fn read_into(&self, block: u64, buffer: Vec<u8>) -> Result<Vec<u8>, BlockError> {
        self.unit.read_into(block, buffer).await
    }

    async fn write(&self, block: u64, data: Bytes, guarantee: WriteGuarantee) -> Result<(), BlockError> {
        self.check()?;
        self.unit.write(block, data, guarantee).await
    }

    async fn unmap(&self, block: u64, blocks: u64) -> Result<(), BlockError> {
        self.check()?;
        self.unit.unmap(block, blocks).await
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.unit.flush().await
    }
}

/// The record of a disk at the metadata server.
#[derive(Clone)]
pub(super) struct MdsRoots {
    client: Client,
    name: Name,
    lease: SharedLease,
}

impl MdsRoots {
    fn new(client: Client, name: Name) -> Self {
        Self { client, name, lease: SharedLease::default() }
    }

    /// Requests the lease, or its renewal.
    async fn request_lease(&self, epoch: Option<u32>) -> Result<HeldLease, ClientError> {
        let sent = Instant::now();
        let (epoch, valid) = self.client.lease_disk(self.name.clone(), epoch).await?;
        Ok(HeldLease { epoch, until: sent + valid })
    }

    async fn renew(&self) {
        let held = *self.lease.0.lock();
        let Some(HeldLease { epoch, .. }) = held else { return };
        match self.request_lease(Some(epoch)).await {
            Ok(renewed) => {
                let mut held = self.lease.0.lock();
                // It may have been returned meanwhile, and another one taken.
                if held.is_some_and(|held| held.epoch == epoch) {
                    *held = Some(renewed);
                }
            }
            Err(error) => {
                tracing::warn!(%error, disk = %self.name, "cannot renew the lease of the disk; retrying")
            }
        }
    }

    /// Renews the lease until work ends that takes or uses it.
    async fn renew_during<T>(&self, work: impl Future<Output = T>) -> T {
        let renewals = async {
            loop {
                self.renew().await;
                tokio::time::sleep(RENEWAL).await;
            }
        };
        tokio::select! {
            done = work => done,
            never = renewals => never,
        }
    }

    async fn report(&self, text: &str) {
        if let Err(error) = self.client.report_disk(self.name.clone(), text).await {
            tracing::warn!(%error, "cannot report an integrity failure to the metadata server");
        }
    }

    async fn end(&self) {
        let held = self.lease.0.lock().take();
        if let Some(HeldLease { epoch, .. }) = held
            && let Err(error) = self.client.end_disk_lease(self.name.clone(), epoch).await
        {
            tracing::warn!(%error, "cannot return the lease of the disk; it expires after 14 s");
        }
    }
}

fn store_error(error: ClientError) -> RootStoreError {
    match &error {
        ClientError::Refused(failure) if failure.code == ErrorCode::Fenced => RootStoreError::LeaseLost,
        ClientError::Refused(failure) if failure.code == ErrorCode::NotFound => RootStoreError::NotFound,
        _ => RootStoreError::Unavailable(chain(&error).to_string()),
    }
}

impl RootStore for MdsRoots {
    async fn acquire(&self) -> Result<LeaseEpoch, RootStoreError> {
        self.end().await;
        let began = Instant::now();
        loop {
            match self.request_lease(None).await {
                Ok(lease) => {
                    *self.lease.0.lock() = Some(lease);
                    // The client may have waited for the lease in its call: the time starts again.
                    let renewed = self.request_lease(Some(lease.epoch)).await.map_err(store_error)?;
                    *self.lease.0.lock() = Some(renewed);
                    return Ok(LeaseEpoch(renewed.epoch));
                }
                Err(ClientError::Refused(failure))
                    if failure.code == ErrorCode::Busy && began.elapsed() < LEASE_WAIT =>
                {
                    let wait = Duration::from_millis(failure.retry_ms.into());
                    tokio::time::sleep(wait.clamp(Duration::from_millis(50), Duration::from_secs(1))).await;
                }
                Err(error) => return Err(store_error(error)),
            }
        }
    }

    async fn load(&self) -> Result<[u8; ROOT_LEN], RootStoreError> {
        let access = self.client.disk(self.name.clone()).await.map_err(store_error)?;
        access.root.ok_or(RootStoreError::NotFound)
    }

    async fn publish(
        &self,
        lease: LeaseEpoch,
        expected: Option<u64>,
        root: [u8; ROOT_LEN],
    ) -> Result<(), RootStoreError> {
        self.client.publish_disk(self.name.clone(), lease.0, expected, root).await.map_err(store_error)
    }
}

fn wrap(public: &UserPublicKey, keys: &UnitKeyRing, user: &str) -> Outcome<[u8; 84]> {
    public
        .wrap(&keys.unit(), user.as_bytes(), keys.newest(), keys.newest_key(), *random())
        .map_err(Failure::operation)
}

fn random<const LENGTH: usize>() -> Zeroizing<[u8; LENGTH]> {
    let mut bytes = Zeroizing::new([0; LENGTH]);
    SystemEnvironment.fill_random(&mut *bytes);
    bytes
}

fn digest(public: &UserPublicKey) -> String {
    format!("sha256:{}", hex(&Sha256::digest(public.0)))
}

fn parse_secret(text: &str) -> Option<UserSecretKey> {
    let (head, key) = text.split_once('\n')?;
    let digits = key.strip_suffix('\n').filter(|_| head == KEY_FILE_HEAD)?;
    let bytes = secret_file::from_hex(digits)?;
    Some(UserSecretKey::new(bytes.as_slice().try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_key_survives_its_file() {
        let secret = UserSecretKey::new([0xA7; 32]);
        let text = format!("{KEY_FILE_HEAD}\n{}\n", hex(secret.expose()));
        assert_eq!(parse_secret(&text).expect("it is a key").expose(), secret.expose());
        for wrong in [
            "",
            "x",
            KEY_FILE_HEAD,
            &text[..text.len() - 2],
            &text.replace('a', "g"),
            &text.replace('1', "2"),
        ] {
            assert!(parse_secret(wrong).is_none(), "{wrong}");
        }
    }
}
