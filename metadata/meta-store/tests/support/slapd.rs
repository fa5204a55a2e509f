//! A real slapd with its own ports and configuration in a temporary folder, independent of system
//! services.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, reason = "test support")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const USERS: &str = "ou=people,dc=example,dc=org";
pub const GROUPS: &str = "ou=groups,dc=example,dc=org";
pub const READER: &str = "cn=reader,dc=example,dc=org";
pub const READER_PASSWORD: &str = "may read";
/// DN with write access to the metadata stores.
pub const WRITER: &str = "cn=files,dc=example,dc=org";
pub const WRITER_PASSWORD: &str = "may write";
/// Parent of the base entries of stores.
pub const STORES: &str = "ou=stores,dc=example,dc=org";
/// Maximum bytes of a slapd's database.
const DATABASE_MAX: u64 = 1 << 30;
/// How long a slapd may take to listen.
const START_MAX: Duration = Duration::from_secs(60);

const ENTRIES: &str = r#"
dn: dc=example,dc=org
objectClass: dcObject
objectClass: organization
dc: example
o: example

dn: ou=people,dc=example,dc=org
objectClass: organizationalUnit
ou: people

dn: ou=groups,dc=example,dc=org
objectClass: organizationalUnit
ou: groups

dn: cn=reader,dc=example,dc=org
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: reader
userPassword: may read

dn: cn=files,dc=example,dc=org
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: files
userPassword: may write

dn: ou=stores,dc=example,dc=org
objectClass: organizationalUnit
ou: stores

dn: uid=erika,ou=people,dc=example,dc=org
objectClass: inetOrgPerson
objectClass: shadowAccount
uid: erika
cn: Erika
sn: Muster
employeeNumber: 7
userPassword: nobody asks for this

dn: cn=Max \28R\2C*\29,ou=people,dc=example,dc=org
objectClass: inetOrgPerson
objectClass: shadowAccount
uid: max
cn: Max (R,*)
sn: Muster

dn: uid=twin,ou=people,dc=example,dc=org
objectClass: inetOrgPerson
uid: twin
cn: one
sn: Muster

dn: cn=two,ou=people,dc=example,dc=org
objectClass: inetOrgPerson
uid: twin
cn: two
sn: Muster

dn: cn=research,ou=groups,dc=example,dc=org
objectClass: groupOfNames
cn: research
member: uid=erika,ou=people,dc=example,dc=org

dn: cn=board,ou=groups,dc=example,dc=org
objectClass: groupOfUniqueNames
cn: board
uniqueMember: uid=erika,ou=people,dc=example,dc=org

dn: cn=maxes,ou=groups,dc=example,dc=org
objectClass: groupOfNames
cn: maxes
member: cn=Max \28R\2C*\29,ou=people,dc=example,dc=org

dn: cn=all,ou=groups,dc=example,dc=org
objectClass: posixGroup
cn: all
gidNumber: 100
memberUid: erika
memberUid: max

dn: cn=with blanks,ou=groups,dc=example,dc=org
objectClass: groupOfNames
cn: with blanks
member: uid=erika,ou=people,dc=example,dc=org
"#;

/// Kind of change of an attribute (RFC 4511 §4.6).
#[derive(Clone, Copy, Debug)]
pub enum AttributeChange {
    Add = 0,
    Delete = 1,
    Replace = 2,
}

fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&[tag, 0x82][..], &length, content].concat()
}

/// Process and files of one slapd.
pub struct Slapd {
    folder: tempfile::TempDir,
    child: Option<Child>,
    pub port: u16,
    pub tls_port: u16,
    stores: AtomicU32,
}

fn tool(name: &str) -> PathBuf {
    // Debian installs the tools in a folder that only root's PATH has.
    let sbin = Path::new("/usr/sbin").join(name);
    if sbin.exists() { sbin } else { PathBuf::from(name) }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Slapd {
    /// Creates the default entries and those in `more` (LDIF), and starts it. `tls` is a
    /// certificate and its key, both PEM.
    pub fn start_with(more: &str, tls: Option<(&str, &str)>) -> Self {
        Self::start_limited(more, tls, DATABASE_MAX)
    }

    /// Does the same as [`start_with`](Self::start_with), with a limit in bytes for the database.
    pub fn start_limited(more: &str, tls: Option<(&str, &str)>, database_max: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("db")).unwrap();
        let schemas: String = ["core", "cosine", "nis", "inetorgperson"]
            .iter()
            .map(|schema| format!("include /etc/ldap/schema/{schema}.schema\n"))
            .collect();
        let mut text = format!(
            "{schemas}pidfile {}\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\nmoduleload ppolicy\n",
            at("slapd.pid").display()
        );
        if let Some((certificate, key)) = tls {
            std::fs::write(at("cert.pem"), certificate).unwrap();
            std::fs::write(at("key.pem"), key).unwrap();
            text += &format!(
                "TLSCertificateFile {}\nTLSCertificateKeyFile {}\n",
                at("cert.pem").display(),
                at("key.pem").display()
            );
        }
        text += &format!(
            "database mdb\nsuffix dc=example,dc=org\nrootdn cn=root,dc=example,dc=org\nrootpw root\ndirectory {}\n\
             maxsize {database_max}\nlimits dn.exact=\"{WRITER}\" size=unlimited time=unlimited\n\
             overlay ppolicy\naccess to attrs=userPassword by anonymous auth by * none\n\
             access to dn.subtree=\"{STORES}\" by dn.exact=\"{WRITER}\" write by * none\n\
             access to * by dn.base=\"{READER}\" read by * none\n",
            at("db").display()
        );
        std::fs::write(at("slapd.conf"), text).unwrap();
        let mut slapd = Self { folder, child: None, port: 0, tls_port: 0, stores: AtomicU32::new(0) };
        slapd.offline("slapadd", &format!("{ENTRIES}\n{more}"));
        // Another process may have taken the port meanwhile.
        for _ in 0..5 {
            (slapd.port, slapd.tls_port) = (free_port(), free_port());
            if slapd.try_start() {
                return slapd;
            }
        }
        panic!("slapd does not listen");
    }

    pub fn start() -> Self {
        Self::start_with("", None)
    }

    fn offline(&self, name: &str, ldif: &str) {
        let mut child = Command::new(tool(name))
            .arg("-f")
            .arg(self.folder.path().join("slapd.conf"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("slapd is installed: scripts/setup --tests");
        child.stdin.take().unwrap().write_all(ldif.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{name}");
    }

    /// Changes an attribute of an entry online, because the offline tools would replace the entry.
    pub fn change(&self, dn: &str, change: AttributeChange, attribute: &str, values: &[&str]) {
        let set: Vec<u8> = values.iter().flat_map(|value| tlv(0x04, value.as_bytes())).collect();
        let what = tlv(0x30, &[tlv(0x04, attribute.as_bytes()), tlv(0x31, &set)].concat());
        let one = tlv(0x30, &[tlv(0x0A, &[change as u8]), what].concat());
        self.operate(0x66, &[tlv(0x04, dn.as_bytes()), tlv(0x30, &one)].concat());
    }

    /// Adds an entry.
    pub fn add(&self, dn: &str, attributes: &[(&str, &str)]) {
        let one = |(name, value): &(&str, &str)| {
            tlv(0x30, &[tlv(0x04, name.as_bytes()), tlv(0x31, &tlv(0x04, value.as_bytes()))].concat())
        };
        let all: Vec<u8> = attributes.iter().flat_map(one).collect();
        self.operate(0x68, &[tlv(0x04, dn.as_bytes()), tlv(0x30, &all)].concat());
    }

    /// Removes an entry.
    pub fn remove(&self, dn: &str) {
        self.operate(0x4A, dn.as_bytes());
    }

    /// Sends one operation (RFC 4511) as the directory's administrator.
    fn operate(&self, tag: u8, content: &[u8]) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let name = tlv(0x04, b"cn=root,dc=example,dc=org");
        let bind = tlv(0x60, &[tlv(0x02, &[3]), name, tlv(0x80, b"root")].concat());
        for (id, operation) in [(1, bind), (2, tlv(tag, content))] {
            stream.write_all(&tlv(0x30, &[tlv(0x02, &[id]), operation].concat())).unwrap();
            let mut answer = [0; 1024];
            let count = stream.read(&mut answer).unwrap();
            // Message, number, operation, result: all of them short.
            assert_eq!(answer[..count].get(7..10), Some(&[0x0A, 1, 0][..]), "{:02x?}", &answer[..count]);
        }
    }

    /// Starts it again on the same ports.
    pub fn restart(&mut self) {
        // Another process may have the port for a moment.
        let until = Instant::now() + START_MAX;
        while !self.try_start() {
            assert!(Instant::now() < until, "slapd does not listen");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn try_start(&mut self) -> bool {
        let tls = if self.folder.path().join("cert.pem").exists() {
            format!(" ldaps://127.0.0.1:{}", self.tls_port)
        } else {
            String::new()
        };
        let mut child = Command::new(tool("slapd"))
            .args(["-d", "0", "-h", &format!("ldap://127.0.0.1:{}{tls}", self.port), "-f"])
            .arg(self.folder.path().join("slapd.conf"))
            .stderr(Stdio::null())
            .spawn()
            .expect("slapd is installed: scripts/setup --tests");
        let until = Instant::now() + START_MAX;
        while child.try_wait().unwrap().is_none() && Instant::now() < until {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                self.child = Some(child);
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let _ = child.wait();
        false
    }

    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn url(&self) -> String {
        format!("ldap://127.0.0.1:{}", self.port)
    }

    /// Creates the base entry of a new metadata store and returns its URL.
    pub fn new_store(&self) -> String {
        let name = format!("s{}", self.stores.fetch_add(1, Ordering::Relaxed));
        self.add(&format!("ou={name},{STORES}"), &[("objectClass", "organizationalUnit"), ("ou", &name)]);
        format!("ldap://{WRITER}@127.0.0.1:{}/ou={name},{STORES}", self.port)
    }
}

impl Drop for Slapd {
    fn drop(&mut self) {
        self.stop();
    }
}
