//! An iSCSI initiator built by hand (RFC 7143 §11), which sends whatever a test needs, valid or
//! not.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::target::Portal;

pub(crate) const HEADER: usize = 48;
/// Timeout of a response.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Maximum data segment that the initiator declares.
pub(crate) const SEGMENT_MAX: usize = 262_144;

pub(crate) const NOP_OUT: u8 = 0x00;
pub(crate) const SCSI_COMMAND: u8 = 0x01;
pub(crate) const TASK_MANAGEMENT: u8 = 0x02;
pub(crate) const LOGIN: u8 = 0x03;
pub(crate) const TEXT: u8 = 0x04;
pub(crate) const DATA_OUT: u8 = 0x05;
pub(crate) const LOGOUT: u8 = 0x06;
pub(crate) const SNACK: u8 = 0x10;
pub(crate) const NOP_IN: u8 = 0x20;
pub(crate) const SCSI_RESPONSE: u8 = 0x21;
pub(crate) const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
pub(crate) const LOGIN_RESPONSE: u8 = 0x23;
pub(crate) const TEXT_RESPONSE: u8 = 0x24;
pub(crate) const DATA_IN: u8 = 0x25;
pub(crate) const LOGOUT_RESPONSE: u8 = 0x26;
pub(crate) const R2T: u8 = 0x31;
pub(crate) const ASYNC: u8 = 0x32;
pub(crate) const REJECT: u8 = 0x3F;
pub(crate) const IMMEDIATE: u8 = 0x40;

/// A protocol data unit.
#[derive(Clone, Debug)]
pub(crate) struct Pdu {
    pub(crate) header: [u8; HEADER],
    pub(crate) additional: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Pdu {
    pub(crate) fn new(opcode: u8, flags: u8) -> Self {
        let mut header = [0; HEADER];
        (header[0], header[1]) = (opcode, flags);
        Self { header, additional: Vec::new(), data: Vec::new() }
    }

    pub(crate) fn opcode(&self) -> u8 {
        self.header[0] & 0x3F
    }

    pub(crate) fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.header[at..at + 4].try_into().unwrap())
    }

    pub(crate) fn put(&mut self, at: usize, word: u32) -> &mut Self {
        self.header[at..at + 4].copy_from_slice(&word.to_be_bytes());
        self
    }

    /// Returns the pairs of a negotiation text.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        let text = String::from_utf8_lossy(&self.data).into_owned();
        let pairs = text.split('\0').filter(|pair| !pair.is_empty());
        pairs
            .map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                (key.to_owned(), value.to_owned())
            })
            .collect()
    }

    pub(crate) fn value(&self, key: &str) -> Option<String> {
        self.pairs().into_iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

/// Reply to a SCSI command.
#[derive(Clone, Debug)]
pub(crate) struct ScsiReply {
    pub(crate) status: u8,
    pub(crate) sense: Vec<u8>,
    /// The Data-In Buffer as far as it was filled; gaps are zero.
    pub(crate) data_in: Vec<u8>,
    /// Flags of the response: residual bits.
    pub(crate) flags: u8,
    pub(crate) residual: u32,
    pub(crate) read_residual: u32,
    /// iSCSI response code: 0 if the command completed at the target.
    pub(crate) response: u8,
}

/// One connection, its session, and its negotiated parameters.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) portal: Portal,
    pub(crate) command_number: u32,
    pub(crate) status_number: u32,
    pub(crate) tag: u32,
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    /// Maximum data segment that the target accepts.
    pub(crate) send_max: usize,
    pub(crate) first_burst: usize,
    pub(crate) immediate_data: bool,
    pub(crate) session_handle: u16,
}

impl Connection {
    /// Connects without a login.
    pub(crate) fn open(portal: &Portal) -> Self {
        let stream =
            TcpStream::connect(&portal.address).unwrap_or_else(|error| panic!("{}: {error}", portal.address));
        stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            portal: portal.clone(),
            command_number: 1,
            status_number: 0,
            tag: 1,
            header_digest: false,
            data_digest: false,
            send_max: 8192,
            first_burst: 65_536,
            immediate_data: true,
            session_handle: 0,
        }
    }

    /// Connects, logs in to a normal session in one step, and clears unit attentions.
    pub(crate) fn session(portal: &Portal) -> Self {
        let mut this = Self::open(portal);
        this.log_in("conformance", &[]);
        for _ in 0..4 {
            if this.command(&[0; 6], &[], 0).status == 0 {
                return this;
            }
        }
        panic!("TEST UNIT READY does not succeed");
    }

    /// Logs in with these keys besides the identity; the target must accept.
    pub(crate) fn log_in(&mut self, name: &str, keys: &[(&str, &str)]) -> Pdu {
        let mut all = self.identity(name);
        let given = |key: &str| keys.iter().any(|(name, _)| *name == key);
        let usual = [
            ("HeaderDigest", "None".to_owned()),
            ("DataDigest", "None".to_owned()),
            ("InitialR2T", "Yes".to_owned()),
            ("ImmediateData", "Yes".to_owned()),
            ("MaxRecvDataSegmentLength", SEGMENT_MAX.to_string()),
            ("FirstBurstLength", "65536".to_owned()),
            ("MaxBurstLength", "262144".to_owned()),
        ];
        all.extend(
            usual.into_iter().filter(|(key, _)| !given(key)).map(|(key, value)| (key.to_owned(), value)),
        );
        all.extend(keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        let answer = self.login_step(0x87, &text(&all));
        assert_eq!(
            (answer.opcode(), answer.header[36]),
            (LOGIN_RESPONSE, 0),
            "the login succeeds: {answer:?}"
        );
        self.agreed(&answer);
        answer
    }

    /// Applies the parameters of a final login response.
    pub(crate) fn agreed(&mut self, answer: &Pdu) {
        self.session_handle = u16::from_be_bytes([answer.header[14], answer.header[15]]);
        self.header_digest = answer.value("HeaderDigest").as_deref() == Some("CRC32C");
        self.data_digest = answer.value("DataDigest").as_deref() == Some("CRC32C");
        let number = |key: &str| answer.value(key).and_then(|value| value.parse::<usize>().ok());
        self.send_max = number("MaxRecvDataSegmentLength").unwrap_or(self.send_max);
        self.first_burst = number("FirstBurstLength").unwrap_or(self.first_burst);
        self.immediate_data = answer.value("ImmediateData").as_deref() != Some("No");
        self.command_number = self.command_number.max(1);
    }

    /// Returns the keys that identify both ends.
    pub(crate) fn identity(&self, name: &str) -> Vec<(String, String)> {
        vec![
            ("InitiatorName".to_owned(), format!("iqn.2026-11.org.example:{name}")),
            ("TargetName".to_owned(), self.portal.target.clone()),
            ("SessionType".to_owned(), "Normal".to_owned()),
        ]
    }

    /// Sends one login request and returns the response.
    pub(crate) fn login_step(&mut self, flags: u8, text: &[u8]) -> Pdu {
        self.send(&self.login_request(flags, text));
        self.answer().expect("a login response")
    }

    pub(crate) fn login_request(&self, flags: u8, text: &[u8]) -> Pdu {
        let mut pdu = Pdu::new(LOGIN | IMMEDIATE, flags);
        pdu.header[8..14].copy_from_slice(&isid(&self.stream));
        pdu.put(24, self.command_number).put(28, self.status_number);
        pdu.data = text.to_vec();
        pdu
    }

    /// Sends a PDU with the negotiated digests.
    pub(crate) fn send(&mut self, pdu: &Pdu) {
        let bytes = self.wire(pdu);
        self.stream.write_all(&bytes).expect("the target takes it");
    }

    pub(crate) fn wire(&self, pdu: &Pdu) -> Vec<u8> {
        let mut bytes = pdu.header.to_vec();
        assert!(pdu.additional.len().is_multiple_of(4));
        bytes[4] = (pdu.additional.len() / 4) as u8;
        bytes[5..8].copy_from_slice(&(pdu.data.len() as u32).to_be_bytes()[1..]);
        bytes.extend_from_slice(&pdu.additional);
        if self.header_digest {
            let digest = crc32c::crc32c(&bytes);
            bytes.extend_from_slice(&digest.to_le_bytes());
        }
        let at = bytes.len();
        bytes.extend_from_slice(&pdu.data);
        bytes.resize(at + pdu.data.len().next_multiple_of(4), 0);
        if self.data_digest && !pdu.data.is_empty() {
            let digest = crc32c::crc32c(&bytes[at..]);
            bytes.extend_from_slice(&digest.to_le_bytes());
        }
        bytes
    }

    /// Receives the next PDU; `None` if the target closed the connection. Fails the test if a
    /// digest is wrong.
    pub(crate) fn answer(&mut self) -> Option<Pdu> {
        let mut header = [0; HEADER];
        self.fill(&mut header)?;
        let mut additional = vec![0; 4 * usize::from(header[4])];
        self.fill(&mut additional)?;
        if self.header_digest {
            let mut digest = [0; 4];
            self.fill(&mut digest)?;
            let right = crc32c::crc32c_append(crc32c::crc32c(&header), &additional);
            assert_eq!(u32::from_le_bytes(digest), right, "header digest");
        }
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        assert!(length <= SEGMENT_MAX, "a data segment of {length} bytes, more than we declared");
        let mut data = vec![0; length.next_multiple_of(4)];
        self.fill(&mut data)?;
        if self.data_digest && length > 0 {
            let mut digest = [0; 4];
            self.fill(&mut digest)?;
            assert_eq!(u32::from_le_bytes(digest), crc32c::crc32c(&data), "data digest");
        }
        data.truncate(length);
        let pdu = Pdu { header, additional, data };
        // Every PDU with status has a status number; data without status and R2T have none.
        let counts = match pdu.opcode() {
            R2T => false,
            DATA_IN => header[1] & 1 != 0,
            NOP_IN => pdu.word(16) != u32::MAX,
            _ => true,
        };
        if counts {
            self.status_number = pdu.word(24).wrapping_add(1);
        }
        Some(pdu)
    }

    fn fill(&mut self, into: &mut [u8]) -> Option<()> {
        match self.stream.read_exact(into) {
            Ok(()) => Some(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("the target neither answers nor closes within {ANSWER_MAX:?}")
            }
            Err(_) => None,
        }
    }

    /// Sends raw bytes; ignores that the target has closed.
    pub(crate) fn offer(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Waits until the target closes.
    pub(crate) fn is_closed(&mut self) {
        while self.answer().is_some() {}
    }

    /// Returns the next PDU for the test, and answers pings before it.
    pub(crate) fn next(&mut self) -> Pdu {
        loop {
            let pdu = self.answer().expect("the connection stays open");
            if pdu.opcode() == NOP_IN && pdu.word(20) != u32::MAX && pdu.word(16) == u32::MAX {
                let mut pong = Pdu::new(NOP_OUT | IMMEDIATE, 0x80);
                pong.put(16, u32::MAX).put(20, pdu.word(20)).put(24, self.command_number);
                pong.put(28, self.status_number);
                self.send(&pong);
                continue;
            }
            return pdu;
        }
    }

    /// Returns the LUN of the portal in single-level form.
    pub(crate) fn lun(&self) -> [u8; 8] {
        [
            (self.portal.lun >> 8) as u8 | if self.portal.lun > 255 { 0x40 } else { 0 },
            self.portal.lun as u8,
            0,
            0,
            0,
            0,
            0,
            0,
        ]
    }

    /// Builds a command PDU for a CDB, with the next numbers.
    pub(crate) fn command_pdu(&mut self, cdb: &[u8], out: usize, read: usize) -> Pdu {
        let flags = 0x80 | if read > 0 { 0x40 } else { 0 } | if out > 0 { 0x20 } else { 0 } | 1;
        let mut pdu = Pdu::new(SCSI_COMMAND, flags);
        pdu.header[8..16].copy_from_slice(&self.lun());
        let expected = if out > 0 { out } else { read };
        pdu.put(16, self.tag)
            .put(20, expected as u32)
            .put(24, self.command_number)
            .put(28, self.status_number);
        self.tag += 1;
        self.command_number = self.command_number.wrapping_add(1);
        let head = cdb.len().min(16);
        pdu.header[32..32 + head].copy_from_slice(&cdb[..head]);
        if cdb.len() > 16 {
            let rest = &cdb[16..];
            pdu.additional.extend_from_slice(&(rest.len() as u16 + 1).to_be_bytes());
            pdu.additional.extend_from_slice(&[1, 0]);
            pdu.additional.extend_from_slice(rest);
            pdu.additional.resize(pdu.additional.len().next_multiple_of(4), 0);
        }
        if out > 0 && read > 0 {
            pdu.additional.extend_from_slice(&[0, 5, 2, 0]);
            pdu.additional.extend_from_slice(&(read as u32).to_be_bytes());
        }
        pdu
    }

    /// Runs a command to its end: immediate data, R2Ts, Data-In and response.
    pub(crate) fn command(&mut self, cdb: &[u8], out: &[u8], read: usize) -> ScsiReply {
        let mut pdu = self.command_pdu(cdb, out.len(), read);
        let tag = pdu.word(16);
        let now = if self.immediate_data { out.len().min(self.send_max).min(self.first_burst) } else { 0 };
        pdu.data = out[..now].to_vec();
        self.send(&pdu);
        self.finish(tag, out, read)
    }

    /// Completes a command that was sent.
    pub(crate) fn finish(&mut self, tag: u32, out: &[u8], read: usize) -> ScsiReply {
        let mut data_in = Vec::new();
        loop {
            let pdu = self.next();
            assert_eq!(pdu.word(16), tag, "the answer is to our command: {pdu:?}");
            match pdu.opcode() {
                R2T => {
                    let (at, length) = (pdu.word(40) as usize, pdu.word(44) as usize);
                    assert!(at + length <= out.len(), "R2T within the expected length");
                    self.data_out(tag, pdu.word(20), at, &out[at..at + length]);
                }
                DATA_IN => {
                    let at = pdu.word(40) as usize;
                    assert!(at + pdu.data.len() <= read, "Data-In within the expected length");
                    if data_in.len() < at + pdu.data.len() {
                        data_in.resize(at + pdu.data.len(), 0);
                    }
                    data_in[at..at + pdu.data.len()].copy_from_slice(&pdu.data);
                    if pdu.header[1] & 1 != 0 {
                        let (flags, residual) = (pdu.header[1], pdu.word(44));
                        return ScsiReply {
                            status: pdu.header[3],
                            sense: Vec::new(),
                            data_in,
                            flags,
                            residual,
                            read_residual: 0,
                            response: 0,
                        };
                    }
                }
                SCSI_RESPONSE => {
                    let sense = match pdu.data.split_first_chunk::<2>() {
                        Some((length, rest)) => rest[..usize::from(u16::from_be_bytes(*length))].to_vec(),
                        None => Vec::new(),
                    };
                    return ScsiReply {
                        status: pdu.header[3],
                        sense,
                        data_in,
                        flags: pdu.header[1],
                        residual: pdu.word(44),
                        read_residual: pdu.word(40),
                        response: pdu.header[2],
                    };
                }
                other => panic!("opcode {other:#04x} in answer to a command: {pdu:?}"),
            }
        }
    }

    /// Sends a sequence of Data-Out PDUs.
    pub(crate) fn data_out(&mut self, tag: u32, transfer: u32, at: usize, bytes: &[u8]) {
        let pieces: Vec<&[u8]> = bytes.chunks(self.send_max).collect();
        let mut offset = at;
        for (number, piece) in pieces.iter().enumerate() {
            let last = number + 1 == pieces.len();
            let mut pdu = Pdu::new(DATA_OUT, if last { 0x80 } else { 0 });
            pdu.header[8..16].copy_from_slice(&self.lun());
            pdu.put(16, tag).put(20, transfer).put(28, self.status_number);
            pdu.put(36, number as u32).put(40, offset as u32);
            pdu.data = piece.to_vec();
            offset += piece.len();
            self.send(&pdu);
        }
    }
}

/// Returns a unique ISID, so that no connection reinstates the session of another.
fn isid(stream: &TcpStream) -> [u8; 6] {
    let [high, low] = stream.local_addr().map_or(0, |address| address.port()).to_be_bytes();
    [0x80, 0xC0, 0xFF, 0xEE, high, low]
}

/// Encodes pairs as negotiation text.
pub(crate) fn text(pairs: &[(String, String)]) -> Vec<u8> {
    pairs.iter().flat_map(|(key, value)| format!("{key}={value}\0").into_bytes()).collect()
}
