//! Ports for daemons, reserved for the life of a test program.
//!
//! A daemon that is killed and started again listens on its old port. A port that the kernel
//! chooses may become the local port of any outgoing connection in between. Those returned here are
//! below the kernel's range for such connections, and a lock file keeps other test programs from
//! choosing them.

use std::fs::{self, File, OpenOptions};
use std::net::{TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The ports to choose from.
const PORTS: Range<u16> = 20_000..32_000;

/// Any free port of the local address, which a reserved one replaces.
pub(crate) const ANY_PORT: &str = "127.0.0.1:0";

/// The next port to try, and the locks of the reserved ones.
static RESERVED: Mutex<(Option<u16>, Vec<File>)> = Mutex::new((None, Vec::new()));

/// Reserves a port of 127.0.0.1 that is free for TCP and UDP.
#[must_use]
pub fn reserve_port() -> u16 {
    let folder = std::env::temp_dir().join("sealstone-test-ports");
    fs::create_dir_all(&folder).expect("a folder for the locks");
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    let count = PORTS.end - PORTS.start;
    let first = reserved.0.unwrap_or_else(|| (std::process::id().wrapping_mul(37) % u32::from(count)) as u16);
    for step in 0..count {
        let offset = (first + step) % count;
        let port = PORTS.start + offset;
        let path = folder.join(port.to_string());
        // Another user's lock file can still be locked.
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .or_else(|_| File::open(&path))
            .expect("a lock file");
        if file.try_lock().is_ok() && is_free(port) {
            *reserved = (Some((offset + 1) % count), std::mem::take(&mut reserved.1));
            reserved.1.push(file);
            return port;
        }
    }
    panic!("no free port in {PORTS:?}");
}

/// Reserves a port; returns it with the local address.
#[must_use]
pub fn reserve_address() -> String {
    format!("127.0.0.1:{}", reserve_port())
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn reserved_ports_are_distinct_and_free() {
        let ports: Vec<u16> = (0..20).map(|_| reserve_port()).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), ports.len());
        for port in ports {
            TcpListener::bind(("127.0.0.1", port)).expect("a free port");
        }
    }
}
