//! Separate networks for servers that need an address, or well-known ports.

use std::path::Path;
use std::process::Command;

use super::folder::ServerGuard;
use super::served::needed;
use crate::Outcome;

/// Address of the namespace besides loopback; invisible outside.
pub(crate) const ADDRESS: &str = "10.99.0.1";

/// A network namespace with one address.
pub(crate) struct NetworkNamespace {
    name: String,
}

impl NetworkNamespace {
    /// Creates one for this purpose.
    pub(crate) fn new(what: &str) -> Outcome<Self> {
        needed("ip", "iproute2")?;
        needed("nsenter", "util-linux")?;
        let net = Self { name: format!("sealstone-bench-{}-{what}", std::process::id()) };
        ip(&["netns", "add", &net.name])?;
        let inside = |arguments: &[&str]| ip(&[&["-n", &net.name][..], arguments].concat());
        inside(&["link", "set", "lo", "up"])?;
        inside(&["link", "add", "near", "type", "veth", "peer", "name", "far"])?;
        inside(&["addr", "add", &format!("{ADDRESS}/24"), "dev", "near"])?;
        inside(&["link", "set", "near", "up"])?;
        inside(&["link", "set", "far", "up"])?;
        Ok(net)
    }

    /// Returns a command inside it, with this machine's mounts.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).arg(program);
        command
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

impl ServerGuard for NetworkNamespace {
    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }
}

fn ip(arguments: &[&str]) -> Outcome {
    let output = Command::new("ip").args(arguments).output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("`ip {}`: {}", arguments.join(" "), said.trim()).into())
        }
    }
}
