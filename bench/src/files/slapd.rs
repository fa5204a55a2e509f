//! A separate slapd for a metadata server, with its own folder and socket, and default durability.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::served::{ServerProcess, needed, new_folder, program};
use crate::Outcome;
use crate::rotation::text;

/// Folders of Debian's schemas and modules.
const SCHEMAS: &str = "/etc/ldap/schema";
const MODULES: &str = "/usr/lib/ldap";
/// Used only here, and only for the run.
const PASSWORD: &str = "only for figures";
/// Maximum bytes of the database.
const BYTES_MAX: u64 = 8 << 30;

/// An LDAP server, ended when dropped.
pub(crate) struct Slapd {
    _served: ServerProcess,
    socket: PathBuf,
    url: String,
    password: PathBuf,
}

fn tool(name: &str) -> Outcome<PathBuf> {
    // Debian installs them in a folder that only root's PATH has.
    let sbin = Path::new("/usr/sbin").join(name);
    if sbin.is_file() { Ok(sbin) } else { program(name).map_or_else(|| needed(name, "slapd"), Ok) }
}

impl Slapd {
    /// Base entry with write access, and the DN that has it.
    pub(crate) const BASE: &str = "ou=files,dc=example,dc=org";
    pub(crate) const WHO: &str = "cn=sealstone,dc=example,dc=org";

    /// Creates one in this folder and starts it.
    pub(crate) fn start(folder: &Path) -> Outcome<Self> {
        const BASE: &str = Slapd::BASE;
        const WHO: &str = Slapd::WHO;
        new_folder(folder)?;
        let (data, socket) = (new_folder(&folder.join("data"))?, folder.join("ldapi"));
        let password = folder.join("password");
        fs::write(&password, PASSWORD)?;
        fs::set_permissions(&password, fs::Permissions::from_mode(0o600))?;
        let schemas = ["core", "cosine", "inetorgperson"]
            .map(|schema| format!("include {SCHEMAS}/{schema}.schema\n"))
            .concat();
        let settings = folder.join("slapd.conf");
        fs::write(
            &settings,
            format!(
                "{schemas}pidfile {}\nmodulepath {MODULES}\nmoduleload back_mdb\ndatabase mdb\nsuffix dc=example,dc=org\n\
                 directory {}\nmaxsize {BYTES_MAX}\nlimits dn.exact=\"{WHO}\" size=unlimited time=unlimited\n\
                 access to attrs=userPassword by anonymous auth by * none\n\
                 access to dn.subtree=\"{BASE}\" by dn.exact=\"{WHO}\" write by * none\n",
                folder.join("slapd.pid").display(),
                data.display()
            ),
        )?;
        let entries = format!(
            "dn: dc=example,dc=org\nobjectClass: dcObject\nobjectClass: organization\ndc: example\no: example\n\n\
             dn: {WHO}\nobjectClass: organizationalRole\nobjectClass: simpleSecurityObject\ncn: sealstone\n\
             userPassword: {PASSWORD}\n\n\
             dn: {BASE}\nobjectClass: organizationalUnit\nou: files\n"
        );
        let mut add = Command::new(tool("slapadd")?)
            .arg("-f")
            .arg(&settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        add.stdin.take().ok_or("no input")?.write_all(entries.as_bytes())?;
        if !add.wait()?.success() {
            return Err("slapadd failed".into());
        }
        let escaped = text(&socket)?.replace('%', "%25").replace('/', "%2F");
        let mut slapd = Command::new(tool("slapd")?);
        slapd.args(["-d", "0", "-h", &format!("ldapi://{escaped}"), "-f"]).arg(&settings);
        let mut served = ServerProcess::start(slapd, &folder.with_extension("log"))?;
        served.wait("LDAP server", || Ok(UnixStream::connect(&socket).is_ok()))?;
        let url = format!("ldapi://{WHO}@{escaped}/{BASE}");
        Ok(Self { _served: served, socket, url, password })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the path of its socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the path of the file with its password.
    pub(crate) fn password_file(&self) -> &Path {
        &self.password
    }
}
