//! An iSCSI initiator that sends whatever a test needs, valid or not.
//!
//! Does: builds headers by hand (RFC 7143 §11), logs in, sends bytes.
//! Does not: use the project's protocol crate, whose errors it would share.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Bytes of a basic header segment.
pub const HEADER_BYTES: usize = 48;
/// Bytes of a CDB that fit into the basic header.
pub(crate) const CDB_IN_HEADER: usize = 16;
/// Timeout of a response.
const ANSWER_MAX: Duration = Duration::from_secs(200);

/// One connection.
#[derive(Debug)]
pub struct Initiator {
    /// The connection, for tests that use it directly.
    pub stream: TcpStream,
    command_number: u32,
}

impl Initiator {
    /// Connects without a login.
    #[track_caller]
    #[must_use]
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("the port is open");
        stream.set_read_timeout(Some(ANSWER_MAX)).expect("a timeout can be set");
        stream.set_nodelay(true).expect("it can be set");
        Self { stream, command_number: 1 }
    }

    /// Connects and logs in to the target of a device's URL.
    #[track_caller]
    #[must_use]
    pub fn login(address: &str, url: &str, name: &str) -> Self {
        let mut this = Self::connect(address);
        let target = url.rsplit('/').nth(1).expect("iscsi://HOST:PORT/IQN/LUN");
        this.send(&login(name, target));
        let answer = this.answer().expect("a login response");
        assert_eq!(answer[0] & 0x3F, 0x23, "opcode of a login response");
        assert_eq!(answer[36], 0, "status class");
        this
    }

    /// Sends raw bytes.
    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the device takes it");
    }

    /// Sends raw bytes; ignores that the device has closed.
    pub fn offer(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Receives the next PDU, header and data; `None` if the device closed the connection.
    ///
    /// # Panics
    /// If the device does neither in time.
    #[track_caller]
    pub fn answer(&mut self) -> Option<Vec<u8>> {
        let mut pdu = vec![0; HEADER_BYTES];
        self.fill(&mut pdu)?;
        let length = u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]) as usize;
        let mut data = vec![0; length.next_multiple_of(4)];
        self.fill(&mut data)?;
        pdu.extend_from_slice(&data[..length]);
        Some(pdu)
    }

    /// Waits until the device closes, and discards what it sends.
    #[track_caller]
    pub fn wait_until_closed(&mut self) {
        while self.answer().is_some() {}
    }

    /// Sends an INQUIRY, which needs no credential.
    #[track_caller]
    pub fn inquiry(&mut self) -> Vec<u8> {
        let mut pdu = [0; HEADER_BYTES];
        // SCSI command; final, read, simple.
        (pdu[0], pdu[1]) = (0x01, 0x80 | 0x40 | 0x01);
        pdu[16..20].copy_from_slice(&7u32.to_be_bytes());
        pdu[20..24].copy_from_slice(&96u32.to_be_bytes());
        pdu[24..28].copy_from_slice(&self.command_number.to_be_bytes());
        pdu[32..38].copy_from_slice(&[0x12, 0, 0, 0, 96, 0]);
        self.command_number += 1;
        self.send(&pdu);
        let answer = self.answer().expect("an answer");
        assert_eq!(answer[0] & 0x3F, 0x25, "data-in");
        answer[HEADER_BYTES..].to_vec()
    }

    /// Sends a command to a logical unit. Returns its status byte and data-in. Data-out is
    /// immediate, so it is limited to 8 KiB.
    ///
    /// # Panics
    /// If the device closes the connection instead of answering.
    #[track_caller]
    pub fn command(&mut self, lun: u8, cdb: &[u8], data_out: &[u8], data_in_max: u32) -> (u8, Vec<u8>) {
        let mut pdu = header(0x01, 0x80 | 0x01, data_out.len());
        pdu[1] |= if data_in_max > 0 { 0x40 } else { 0 } | if data_out.is_empty() { 0 } else { 0x20 };
        pdu[9] = lun;
        pdu[16..20].copy_from_slice(&self.command_number.to_be_bytes());
        let expected = if data_out.is_empty() { data_in_max } else { data_out.len() as u32 };
        pdu[20..24].copy_from_slice(&expected.to_be_bytes());
        pdu[24..28].copy_from_slice(&self.command_number.to_be_bytes());
        let (head, tail) = cdb.split_at(cdb.len().min(CDB_IN_HEADER));
        pdu[32..32 + head.len()].copy_from_slice(head);
        if !tail.is_empty() {
            // Additional header segment 1 with the rest of the CDB: its length counts the reserved
            // byte.
            pdu[4] = u8::try_from((4 + tail.len()).div_ceil(4)).expect("a CDB of at most 260 bytes");
            pdu.extend_from_slice(&u16::try_from(tail.len() + 1).expect("it is short").to_be_bytes());
            pdu.extend_from_slice(&[1, 0]);
            pdu.extend_from_slice(tail);
            pdu.resize(pdu.len().next_multiple_of(4), 0);
        }
        pdu.extend_from_slice(data_out);
        pdu.resize(pdu.len().next_multiple_of(4), 0);
        self.command_number += 1;
        self.send(&pdu);
        let mut data_in = Vec::new();
        loop {
            let answer = self.answer().expect("an answer");
            match answer[0] & 0x3F {
                0x25 => {
                    data_in.extend_from_slice(&answer[HEADER_BYTES..]);
                    // The last one may carry the status.
                    if answer[1] & 0x01 != 0 {
                        return (answer[3], data_in);
                    }
                }
                0x21 => return (answer[3], data_in),
                other => panic!("neither data nor status: opcode {other:#04x}"),
            }
        }
    }

    fn fill(&mut self, into: &mut [u8]) -> Option<()> {
        match self.stream.read_exact(into) {
            Ok(()) => Some(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("the device neither answers nor closes within {ANSWER_MAX:?}")
            }
            Err(_) => None,
        }
    }
}

/// Returns a login request of a normal session, one step, no digests.
#[must_use]
pub fn login(name: &str, target: &str) -> Vec<u8> {
    let keys = format!(
        "InitiatorName=iqn.2026-11.org.example:{name}\0TargetName={target}\0SessionType=Normal\0\
         HeaderDigest=None\0DataDigest=None\0"
    );
    // Immediate; transit from operational negotiation to full feature phase.
    let mut pdu = header(0x43, 0x87, keys.len());
    pdu[8] = 0x80;
    pdu[9..12].copy_from_slice(&name.len().to_be_bytes()[5..]);
    pdu[24..28].copy_from_slice(&1u32.to_be_bytes());
    pdu.extend_from_slice(keys.as_bytes());
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    pdu
}

/// Returns a ping with `length` bytes to be echoed.
#[must_use]
pub fn ping(length: usize) -> Vec<u8> {
    let mut pdu = header(0x40, 0x80, length);
    pdu[16..20].copy_from_slice(&9u32.to_be_bytes());
    pdu[20..24].fill(0xFF);
    pdu[24..28].copy_from_slice(&1u32.to_be_bytes());
    pdu.resize(HEADER_BYTES + length.next_multiple_of(4), 0x5A);
    pdu
}

/// Returns a header with this opcode, these flags, and this data length.
#[must_use]
pub fn header(opcode: u8, flags: u8, length: usize) -> Vec<u8> {
    let mut pdu = vec![0; HEADER_BYTES];
    (pdu[0], pdu[1]) = (opcode, flags);
    let length = u32::try_from(length).expect("a length").to_be_bytes();
    pdu[5..8].copy_from_slice(&length[1..]);
    pdu
}
