//! A relay between initiators and a device that records the SCSI commands it forwards.
//!
//! Does: forwards bytes in both directions unchanged; extracts commands (RFC 7143 §11.3).
//! Does not: use the project's protocol crate, or change anything.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::initiator::{CDB_IN_HEADER, HEADER_BYTES};

/// Opcode of a SCSI Command PDU.
const SCSI_COMMAND: u8 = 0x01;
/// Timeout for a command to pass.
const PASS_MAX: Duration = Duration::from_secs(200);

/// A recorded command.
#[derive(Clone, Debug)]
pub struct CapturedCommand {
    /// The whole CDB.
    pub cdb: Vec<u8>,
    /// Data that came with it.
    pub data_out: Vec<u8>,
}

impl CapturedCommand {
    /// Returns the SERVICE ACTION of an OSD command; 0 for others.
    #[must_use]
    pub fn service_action(&self) -> u16 {
        match self.cdb.get(8..10) {
            Some(&[high, low]) if self.cdb[0] == 0x7F => u16::from_be_bytes([high, low]),
            _ => 0,
        }
    }
}

/// The relay; it ends with the process.
#[derive(Debug)]
pub struct Wiretap {
    /// Address for initiators to connect to.
    pub address: SocketAddr,
    commands: Receiver<CapturedCommand>,
}

impl Wiretap {
    /// Starts a relay to `device` on a loopback port.
    ///
    /// # Errors
    /// No port is free.
    pub fn before(device: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (sender, commands) = channel();
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if let Ok(far) = TcpStream::connect(device) {
                    relay(near, far, &sender);
                }
            }
        });
        Ok(Self { address, commands })
    }

    /// Waits for the next matching command; `None` after a timeout.
    pub fn capture(&self, fits: impl Fn(&CapturedCommand) -> bool) -> Option<CapturedCommand> {
        loop {
            match self.commands.recv_timeout(PASS_MAX) {
                Ok(command) if fits(&command) => return Some(command),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }
}

fn relay(near: TcpStream, far: TcpStream, sender: &Sender<CapturedCommand>) {
    let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { return };
    let sender = sender.clone();
    thread::spawn(move || copy(&far_too, &near_too, |_| ()));
    thread::spawn(move || {
        let mut seen = Vec::new();
        copy(&near, &far, |bytes| {
            seen.extend_from_slice(bytes);
            while let Some((command, length)) = first_pdu(&seen) {
                seen.drain(..length);
                if let Some(command) = command {
                    // The receiver is gone; the relay continues.
                    let _ = sender.send(command);
                }
            }
        });
    });
}

fn copy(mut from: &TcpStream, mut to: &TcpStream, mut look: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        look(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Parses the first PDU, if it is complete: the command, if it is one, and its length. Digests are
/// not negotiated here.
fn first_pdu(bytes: &[u8]) -> Option<(Option<CapturedCommand>, usize)> {
    let header = bytes.get(..HEADER_BYTES)?;
    let ahs = usize::from(header[4]) * 4;
    let data = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
    let length = HEADER_BYTES + ahs + data.next_multiple_of(4);
    let pdu = bytes.get(..length)?;
    if header[0] & 0x3F != SCSI_COMMAND {
        return Some((None, length));
    }
    let mut cdb = header[32..32 + CDB_IN_HEADER].to_vec();
    if ahs > 4 {
        let tail =
            usize::from(u16::from_be_bytes([pdu[HEADER_BYTES], pdu[HEADER_BYTES + 1]])).saturating_sub(1);
        cdb.extend(pdu[HEADER_BYTES + 4..HEADER_BYTES + ahs].iter().take(tail));
    }
    let data_out = pdu[HEADER_BYTES + ahs..][..data].to_vec();
    Some((Some(CapturedCommand { cdb, data_out }), length))
}
