//! A device without a metadata server, and a client that has the device's initial key.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use sealstone_crypto::RustCrypto;
use sealstone_initiator::{Bearer, OsdClient, OsdOptions, SystemEnvironment, TargetUrl, TcpDial};
use sealstone_osd::capability::{Range, Scope};
use sealstone_osd::function::attributes::FUNCTION_PAGE;
use sealstone_osd::{
    AttributeId, Capability, Descriptor, Generation, ObjectId, ObjectType, Permissions, SecurityMethod,
};
use sealstone_seal::{AlgorithmSlots, Credential, Hash, InitialKey, KeyHierarchy, KeySelector, algorithm};
use sealstone_tests::{Daemon, Signal, command, run, text};

use crate::function_runs::build_module;

/// Lifetime of a credential in milliseconds.
const LIFETIME_MS: u64 = 3_600_000;

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

/// A device in its own folder, which a test kills and restarts.
pub(crate) struct RawOsd {
    folder: tempfile::TempDir,
    flags: Vec<String>,
    keys: KeyHierarchy<RustCrypto>,
    daemon: Option<Daemon>,
}

impl RawOsd {
    /// Formats a device with these flags of `osd init`; it runs with these flags of `osd serve`.
    pub(crate) fn init(init_flags: &[&str], serve_flags: &[&str], partition: u64) -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (data, key) = (folder.path().join("osd"), folder.path().join("osd.key"));
        let init = ["osd", "init", "--data", text(&data), "--name", "osd", "--key-out", text(&key)];
        let backing = folder.path().join("backing");
        let mut init_flags = init_flags.to_vec();
        if let Some(at) = init_flags.iter().position(|flag| *flag == "BACKING") {
            let file = std::fs::File::create(&backing).expect("a file");
            file.set_len(128 << 20).expect("a sparse file");
            init_flags[at] = text(&backing);
        }
        run(&[&init[..], &init_flags].concat()).ok();
        let keys = keys_of(&key, partition);
        let flags = serve_flags.iter().map(|flag| (*flag).to_owned()).collect();
        Self { folder, flags, keys, daemon: None }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("osd")
    }

    pub(crate) fn start(&mut self) -> OsdClient {
        let url = self.serve();
        Self::client(&url, |_| ())
    }

    /// Returns a client with changed options.
    pub(crate) fn client(url: &TargetUrl, change: impl FnOnce(&mut OsdOptions)) -> OsdClient {
        let environment = Arc::new(SystemEnvironment);
        let mut options = OsdOptions::new(&*environment);
        change(&mut options);
        OsdClient::new(Arc::new(TcpDial::new(url)), url, environment, options)
    }

    /// Starts the device.
    pub(crate) fn serve(&mut self) -> TargetUrl {
        let data = self.data();
        let mut serve =
            command(&["--json", "osd", "serve", "--data", text(&data), "--listen", "127.0.0.1:0"]);
        serve.args(&self.flags);
        let daemon = Daemon::start(serve);
        let url = daemon.field("url").parse().expect("the ready line's URL");
        self.daemon = Some(daemon);
        url
    }

    pub(crate) fn kill(&mut self) {
        let code = self.daemon.take().expect("it runs").end(Signal::Kill);
        assert_eq!(code, -1, "the device ended before it was killed");
    }

    /// Compiles a function in C, and stores it as an object.
    pub(crate) async fn store_function(&self, client: &OsdClient, object: ObjectId, source: &str) {
        let (file, module) = (self.data().with_extension("c"), self.data().with_extension("so"));
        std::fs::write(&file, source).expect("written");
        build_module(&module, &file);
        let code = Bytes::from(std::fs::read(module).expect("built"));
        let bearer = self.object(object);
        client.create(&bearer, object).await.expect("created");
        client.write(&bearer, object, 0, code).await.expect("written");
        let engine = (AttributeId::new(FUNCTION_PAGE, 1), Bytes::from_static(&[1]));
        client.set_attributes(&bearer, object, vec![engine]).await.expect("set");
    }

    /// Issues a credential with all rights on a user object.
    pub(crate) fn object(&self, allowed: ObjectId) -> Bearer {
        let descriptor = Descriptor::User { scope: Scope::default(), allowed, range: Range::ALL };
        self.issue(ObjectType::User, descriptor)
    }

    /// Issues a credential with all rights on a collection; number 0 is that of a new one.
    pub(crate) fn collection(&self, allowed: ObjectId) -> Bearer {
        let descriptor = Descriptor::Collection { scope: Scope::default(), allowed };
        self.issue(ObjectType::Collection, descriptor)
    }

    /// Issues a credential with all rights on a partition.
    pub(crate) fn partition(&self, partition: u64) -> Bearer {
        self.issue(ObjectType::Partition, Descriptor::Partition { scope: Scope::default(), partition })
    }

    /// Issues a credential to create a partition.
    pub(crate) fn new_partition(&self, partition: u64) -> Bearer {
        let descriptor = Descriptor::Partition { scope: Scope::default(), partition };
        self.issue_under(0, ObjectType::Partition, descriptor)
    }

    fn issue(&self, object_type: ObjectType, descriptor: Descriptor) -> Bearer {
        let partition = match descriptor {
            Descriptor::User { allowed, .. } | Descriptor::Collection { allowed, .. } => allowed.partition,
            Descriptor::Partition { partition, .. } => partition,
            _ => 0,
        };
        self.issue_under(partition, object_type, descriptor)
    }

    /// Issues a credential under the first working key of a partition.
    fn issue_under(&self, partition: u64, object_type: ObjectType, descriptor: Descriptor) -> Bearer {
        let key = KeySelector::Working { partition, version: 0 };
        let capability = all_rights(object_type, descriptor);
        let issued = Credential::issue_under(&self.keys, &AlgorithmSlots::DEFAULT, key, &capability);
        let credential = issued.expect("factory keys");
        Bearer::of(&credential).expect("a credential")
    }
}

/// Returns a capability with all rights on a user object.
pub(crate) fn object_capability(allowed: ObjectId) -> Capability {
    let descriptor = Descriptor::User { scope: Scope::default(), allowed, range: Range::ALL };
    all_rights(ObjectType::User, descriptor)
}

fn all_rights(object_type: ObjectType, descriptor: Descriptor) -> Capability {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    Capability {
        generation: Generation::Osd2,
        format: Generation::Osd2,
        key_version: 0,
        icv_algorithm: algorithm::SLOT_HMAC_SHA256,
        method: SecurityMethod::AllData,
        expires_ms: u64::try_from(now).expect("milliseconds") + LIFETIME_MS,
        audit: [0; 20],
        discriminator: [5; 12],
        object_created_ms: 0,
        object_type,
        permissions: match object_type {
            ObjectType::User => Permissions::ALL_OSD2.union(Permissions::EXECUTE),
            _ => Permissions::ALL_OSD2,
        },
        descriptor,
    }
}

fn keys_of(key_file: &Path, partition: u64) -> KeyHierarchy<RustCrypto> {
    let file = std::fs::read_to_string(key_file).expect("the key file is there");
    let value = |name: &str| {
        let line = file.lines().find(|line| line.starts_with(name)).expect("a line of the key file");
        unhex(line.split('"').nth(1).expect("a quoted value"))
    };
    let system_id = value("system_id").try_into().expect("20 bytes");
    let initial = InitialKey::new(&value("master_key")).expect("32 bytes");
    let mut keys = KeyHierarchy::factory(Hash::Sha256, &initial, system_id);
    keys.add_partition(partition).expect("a new partition");
    keys
}
