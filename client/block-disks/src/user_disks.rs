//! The end-to-end protected disks of a user: its secret key, and the keys and records of disks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sealstone_block_client::BlockUnitClient;
use sealstone_block_client::e2e::{DiskKeys, E2eDisk, UnitMedium, fast_aead};
use sealstone_block_e2e::{
    DiskRoot, DiskSealer, KeyEpoch, LeaseEpoch, UnitId, UnitKey, UnitKeyRing, UserPublicKey, UserSecretKey,
};
use sealstone_client::{Client, ClientError, disk_name};
use sealstone_failure::text::{ShownPath as _, hex};
use sealstone_failure::{Failure, FailureKind, Outcome, chain, secret_file};
use sealstone_initiator::{Environment as _, SystemEnvironment};
use sealstone_mds_protocol::{
    DISK_UNIT_BYTES, DiskAccess, DiskInfo, DiskKeyCopy, DiskRotation, ErrorCode, Name,
};
use sealstone_mounts::RemarkSink;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::lease::{LeasedMedium, MdsRoots};

/// First line of a file with a user's secret key.
const KEY_FILE_HEAD: &str = "sealstone disk key 1";

/// The disks of the user of a session, and the user's secret key for them.
pub struct UserDisks {
    pub(crate) client: Client,
    name: String,
    key_file: PathBuf,
    /// Folder of the last roots that this client has seen.
    pub(crate) folder: PathBuf,
}

/// State of a disk.
#[derive(Clone, Debug)]
pub struct DiskStatus {
    /// Its record at the metadata server.
    pub info: DiskInfo,
    /// Users that have its key.
    pub users: Vec<String>,
    /// Epoch of the oldest key that its blocks may have; `None` if the user cannot open its root.
    pub oldest_key: Option<u16>,
}

/// A disk whose key was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotatedDisk {
    /// Epoch of the new key.
    pub key_epoch: u16,
    /// Number of users that have it.
    pub users: usize,
}

impl UserDisks {
    /// Returns the disks of a user. The files with its secret key and the roots that this client
    /// has seen are in `folder`.
    #[must_use]
    pub fn new(client: Client, user: &str, folder: &Path) -> Self {
        let key_file = folder.join(format!("{user}.disk-key"));
        Self { client, name: user.to_owned(), key_file, folder: folder.to_owned() }
    }

    /// Returns the file with the user's secret key.
    #[must_use]
    pub fn key_file(&self) -> &Path {
        &self.key_file
    }

    /// Returns the name of the user.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.name
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
    async fn secret_or_new(&self, remark: RemarkSink<'_>) -> Outcome<UserSecretKey> {
        let secret = if self.key_file.exists() {
            self.secret()?
        } else {
            let secret = UserSecretKey::new(*random());
            let digits = secret_file::to_hex(secret.expose());
            let text = [KEY_FILE_HEAD, "\n", &digits, "\n"].map(str::as_bytes);
            secret_file::write(&self.key_file, &Zeroizing::new(text.concat()))?;
            remark(&format!(
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
    pub(crate) fn keys(&self, access: &DiskAccess) -> Outcome<UnitKeyRing> {
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

    /// Creates the user's key if there is none; returns the digest of its public part.
    ///
    /// # Errors
    /// The file cannot be read or written, or the metadata server cannot be reached.
    pub async fn key(&self, remark: RemarkSink<'_>) -> Outcome<String> {
        Ok(digest(&self.secret_or_new(remark).await?.public()))
    }

    /// Gives a user the key of a disk; returns the digest of that user's key, which must be
    /// `expected` if it is given.
    ///
    /// # Errors
    /// A user has no key, or another one than expected.
    pub async fn grant(
        &self,
        disk: &str,
        grantee: &str,
        expected: Option<&str>,
        remark: RemarkSink<'_>,
    ) -> Outcome<String> {
        let (name, access) = self.access(disk).await?;
        let keys = self.keys(&access)?;
        let public = self.client.disk_public_key(grantee).await?.map(UserPublicKey).ok_or_else(|| {
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
            None => remark(&format!(
                "compare the key of {grantee} with `sealstone block key` there: {digest} (or give --key)"
            )),
        }
        let wrapped = wrap(&public, &keys, grantee)?;
        self.client.set_disk_access(name, grantee, Some(wrapped)).await?;
        Ok(digest)
    }

    /// Removes the key of a disk from a user. The user may have kept a copy.
    ///
    /// # Errors
    /// The user of the session is not the owner, or there is no such disk.
    pub async fn revoke(&self, disk: &str, revoked: &str) -> Outcome {
        Ok(self.client.set_disk_access(disk_name(disk)?, revoked, None).await?)
    }

    /// Replaces the key of a disk. Clients that have it attached use the new key after they attach
    /// it again.
    ///
    /// # Errors
    /// A user has no key any more, or the user of the session cannot open the disk.
    pub async fn rotate(&self, disk: &str) -> Outcome<RotatedDisk> {
        let (name, access) = self.access(disk).await?;
        let mut keys = self.keys(&access)?;
        let key_epoch = keys.newest().0;
        let previous = keys.rotate(UnitKey::new(*random())).map_err(Failure::operation)?;
        let mut copies = Vec::new();
        for name in &access.users {
            let public =
                self.client.disk_public_key(name.as_str()).await?.map(UserPublicKey).ok_or_else(|| {
                    Failure::operation(format!("user {name} has no key for disks any more"))
                        .hint(format!("sealstone block revoke {disk} {name}"))
                })?;
            copies.push(DiskKeyCopy { user: name.clone(), wrapped: wrap(&public, &keys, name.as_str())? });
        }
        let users = copies.len();
        self.client.rotate_disk(name, DiskRotation { key_epoch, previous, copies }).await?;
        Ok(RotatedDisk { key_epoch: key_epoch + 1, users })
    }

    /// Returns all disks of the user.
    ///
    /// # Errors
    /// The metadata server cannot be reached.
    pub async fn list(&self) -> Outcome<Vec<DiskInfo>> {
        let mut disks: Vec<DiskInfo> = Vec::new();
        loop {
            let after = disks.last().map(|disk| disk.name.clone());
            let (page, more) = self.client.disks(after).await?;
            disks.extend(page);
            if !more {
                return Ok(disks);
            }
        }
    }

    /// Returns the state of a disk.
    ///
    /// # Errors
    /// There is no such disk, or the user has no part in it.
    pub async fn status(&self, disk: &str) -> Outcome<DiskStatus> {
        let (_, access) = self.access(disk).await?;
        let users = access.users.iter().map(ToString::to_string).collect();
        let oldest_key = self.oldest_key(&access);
        Ok(DiskStatus { info: access.info, users, oldest_key })
    }

    /// Creates the record of a disk and its key, after a remark about the loss of keys.
    pub(crate) async fn create(self, disk: &str, remark: RemarkSink<'_>) -> Outcome<NewDisk> {
        remark(&format!(
            "only {} and users that you grant can open disk {disk}: if all these keys are lost, its data are lost",
            self.key_file.shown()
        ));
        let secret = self.secret_or_new(remark).await?;
        let (name, unit) = (disk_name(disk)?, UnitId(*random()));
        let ring = UnitKeyRing::new(unit, KeyEpoch(1), UnitKey::new(*random()), fast_aead);
        let keys = Arc::new(ring.map_err(Failure::operation)?);
        let wrapped = wrap(&secret.public(), &keys, &self.name)?;
        self.client.create_disk(name.clone(), unit.0, wrapped).await.map_err(|error| {
            let is_used = matches!(&error, ClientError::Refused(refused) if refused.code == ErrorCode::Exists);
            match Failure::from(error) {
                failure if is_used => failure.hint(format!(
                    "choose another name; if the unit of that disk is lost: sealstone block rm {disk} --record"
                )),
                failure => failure,
            }
        })?;
        Ok(NewDisk { user: self, name, keys })
    }

    /// Removes the record of a disk and all copies of its key. With a unit, only that of its disk.
    ///
    /// # Errors
    /// There is no such disk, or another one of this name.
    pub async fn remove_record(&self, disk: &str, unit: Option<[u8; DISK_UNIT_BYTES]>) -> Outcome {
        let (name, access) = self.access(disk).await?;
        if unit.is_some_and(|unit| unit != access.info.unit) {
            return Err(Failure::not_found("the metadata server has another disk of this name"));
        }
        Ok(self.client.remove_disk(name).await?)
    }
}

/// A record of a disk whose unit is not formatted yet.
pub(crate) struct NewDisk {
    user: UserDisks,
    name: Name,
    keys: DiskKeys,
}

impl NewDisk {
    /// Formats the unit.
    pub(crate) async fn format(&self, unit: BlockUnitClient) -> Outcome {
        let roots = MdsRoots::new(self.user.client.clone(), self.name.clone());
        let medium = LeasedMedium { unit: UnitMedium::new(unit), lease: roots.lease.clone() };
        let formatted = roots.renew_during(E2eDisk::format(&medium, &roots, &self.keys)).await;
        roots.end().await;
        formatted.map_err(|error| Failure::operation(chain(&error)))
    }

    /// Removes the record of a disk whose unit could not be created.
    pub(crate) async fn discard(self) {
        if let Err(error) = self.user.client.remove_disk(self.name).await {
            tracing::warn!(%error, "cannot remove the record of the disk; remove it with `sealstone block rm NAME --record`");
        }
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
