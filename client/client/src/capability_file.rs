//! Capability files: credentials for a part of one file, for programs that do not log in.
//!
//! Does: holds everything that such a program needs, with addresses and pins of the devices; saves,
//! loads and checks it.
//! Does not: talk to devices; `delegated` does.
//! Contract: the file is a secret, since its holder has its rights until they expire or are
//! revoked. It is never readable by others, and a damaged file is refused before anything is sent.
//! Truth: format `OSDCAP01`: fields as in messages of the metadata server, then a SHA-256 of
//! everything before it; docs/standards/mds/operations.md §5.5.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::path::Path;

use sealstone_mds_protocol::{
    DelegatedFile, DeviceId, DevicePin, FilePath, Name, SYSTEM_ID_BYTES, Text, Wire, WireError, WireReader,
    WireWriter, record,
};
use sealstone_private::PrivateError;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::ClientError;
use crate::session_file::replace;

/// Maximum bytes of a capability file: 64 objects on as many devices take half of it.
pub const CAPABILITY_FILE_MAX: usize = 128 * 1024;
const MAGIC: &[u8; 8] = b"OSDCAP01";
/// First bytes of a run file, which contains capability files.
pub(crate) const RUN_MAGIC: &[u8; 8] = b"OSDRUN01";
const DIGEST_BYTES: usize = 32;

record! {
    /// Address and identity of a device.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CapabilityDevice {
        /// Device number in the layout.
        pub id: DeviceId,
        /// Device name.
        pub name: Name,
        /// OSD system id.
        pub system_id: [u8; SYSTEM_ID_BYTES],
        /// Its address, `iscsi://HOST:PORT/IQN/LUN`.
        pub url: Text<512>,
        /// Pin of its certificate; without one no TLS is used.
        pub pin: Option<DevicePin>,
    }
}

record! {
    /// The contents of a capability file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CapabilityFile {
        /// The name of the file when it was delegated, for display.
        pub path: FilePath,
        /// Rights and credentials.
        pub delegated: DelegatedFile,
        /// The devices of the layout.
        pub devices: Vec<CapabilityDevice>,
    }
}

const DAMAGED: ClientError = ClientError::CapabilityFile("damaged; request a new one");
const INCONSISTENT: ClientError = ClientError::CapabilityFile("its contents are inconsistent");

impl CapabilityFile {
    /// Encodes the file.
    ///
    /// # Errors
    /// `Message` if it exceeds its limit.
    pub fn encode(&self) -> Result<Zeroizing<Vec<u8>>, ClientError> {
        let mut out = WireWriter::new();
        out.raw(MAGIC);
        self.put(&mut out);
        let mut bytes = Zeroizing::new(out.finish(CAPABILITY_FILE_MAX - DIGEST_BYTES)?);
        let digest = Sha256::digest(&*bytes);
        bytes.extend_from_slice(&digest);
        Ok(bytes)
    }

    /// Parses and checks the bytes of a file.
    ///
    /// # Errors
    /// `CapabilityFile`.
    pub fn parse(bytes: &[u8]) -> Result<Self, ClientError> {
        if bytes.starts_with(RUN_MAGIC) {
            return Err(ClientError::CapabilityFile("it is a run file; use `sealstone cap run`"));
        }
        if bytes.len() > CAPABILITY_FILE_MAX || !bytes.starts_with(MAGIC) {
            return Err(ClientError::CapabilityFile("not a capability file, or of another version"));
        }
        let at = bytes.len().checked_sub(DIGEST_BYTES).filter(|at| *at >= MAGIC.len()).ok_or(DAMAGED)?;
        let (body, digest) = bytes.split_at(at);
        // The digest detects damage only. Each device checks that the capabilities are genuine.
        if Sha256::digest(body).as_slice() != digest {
            return Err(DAMAGED);
        }
        let mut input = WireReader::new(body.get(MAGIC.len()..).ok_or(DAMAGED)?);
        let file = Self::get(&mut input).map_err(|_| DAMAGED)?;
        input.finish().map_err(|_: WireError| DAMAGED)?;
        file.check()?;
        Ok(file)
    }

    /// Checks the invariants that later code relies on.
    fn check(&self) -> Result<(), ClientError> {
        let DelegatedFile { layout, grants, start, end, .. } = &self.delegated;
        let mut objects = layout.objects().iter();
        // Objects of grants appear in the layout in the same order.
        let in_order = grants.iter().all(|grant| objects.any(|object| *object == grant.object));
        let known: BTreeSet<DeviceId> = self.devices.iter().map(|device| device.id).collect();
        let all_known = layout.objects().iter().all(|object| known.contains(&object.device));
        let distinct = known.len() == self.devices.len();
        if in_order && all_known && distinct && start < end { Ok(()) } else { Err(INCONSISTENT) }
    }

    /// Whether it permits to execute the file, and neither to read nor to write it.
    #[must_use]
    pub const fn executes(&self) -> bool {
        !self.delegated.read && !self.delegated.write
    }

    /// Writes the file with mode 0600, replacing an older one.
    ///
    /// # Errors
    /// `CapabilityFileIo`; the older file then still exists.
    pub fn save(&self, path: &Path) -> Result<(), ClientError> {
        replace(path, &self.encode()?).map_err(ClientError::CapabilityFileIo)
    }

    /// Reads the file.
    ///
    /// # Errors
    /// `CapabilityFile` if others may read or write it, or it is damaged; `CapabilityFileIo`.
    pub fn load(path: &Path) -> Result<Self, ClientError> {
        Self::parse(&load_private(path, CAPABILITY_FILE_MAX)?)
    }
}

/// Reads at most `max` bytes and one more of a file that others cannot read or write.
pub(crate) fn load_private(path: &Path, max: usize) -> Result<Zeroizing<Vec<u8>>, ClientError> {
    let read = || -> io::Result<Option<Zeroizing<Vec<u8>>>> {
        let file = match sealstone_private::open(path) {
            Err(PrivateError::Mode { .. } | PrivateError::NotAFile) => return Ok(None),
            other => other?,
        };
        // One allocation, so that no copy of keys remains in freed memory.
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(max).min(max) + 1;
        let mut bytes = Zeroizing::new(Vec::with_capacity(length));
        file.take(length as u64).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    };
    let private = read().map_err(ClientError::CapabilityFileIo)?;
    private.ok_or(ClientError::CapabilityFile("others may read or write it; its mode must be 0600"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use sealstone_mds_protocol::{
        CapabilityBlob, FileKind, Grant, InodeId, Layout, Method, ObjectRef, Secret, Stat, UserName,
    };
    use sealstone_osd::ObjectId;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn file() -> CapabilityFile {
        let object = |n: u32| ObjectRef {
            device: DeviceId(n),
            object: ObjectId::new(0x1_0000, 0x1_0000 + u64::from(n)),
        };
        let grant = |object| Grant {
            object,
            method: Method::AllData,
            expires_ms: 9,
            capability: CapabilityBlob::new(vec![7; 104]).unwrap(),
            key: Secret::new(vec![0x5E; 32]).unwrap(),
        };
        let stat = Stat {
            inode: InodeId(5),
            proof: [0; 8],
            kind: FileKind::File,
            mode: 0o644,
            owner: UserName::new("alice").unwrap(),
            group: None,
            links: 1,
            rdev: 0,
            size: 100,
            version: 1,
            generation: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            birth_ns: 0,
            width: 2,
            checksum: None,
        };
        let device = |n: u32| CapabilityDevice {
            id: DeviceId(n),
            name: Name::new(format!("osd{n}")).unwrap(),
            system_id: [n as u8; 20],
            url: Text::new(format!("iscsi://127.0.0.1:326{n}/iqn.2026-11.org.sealstone:osd.{n}/0")).unwrap(),
            pin: None,
        };
        CapabilityFile {
            path: FilePath::new("/data/a").unwrap(),
            delegated: DelegatedFile {
                stat,
                layout: Layout::striped(4096, vec![object(1), object(2)]).unwrap(),
                grants: vec![grant(object(2))],
                start: 4096,
                end: 4100,
                read: true,
                write: false,
                expires_ms: 9,
                principal: [3; 20],
            },
            devices: vec![device(1), device(2)],
        }
    }

    /// Returns a capability file to read a file of one object on a device.
    pub(crate) fn delegated_file(path: &str, device: u32) -> CapabilityFile {
        let mut file = file();
        let delegated = &mut file.delegated;
        let at = device as usize - 1;
        let object = delegated.layout.objects()[at];
        delegated.layout = Layout::single(object);
        delegated.grants[0].object = object;
        (delegated.start, delegated.end) = (0, delegated.stat.size);
        file.devices = vec![file.devices[at].clone()];
        file.path = FilePath::new(path).unwrap();
        file
    }

    pub(crate) fn with_access(file: CapabilityFile, (read, write): (bool, bool)) -> CapabilityFile {
        let delegated = DelegatedFile { read, write, ..file.delegated };
        CapabilityFile { delegated, ..file }
    }

    #[test]
    fn saved_file_loads_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.cap");
        file().save(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(CapabilityFile::load(&path).unwrap(), file());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(CapabilityFile::load(&path), Err(ClientError::CapabilityFile(_))));
        assert!(!format!("{:?}", file()).contains("94, 94"), "the key is not shown");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let bytes = file().encode().unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1 << (at % 8);
            assert!(CapabilityFile::parse(&damaged).is_err(), "byte {at}");
            assert!(CapabilityFile::parse(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn parts_that_do_not_fit_together_are_refused() {
        let refused = |change: fn(&mut CapabilityFile)| {
            let mut changed = file();
            change(&mut changed);
            let bytes = changed.encode().unwrap();
            assert!(matches!(CapabilityFile::parse(&bytes), Err(ClientError::CapabilityFile(_))));
        };
        refused(|file| file.delegated.end = file.delegated.start);
        refused(|file| drop(file.devices.pop()));
        refused(|file| file.devices.push(file.devices[0].clone()));
        refused(|file| file.delegated.grants[0].object.object.object += 1);
        refused(|file| file.delegated.grants.push(file.delegated.grants[0].clone()));
    }

    #[test]
    fn a_file_over_its_limit_is_refused() {
        let mut bytes = MAGIC.to_vec();
        bytes.resize(CAPABILITY_FILE_MAX + 1, 0);
        assert!(matches!(CapabilityFile::parse(&bytes), Err(ClientError::CapabilityFile(_))));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_without_panic(tail in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut bytes = [&MAGIC[..], &tail].concat();
            prop_assert!(CapabilityFile::parse(&bytes).is_err());
            let digest = Sha256::digest(&bytes);
            bytes.extend_from_slice(&digest);
            let _ = CapabilityFile::parse(&bytes);
        }
    }
}
