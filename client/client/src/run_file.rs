//! Run files: the right to execute a function and to read some files, for a program that does not
//! log in; and a client that uses one.
//!
//! Does: holds capability files; saves, loads and checks them; answers the requests of a call that
//! a metadata server answers for a user with a login.
//! Does not: renew credentials, reserve objects for results, or grant more than its files.
//! Contract: as with a capability file, its holder has its rights until they expire or are revoked,
//! and each device checks every capability.
//! Truth: format `OSDRUN01`, docs/standards/mds/functions.md, delegation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use sealstone_initiator::Environment;
use sealstone_mds_protocol::{
    Access, Device, DeviceId, ErrorCode, Failure, FilePath, Grant, OpenedFile, Request, Response, Stat,
};
use sealstone_osd::{CapabilityBytes, Generation};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::capability_file::{CAPABILITY_FILE_MAX, CapabilityFile, RUN_MAGIC, load_private};
use crate::delegated::{client_core, device, pool};
use crate::pool::DevicePool;
use crate::session_file::replace;
use crate::{Client, ClientError, DeviceConnectOptions, Metadata};

/// Maximum number of files that a run file permits to read.
pub const RUN_FILE_DATA_MAX: usize = 64;
/// Maximum bytes of a run file.
pub const RUN_FILE_MAX: usize = 8 << 20;
const DIGEST_BYTES: usize = 32;

const DAMAGED: ClientError = ClientError::CapabilityFile("damaged; request a new one");

/// The contents of a run file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFile {
    function: CapabilityFile,
    data: Vec<CapabilityFile>,
}

impl RunFile {
    /// Returns the run file of a function and of files to read.
    ///
    /// # Errors
    /// `CapabilityFile` if one of them does not permit its part, or a file occurs twice.
    pub fn new(function: CapabilityFile, data: Vec<CapabilityFile>) -> Result<Self, ClientError> {
        let refused = |problem| Err(ClientError::CapabilityFile(problem));
        if !function.executes() {
            return refused("it does not permit to execute a function");
        }
        if data.len() > RUN_FILE_DATA_MAX {
            return refused("it has more than 64 files to read");
        }
        let paths: BTreeSet<&FilePath> = data.iter().map(|file| &file.path).collect();
        if paths.len() != data.len() || paths.contains(&function.path) {
            return refused("it has a file twice");
        }
        let mut devices = BTreeMap::new();
        for device in std::iter::once(&function).chain(&data).flat_map(|file| &file.devices) {
            if *devices.entry(device.id).or_insert(device) != device {
                return refused("its parts name different devices by one number; issue them together");
            }
        }
        for file in &data {
            let delegated = &file.delegated;
            if !delegated.read {
                return refused("a file of it cannot be read with it");
            }
            let is_whole = (delegated.start, delegated.end) == (0, delegated.stat.size);
            if !is_whole || delegated.grants.len() != delegated.layout.width() {
                return refused("it permits only a part of a file, and functions need the whole file");
            }
            if delegated.grants.iter().any(is_sealed) {
                return refused("a capability is sealed, so functions cannot use it; issue it with --data");
            }
        }
        Ok(Self { function, data })
    }

    /// Returns the capability file of the function.
    #[must_use]
    pub const fn function(&self) -> &CapabilityFile {
        &self.function
    }

    /// Returns the capability files of the files to read.
    #[must_use]
    pub fn data(&self) -> &[CapabilityFile] {
        &self.data
    }

    /// Adds the files of another capability file.
    ///
    /// # Errors
    /// As [`RunFile::new`].
    pub fn with_data(self, file: CapabilityFile) -> Result<Self, ClientError> {
        let Self { function, mut data } = self;
        data.push(file);
        Self::new(function, data)
    }

    /// Encodes the file.
    ///
    /// # Errors
    /// `CapabilityFile` if it exceeds its limit; `Message`.
    pub fn encode(&self) -> Result<Zeroizing<Vec<u8>>, ClientError> {
        let files = std::iter::once(&self.function).chain(&self.data);
        let parts: Vec<Zeroizing<Vec<u8>>> = files.map(CapabilityFile::encode).collect::<Result<_, _>>()?;
        let total = parts.iter().map(|part| 4 + part.len()).sum::<usize>() + RUN_MAGIC.len() + DIGEST_BYTES;
        if total > RUN_FILE_MAX {
            return Err(ClientError::CapabilityFile("it would have more than 8 MiB; name fewer files"));
        }
        let mut bytes = Zeroizing::new(Vec::with_capacity(total));
        bytes.extend_from_slice(RUN_MAGIC);
        for part in &parts {
            let length = u32::try_from(part.len()).map_err(|_| DAMAGED)?;
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(part);
        }
        let digest = Sha256::digest(&*bytes);
        bytes.extend_from_slice(&digest);
        Ok(bytes)
    }

    /// Parses and checks the bytes of a run file, or of a capability file to execute a function.
    ///
    /// # Errors
    /// `CapabilityFile`.
    pub fn parse(bytes: &[u8]) -> Result<Self, ClientError> {
        if !bytes.starts_with(RUN_MAGIC) {
            return Self::new(CapabilityFile::parse(bytes)?, Vec::new());
        }
        if bytes.len() > RUN_FILE_MAX {
            return Err(ClientError::CapabilityFile("it has more than 8 MiB"));
        }
        let at = bytes.len().checked_sub(DIGEST_BYTES).filter(|at| *at >= RUN_MAGIC.len()).ok_or(DAMAGED)?;
        let (body, digest) = bytes.split_at(at);
        // Detects damage only. Each device checks that the capabilities are genuine.
        if Sha256::digest(body).as_slice() != digest {
            return Err(DAMAGED);
        }
        let mut rest = body.get(RUN_MAGIC.len()..).ok_or(DAMAGED)?;
        let mut files = Vec::new();
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            if length > CAPABILITY_FILE_MAX || files.len() > RUN_FILE_DATA_MAX {
                return Err(DAMAGED);
            }
            let (file, after) = after.split_at_checked(length).ok_or(DAMAGED)?;
            files.push(CapabilityFile::parse(file)?);
            rest = after;
        }
        if !rest.is_empty() || files.is_empty() {
            return Err(DAMAGED);
        }
        let data = files.split_off(1);
        Self::new(files.pop().ok_or(DAMAGED)?, data)
    }

    /// Writes the file with mode 0600, replacing an older one.
    ///
    /// # Errors
    /// `CapabilityFileIo`; the older file then still exists.
    pub fn save(&self, path: &Path) -> Result<(), ClientError> {
        replace(path, &self.encode()?).map_err(ClientError::CapabilityFileIo)
    }

    /// Reads a run file, or a capability file to execute a function.
    ///
    /// # Errors
    /// `CapabilityFile` if others may read or write it, or it is damaged; `CapabilityFileIo`.
    pub fn load(path: &Path) -> Result<Self, ClientError> {
        Self::parse(&load_private(path, RUN_FILE_MAX)?)
    }
}

/// Whether only a device can read the capability.
fn is_sealed(grant: &Grant) -> bool {
    let bytes = CapabilityBytes::new(Generation::Osd2, grant.capability.as_slice());
    bytes.is_some_and(|capability| capability.is_sealed())
}

/// Answers requests of a call from the contents of a run file.
pub struct RunFileMetadata {
    function: CapabilityFile,
    data: BTreeMap<FilePath, CapabilityFile>,
    devices: BTreeMap<DeviceId, Device>,
    environment: Arc<dyn Environment>,
}

impl RunFileMetadata {
    fn new(file: RunFile, environment: Arc<dyn Environment>) -> Self {
        let RunFile { function, data } = file;
        let devices = std::iter::once(&function)
            .chain(&data)
            .flat_map(|file| &file.devices)
            .map(|found| (found.id, device(found)))
            .collect();
        let data = data.into_iter().map(|file| (file.path.clone(), file)).collect();
        Self { function, data, devices, environment }
    }

    fn open(&self, path: &FilePath, access: Access) -> Result<OpenedFile, ClientError> {
        let file = match access {
            Access::Execute if *path == self.function.path => &self.function,
            Access::Execute => {
                return Err(ClientError::NotDelegated("it permits to execute another function"));
            }
            // The client reports which device has no copy of the code.
            Access::Read if *path == self.function.path => {
                return Err(Failure::new(ErrorCode::Denied, &path.shown()).into());
            }
            Access::Read | Access::CallRead => self.readable(path)?,
            _ => return Err(ClientError::NotDelegated("it permits no changes")),
        };
        let delegated = &file.delegated;
        // Without expiry the client does not try to renew them.
        let grants = delegated.grants.iter().map(|grant| Grant { expires_ms: 0, ..grant.clone() }).collect();
        let (stat, layout) = (delegated.stat.clone(), Some(delegated.layout.clone()));
        Ok(OpenedFile { stat, layout, grants, sparse: false })
    }

    fn readable(&self, path: &FilePath) -> Result<&CapabilityFile, ClientError> {
        self.data.get(path).ok_or(ClientError::NotDelegated("it does not permit to read the file"))
    }

    /// Returns the probable reason for which a device refused a capability.
    fn refusal(&self) -> &'static str {
        let now_ms = self.environment.now_ms();
        let is_expired = |file: &CapabilityFile| file.delegated.expires_ms <= now_ms;
        match std::iter::once(&self.function).chain(self.data.values()).any(is_expired) {
            true => "a device refused a capability of it, which has expired",
            false => "a device refused a capability of it, which was revoked or changed",
        }
    }

    fn stat(&self, path: &FilePath) -> Result<Stat, ClientError> {
        Ok(self.readable(path)?.delegated.stat.clone())
    }
}

impl Metadata for RunFileMetadata {
    async fn call(&self, request: Request) -> Result<Response, ClientError> {
        match request {
            Request::Open { path, access, .. } => Ok(Response::Opened { file: self.open(&path, access)? }),
            Request::Stat { path } => Ok(Response::Stat { stat: self.stat(&path)? }),
            Request::DeviceList { after, .. } => {
                let is_next = |device: &&Device| after.is_none_or(|after| device.id > after);
                let devices = self.devices.values().filter(is_next).cloned().collect();
                Ok(Response::Devices { devices, more: false })
            }
            // The client renews after a refusal.
            Request::RenewGrants { .. } => Err(ClientError::NotDelegated(self.refusal())),
            _ => Err(ClientError::NotDelegated("the operation needs a metadata server")),
        }
    }
}

impl Client<RunFileMetadata, DevicePool> {
    /// Returns a client that can run the function of a run file on its files, over iSCSI, with TLS
    /// for devices whose pin is in the file. It has no metadata server.
    #[must_use]
    pub fn of_run_file(file: RunFile, reach: impl Into<DeviceConnectOptions>) -> Self {
        let (devices, environment) = pool(reach.into());
        let metadata = RunFileMetadata::new(file, environment.clone());
        let known = metadata.devices.iter().map(|(id, device)| (*id, Arc::new(device.clone()))).collect();
        Self { core: client_core(metadata, devices, environment, crate::Tuning::default(), known) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability_file::tests::{delegated_file, with_access};
    use proptest::prelude::*;
    use sealstone_initiator::SystemEnvironment;

    fn function() -> CapabilityFile {
        with_access(delegated_file("/.functions/grep", 1), (false, false))
    }

    fn data(path: &str) -> CapabilityFile {
        with_access(delegated_file(path, 2), (true, false))
    }

    fn run_file() -> RunFile {
        RunFile::new(function(), vec![data("/a"), data("/b")]).unwrap()
    }

    #[test]
    fn saved_run_file_loads_and_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.cap");
        run_file().save(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(RunFile::load(&path).unwrap(), run_file());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).unwrap();
        assert!(matches!(RunFile::load(&path), Err(ClientError::CapabilityFile(_))));
        // A capability file for the function alone.
        function().save(&path).unwrap();
        assert_eq!(RunFile::load(&path).unwrap(), RunFile::new(function(), Vec::new()).unwrap());
        assert!(CapabilityFile::parse(&run_file().encode().unwrap()).is_err());
    }

    #[test]
    fn damaged_run_file_is_refused() {
        let bytes = run_file().encode().unwrap();
        for at in (0..bytes.len()).step_by(7) {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1 << (at % 8);
            assert!(RunFile::parse(&damaged).is_err(), "byte {at}");
            assert!(RunFile::parse(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn parts_without_their_right_are_refused() {
        let refused = |function, data| {
            assert!(matches!(RunFile::new(function, data), Err(ClientError::CapabilityFile(_))));
        };
        refused(data("/a"), Vec::new());
        refused(function(), vec![with_access(delegated_file("/a", 1), (false, true))]);
        refused(function(), vec![data("/a"), data("/a")]);
        refused(function(), vec![data("/.functions/grep")]);
        let part = |change: fn(&mut CapabilityFile)| {
            let mut file = data("/a");
            change(&mut file);
            vec![file]
        };
        refused(function(), part(|file| file.delegated.start = 1));
        refused(function(), part(|file| drop(file.delegated.grants.pop())));
        let many = (0..=RUN_FILE_DATA_MAX).map(|at| data(&format!("/{at}"))).collect();
        refused(function(), many);
    }

    #[test]
    fn requests_are_answered_within_its_rights() {
        let metadata = RunFileMetadata::new(run_file(), Arc::new(SystemEnvironment));
        let open = |path: &str, access| metadata.open(&FilePath::new(path).unwrap(), access);
        assert!(open("/.functions/grep", Access::Execute).is_ok());
        assert!(open("/a", Access::CallRead).is_ok() && open("/b", Access::Read).is_ok());
        for (path, access) in [
            ("/.functions/count", Access::Execute),
            ("/a", Access::Execute),
            ("/c", Access::CallRead),
            ("/a", Access::CallUpdate),
            ("/a", Access::Update),
        ] {
            assert!(matches!(open(path, access), Err(ClientError::NotDelegated(_))), "{path}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(tail in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut bytes = [&RUN_MAGIC[..], &tail].concat();
            prop_assert!(RunFile::parse(&bytes).is_err());
            let digest = Sha256::digest(&bytes);
            bytes.extend_from_slice(&digest);
            prop_assert!(RunFile::parse(&bytes).is_err());
        }
    }
}
