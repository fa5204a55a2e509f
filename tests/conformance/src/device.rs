//! A device under test: lays out the buffers of a command, signs it, sends it, and verifies every
//! reply.

use crate::cdb::{self, Generation, Get, Request, ServiceAction, UNUSED};
use crate::iscsi::{Connection, ScsiReply};
use crate::list::{self, Attribute};
use crate::runner::skip;
use crate::seal::{self, CredentialKeys, DataOrigin, FactoryKeys, Method, SigningKey};
use crate::sense::Sense;

pub(crate) const GOOD: u8 = 0x00;
pub(crate) const CHECK: u8 = 0x02;
pub(crate) const ILLEGAL: u8 = 0x05;
pub(crate) const INVALID_FIELD: u16 = 0x2400;

/// A verified reply, split into its parts.
#[derive(Clone, Debug)]
pub(crate) struct VerifiedReply {
    pub(crate) generation: Generation,
    pub(crate) status: u8,
    pub(crate) sense: Option<Sense>,
    pub(crate) data: Vec<u8>,
    pub(crate) attributes: Vec<u8>,
    pub(crate) reply: ScsiReply,
}

impl VerifiedReply {
    /// Fails the test unless the command succeeded; skips it if the device lacks the command.
    #[track_caller]
    pub(crate) fn good(self) -> Self {
        if self.is_not_there() {
            skip("the device does not have the command");
        }
        assert_eq!(self.status, GOOD, "{:04x?}", self.sense);
        self
    }

    /// Whether the service action was unknown.
    pub(crate) fn is_not_there(&self) -> bool {
        self.sense.as_ref().is_some_and(|sense| {
            (sense.key, sense.code, sense.field) == (ILLEGAL, INVALID_FIELD, Some((true, 8)))
        })
    }

    /// Fails the test unless the command was refused with this key and code.
    #[track_caller]
    pub(crate) fn refused(self, key: u8, code: u16) -> Self {
        if self.is_not_there() {
            skip("the device does not have the command");
        }
        assert_eq!(self.status, CHECK, "not refused: {:04x?}", self.sense);
        let sense = self.sense.as_ref().expect("sense data");
        assert_eq!((sense.key, sense.code), (key, code), "{sense:04x?}");
        self
    }

    /// Fails the test unless the refusal is ILLEGAL REQUEST, INVALID FIELD IN CDB, with a pointer
    /// to this byte.
    #[track_caller]
    pub(crate) fn invalid(self, byte: usize) -> Self {
        let this = self.refused(ILLEGAL, INVALID_FIELD);
        this.points_at(byte);
        this
    }

    #[track_caller]
    pub(crate) fn points_at(&self, byte: usize) {
        let field = self.sense.as_ref().and_then(|sense| sense.field);
        assert_eq!(field, Some((true, byte as u16)), "field pointer; {:04x?}", self.sense);
    }

    /// Returns the entries of a retrieved list.
    #[track_caller]
    pub(crate) fn entries(&self) -> Vec<(Attribute, Vec<u8>)> {
        list::retrieved(self.generation, &self.attributes).entries
    }

    /// Returns the only value of a retrieved list.
    #[track_caller]
    pub(crate) fn value(&self) -> Vec<u8> {
        let entries = self.entries();
        assert_eq!(entries.len(), 1, "one attribute: {entries:02x?}");
        entries.into_iter().next().unwrap().1
    }

    /// Returns the only value as a number.
    #[track_caller]
    pub(crate) fn number(&self) -> u64 {
        number(&self.value())
    }
}

pub(crate) fn number(bytes: &[u8]) -> u64 {
    assert!(bytes.len() <= 8 && !bytes.is_empty(), "a number of {} bytes", bytes.len());
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// A logical unit with one generation and one security method.
pub(crate) struct Device {
    pub(crate) connection: Connection,
    pub(crate) generation: Generation,
    pub(crate) method: Method,
    pub(crate) keys: Option<FactoryKeys>,
    /// The partition for the test.
    pub(crate) partition: u64,
    /// Algorithm slot of ALLDATA, if not the default.
    pub(crate) slot: Option<u8>,
    clock_offset_ms: i64,
}

impl Device {
    pub(crate) fn new(
        connection: Connection,
        generation: Generation,
        method: Method,
        keys: Option<FactoryKeys>,
        partition: u64,
    ) -> Self {
        Self { connection, generation, method, keys, partition, slot: None, clock_offset_ms: 0 }
    }

    pub(crate) fn request(&self, action: ServiceAction) -> Request {
        Request::new(self.generation, action)
    }

    /// Builds a command on a user object of the test's partition.
    pub(crate) fn user(&self, action: ServiceAction, object: u64) -> Request {
        self.request(action).user(self.partition, object)
    }

    /// Builds a command on the test's partition.
    pub(crate) fn own(&self, action: ServiceAction) -> Request {
        self.request(action).at(cdb::PARTITION, self.partition, 0)
    }

    /// Adds a second object to the request: type, id, permissions. A secured device needs a
    /// capability for it in an extension of the continuation segment; without security the
    /// permission bits of the first capability apply.
    pub(crate) fn reaches(&self, request: &mut Request, further: (u8, u64, u16)) {
        request.further = Some(further);
        if !self.secured() {
            request.permissions |= further.2;
        }
    }

    pub(crate) fn osd2(&self) -> bool {
        self.generation == Generation::Osd2
    }

    pub(crate) fn secured(&self) -> bool {
        self.method > Method::NoSec
    }

    /// Lays out, signs and sends a command, and verifies all check values of the reply.
    #[track_caller]
    pub(crate) fn run(&mut self, request: Request) -> VerifiedReply {
        let shot = self.sign(request);
        self.send(&shot)
    }

    #[track_caller]
    pub(crate) fn send(&mut self, shot: &SentCommand) -> VerifiedReply {
        let reply = self.connection.command(&shot.cdb, &shot.data_out, shot.data_in_max);
        self.check(shot, reply)
    }

    fn now_ms(&self) -> u64 {
        seal::now_ms().saturating_add_signed(self.clock_offset_ms)
    }

    /// Returns the key that must sign it (docs/standards/security.md 2).
    fn signer(request: &Request) -> SigningKey {
        match request.action {
            cdb::SET_MASTER_KEY => SigningKey::Master,
            cdb::SET_KEY => match request.cdb[11] & 3 {
                1 => SigningKey::Master,
                2 => SigningKey::Root,
                _ => SigningKey::Partition(request.partition),
            },
            cdb::CREATE_PARTITION
            | cdb::REMOVE_PARTITION
            | cdb::CREATE_SNAPSHOT
            | cdb::CREATE_CLONE
            | cdb::REFRESH => SigningKey::Working(0),
            _ => SigningKey::Working(request.partition),
        }
    }

    /// Signs a command with the correct key.
    pub(crate) fn sign(&self, request: Request) -> SentCommand {
        let signer = Self::signer(&request);
        self.sign_as(request, signer)
    }

    /// Signs a command with a key chosen by the test.
    pub(crate) fn sign_as(&self, mut request: Request, signer: SigningKey) -> SentCommand {
        let generation = request.generation;
        let further = request.further.filter(|_| self.secured()).map(|(kind, object, permissions)| {
            let mut of_it = self.request(cdb::GET_ATTRIBUTES).at(kind, request.partition, object);
            of_it.permissions = permissions;
            let further = self.capability(&of_it);
            if request.continuation.is_empty() {
                request.continuation = cdb::segment(request.action, &[]);
            }
            // FFEEh: the capability; FF11h: space for its proof, at the end.
            request.continuation.extend(cdb::descriptor(0xFFEE, &further));
            request.continuation.extend(cdb::descriptor(0xFF11, &[0; 32]));
            further
        });
        let capability = self.capability(&request);
        let mut cdb = request.cdb.clone();
        let mut continuation = request.continuation.clone();
        if !continuation.is_empty() {
            cdb[48..52].copy_from_slice(&(continuation.len() as u32).to_be_bytes());
        }
        let layout = layout(&request, &mut cdb);
        request.patches.iter().for_each(|(at, bytes)| cdb[*at..at + bytes.len()].copy_from_slice(bytes));
        cdb[80..80 + capability.len()].copy_from_slice(&capability);
        let icv = 80 + capability.len();
        let nonce_at = icv + generation.icv_len();
        let mut data_out = layout.data_out(&continuation, &request.data);
        let mut data_in_max = layout.data_in;
        cdb[nonce_at + 12..nonce_at + 20].fill(0xFF);
        let mut shot = SentCommand { layout, nonce: [0; 12], keys: None, ..SentCommand::default() };
        shot.origin = origin(&request, &cdb);
        shot.page = whole_page(&request);
        if self.method >= Method::CmdRsp {
            let keys = self.keys.as_ref().expect("keys of a secured device");
            let slot = capability[1] & 0x0F;
            let credential = CredentialKeys::new(
                generation,
                slot,
                &keys.signing(signer, capability[1] >> 4),
                &capability,
                &keys.system_id,
            );
            shot.nonce = seal::nonce(self.now_ms());
            cdb[nonce_at..nonce_at + 12].copy_from_slice(&shot.nonce);
            if self.method == Method::AllData {
                let layout = &shot.layout;
                if data_out.len() > continuation.len() {
                    let at = data_out.len().next_multiple_of(generation.unit());
                    cdb[nonce_at + 16..nonce_at + 20].copy_from_slice(&generation.offset(at).to_be_bytes());
                    let origin = DataOrigin { inward: false, ..shot.origin };
                    let (set, get) = (&layout.set, &layout.get);
                    let block = credential.data_out(&shot.nonce, &origin, set, get, &request.data);
                    data_out.resize(at, 0);
                    data_out.extend_from_slice(&block);
                }
                if layout.data_in > 0 {
                    let at = layout.data_in.next_multiple_of(generation.unit());
                    cdb[nonce_at + 12..nonce_at + 16].copy_from_slice(&generation.offset(at).to_be_bytes());
                    shot.data_in_icv = Some(at);
                    data_in_max = at + credential.data_in_len();
                }
            }
            if let Some(further) = &further {
                // Proven by the request check value of the same CDB, whose own value is still zero.
                let signing = keys.signing(SigningKey::Working(request.partition), further[1] >> 4);
                let holder =
                    CredentialKeys::new(generation, further[1] & 0x0F, &signing, further, &keys.system_id);
                let end = continuation.len();
                continuation[end - 32..].copy_from_slice(&holder.request(&cdb));
            }
            if !continuation.is_empty() {
                let tag = credential.continuation(&shot.nonce, &continuation);
                continuation[8..40].copy_from_slice(&tag);
                data_out[..continuation.len()].copy_from_slice(&continuation);
            }
            let tag = credential.request(&cdb);
            cdb[icv..nonce_at].copy_from_slice(&tag);
            shot.keys = Some(credential);
        }
        SentCommand { generation, cdb, data_out, data_in_max, ..shot }
    }

    /// Returns a capability for the request and every attribute.
    fn capability(&self, request: &Request) -> Vec<u8> {
        let generation = request.generation;
        let mut capability = vec![0; generation.capability_len()];
        capability[0] = generation.pick(1, 2);
        capability[1] = match (self.method, self.slot) {
            (Method::AllData, Some(slot)) => slot,
            (Method::AllData, None) => generation.pick(0, 2),
            _ => generation.pick(0, 1),
        };
        capability[2] = self.method as u8;
        capability[10..30].copy_from_slice(b"conformance of tests");
        capability[48] = request.kind;
        let own = permissions(request.action);
        let all = own | request.permissions | 0x3000 | 0x0220 | 0x0020;
        capability[49..51].copy_from_slice(&all.to_be_bytes());
        let partition = matches!(request.kind, cdb::ROOT | cdb::PARTITION);
        let descriptor = match (request.kind, generation) {
            (cdb::ROOT | cdb::PARTITION, _) => 2,
            (cdb::COLLECTION, Generation::Osd2) => 3,
            _ => 1,
        };
        capability[55] = descriptor << 4;
        let at = generation.pick(60, 72);
        capability[at..at + 8].copy_from_slice(&request.partition.to_be_bytes());
        if !partition {
            capability[at + 8..at + 16].copy_from_slice(&request.object.to_be_bytes());
        }
        if generation == Generation::Osd2 && request.kind == cdb::USER {
            capability[88..96].fill(0xFF);
        }
        for (at, bytes) in &request.capability_patches {
            capability[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        capability
    }

    /// Verifies a reply and splits it.
    #[track_caller]
    fn check(&mut self, shot: &SentCommand, reply: ScsiReply) -> VerifiedReply {
        let generation = shot.generation;
        assert_eq!(reply.response, 0, "the command completed at the target");
        let sense = (!reply.sense.is_empty()).then(|| Sense::parse(&reply.sense));
        if let Some(keys) = &shot.keys {
            let icv = sense.as_ref().and_then(|sense| sense.response_icv.clone());
            if reply.status == GOOD {
                let sense = sense.as_ref().expect("GOOD comes with its check value");
                assert_eq!((sense.key, sense.code), (0, 0), "NO SENSE besides");
                assert_eq!(icv, Some(keys.response(&shot.nonce, GOOD, &[])), "response check value of GOOD");
            } else if let Some(icv) = icv {
                let mut zeroed = reply.sense.clone();
                let at = zeroed.windows(icv.len()).position(|bytes| bytes == icv).unwrap();
                zeroed[at..at + icv.len()].fill(0);
                assert_eq!(icv, keys.response(&shot.nonce, reply.status, &zeroed), "response check value");
            }
        }
        let sense = sense.filter(|sense| (sense.key, sense.code) != (0, 0));
        let carries = reply.status == GOOD || sense.as_ref().is_some_and(|sense| sense.key == 1);
        let place = shot.layout.retrieved_at;
        let (data, attributes) = match (shot.data_in_icv, &shot.keys) {
            _ if !carries => (Vec::new(), Vec::new()),
            (Some(at), Some(keys)) => {
                let block = &reply.data_in[at..];
                let count = |at: usize| number(&block[at..at + 8]) as usize;
                let (data, attributes) = (count(0), count(8));
                let data = reply.data_in[..data].to_vec();
                let attributes = reply.data_in[place..place + attributes].to_vec();
                let page = shot.page.and_then(|page| record(generation, page, &attributes));
                let (nonce, origin) = (&shot.nonce, &shot.origin);
                let whole = keys.data_in(nonce, origin, block, &data, &attributes, page.as_deref());
                assert_eq!(block[..whole.len()], whole, "data-in check value");
                (data, attributes)
            }
            _ => {
                let clip = |from: usize, length: usize| {
                    let from = from.min(reply.data_in.len());
                    reply.data_in[from..(from + length).min(reply.data_in.len())].to_vec()
                };
                (clip(0, shot.layout.data), clip(place, shot.layout.allocation))
            }
        };
        let _ = generation;
        VerifiedReply { generation, status: reply.status, sense, data, attributes, reply }
    }
}

/// A command as bytes, and what is needed to verify its reply.
#[derive(Default)]
pub(crate) struct SentCommand {
    pub(crate) generation: Generation,
    pub(crate) cdb: Vec<u8>,
    pub(crate) data_out: Vec<u8>,
    pub(crate) data_in_max: usize,
    pub(crate) nonce: [u8; 12],
    layout: BufferLayout,
    keys: Option<CredentialKeys>,
    data_in_icv: Option<usize>,
    origin: DataOrigin,
    page: Option<u32>,
}

/// Returns the application page that a request retrieves completely, if it retrieves nothing else.
fn whole_page(request: &Request) -> Option<u32> {
    let Get::List(names) = &request.get else { return None };
    let [(page, u32::MAX)] = names[..] else { return None };
    let of_applications = page < 0xC000_0000 && page % 0x3000_0000 >= 0x1_0000;
    (request.action == cdb::GET_ATTRIBUTES && of_applications).then_some(page)
}

/// Returns the input of a page digest, if the list is the whole page.
fn record(generation: Generation, page: u32, attributes: &[u8]) -> Option<Vec<u8>> {
    let head = generation.pick(4, 8);
    let list = (attributes.len() >= head).then(|| list::retrieved(generation, attributes))?;
    if head + list.full != attributes.len() || list.entries.iter().any(|((of, _), _)| *of != page) {
        return None;
    }
    let mut record = page.to_be_bytes().to_vec();
    for ((_, number), value) in &list.entries {
        record.extend(number.to_be_bytes());
        record.extend((value.len() as u32).to_be_bytes());
        record.extend(value);
    }
    Some(record)
}

/// Returns the range that the data of a request belong to, from its CDB.
fn origin(request: &Request, cdb: &[u8]) -> DataOrigin {
    let number = |at: usize| number(&cdb[at..at + 8]);
    let extent = [cdb::READ, cdb::WRITE, cdb::CREATE_AND_WRITE].contains(&request.action);
    let start = request.generation.pick(44, 40);
    let fits = number(start).checked_add(number(start - 8)).is_some();
    let start = (extent && request.continuation.is_empty() && fits).then(|| number(start));
    DataOrigin { inward: true, partition: request.partition, object: request.object, start }
}

/// Positions in both data buffers (t10-osd 1.7).
#[derive(Default)]
struct BufferLayout {
    set: Vec<u8>,
    set_at: usize,
    get: Vec<u8>,
    get_at: usize,
    /// Bytes of command data-in.
    data: usize,
    retrieved_at: usize,
    allocation: usize,
    /// End of the last part of data-in.
    data_in: usize,
}

impl BufferLayout {
    fn data_out(&self, continuation: &[u8], data: &[u8]) -> Vec<u8> {
        let mut out = [continuation, data].concat();
        for (at, bytes) in [(self.set_at, &self.set), (self.get_at, &self.get)] {
            if !bytes.is_empty() {
                out.resize(at, 0);
                out.extend_from_slice(bytes);
            }
        }
        out
    }
}

/// Writes the attribute parameters of a CDB and returns the positions of their parts.
fn layout(request: &Request, cdb: &mut [u8]) -> BufferLayout {
    let generation = request.generation;
    let unit = generation.unit();
    let mut layout =
        BufferLayout { data: request.data_in, data_in: request.data_in, ..BufferLayout::default() };
    let mut end = request.continuation.len() + request.data.len();
    let mut place = |bytes: &[u8]| {
        let at = end.next_multiple_of(unit);
        end = at + bytes.len();
        at
    };
    let mut word = |at: usize, value: u32| cdb[at..at + 4].copy_from_slice(&value.to_be_bytes());
    let retrieved_at = request.data_in.next_multiple_of(unit);
    if let Get::Page(page) = request.get {
        word(52, page);
        word(56, request.allocation as u32);
        word(60, generation.offset(retrieved_at));
        (layout.retrieved_at, layout.allocation) = (retrieved_at, request.allocation);
        layout.data_in = retrieved_at + request.allocation;
        if let Some((page, number, value)) = request.set.first() {
            layout.set.clone_from(value);
            layout.set_at = place(value);
            word(64, *page);
            word(68, *number);
            word(72, value.len() as u32);
            word(76, generation.offset(layout.set_at));
        }
        cdb[11] = cdb[11] & 0xCF | 0x20;
        return layout;
    }
    let set = match &request.raw_set {
        Some(bytes) => bytes.clone(),
        None if request.set.is_empty() => Vec::new(),
        None => list::values(generation, &request.set),
    };
    if !set.is_empty() {
        layout.set_at = place(&set);
        word(68, set.len() as u32);
        word(72, generation.offset(layout.set_at));
        layout.set = set;
    } else {
        word(72, UNUSED);
    }
    if let Get::List(names) = &request.get {
        let get = list::names(generation, names);
        layout.get_at = place(&get);
        word(52, get.len() as u32);
        word(56, generation.offset(layout.get_at));
        layout.get = get;
        word(60, request.allocation as u32);
        word(64, generation.offset(retrieved_at));
        (layout.retrieved_at, layout.allocation) = (retrieved_at, request.allocation);
        layout.data_in = retrieved_at + request.allocation;
    } else {
        word(56, UNUSED);
        word(64, UNUSED);
    }
    layout
}

/// Returns the permissions of a command, the first two bytes (t10-osd 4.2).
fn permissions(action: ServiceAction) -> u16 {
    const READ: u16 = 0x8000;
    const WRITE: u16 = 0x4000;
    const GET_ATTR: u16 = 0x2000;
    const SET_ATTR: u16 = 0x1000;
    const CREATE: u16 = 0x0800;
    const REMOVE: u16 = 0x0400;
    const OBJ_MGMT: u16 = 0x0200;
    const APPEND: u16 = 0x0100;
    const DEV_MGMT: u16 = 0x0080;
    const GLOBAL: u16 = 0x0040;
    const POL_SEC: u16 = 0x0020;
    const M_OBJECT: u16 = 0x0010;
    const QUERY: u16 = 0x0008;
    const GBL_REM: u16 = 0x0004;
    match action {
        cdb::LIST | cdb::READ | cdb::LIST_COLLECTION | cdb::READ_MAP | cdb::READ_MAPS_AND_COMPARE => READ,
        cdb::WRITE | cdb::PUNCH | cdb::CLEAR | cdb::REWRITE => WRITE,
        cdb::APPEND => APPEND,
        cdb::CREATE_AND_WRITE | cdb::COPY => CREATE | WRITE,
        cdb::CREATE
        | cdb::CREATE_PARTITION
        | cdb::CREATE_COLLECTION
        | cdb::CREATE_TRACKING
        | cdb::CREATE_CLONE
        | cdb::CREATE_SNAPSHOT => CREATE,
        cdb::REMOVE | cdb::REMOVE_COLLECTION => REMOVE,
        cdb::REMOVE_PARTITION => REMOVE | GBL_REM,
        cdb::FORMAT => OBJ_MGMT | GLOBAL,
        cdb::GET_ATTRIBUTES => GET_ATTR,
        cdb::SET_ATTRIBUTES => SET_ATTR,
        cdb::SET_KEY => POL_SEC,
        cdb::SET_MASTER_KEY => DEV_MGMT | POL_SEC,
        cdb::QUERY => QUERY | READ,
        cdb::REMOVE_MEMBERS => M_OBJECT | REMOVE,
        cdb::GET_MEMBERS => M_OBJECT | GET_ATTR,
        cdb::SET_MEMBERS => M_OBJECT | SET_ATTR,
        cdb::PERFORM_SCSI | cdb::PERFORM_TASK => DEV_MGMT,
        _ => OBJ_MGMT,
    }
}

// Frequent operations of tests.
impl Device {
    /// Creates a user object.
    #[track_caller]
    pub(crate) fn create(&mut self) -> u64 {
        let request = self.user(cdb::CREATE, 0).gets(&[(0xFFFF_FFFE, 4)]);
        self.run(request).good().number()
    }

    #[track_caller]
    pub(crate) fn write(&mut self, object: u64, at: u64, data: &[u8]) {
        let request = self.user(cdb::WRITE, object).sends(data).start(at);
        self.run(request).good();
    }

    /// Creates a user object with this content.
    #[track_caller]
    pub(crate) fn object(&mut self, data: &[u8]) -> u64 {
        let object = self.create();
        self.write(object, 0, data);
        object
    }

    #[track_caller]
    pub(crate) fn read(&mut self, object: u64, at: u64, length: usize) -> VerifiedReply {
        let request = self.user(cdb::READ, object).fetches(length).start(at);
        self.run(request)
    }

    /// Checks the whole content of an object.
    #[track_caller]
    pub(crate) fn holds(&mut self, object: u64, data: &[u8]) {
        assert_eq!(self.length(object), data.len() as u64, "logical length");
        if !data.is_empty() {
            let found = self.read(object, 0, data.len()).good().data;
            assert!(found == data, "contents: {:02x?} instead of {:02x?}", head(&found), head(data));
        }
    }

    #[track_caller]
    pub(crate) fn get(&mut self, object: u64, page: u32, attribute: u32) -> Vec<u8> {
        let request = self.user(cdb::GET_ATTRIBUTES, object).gets(&[(page, attribute)]);
        self.run(request).good().value()
    }

    #[track_caller]
    pub(crate) fn set(&mut self, object: u64, page: u32, attribute: u32, value: &[u8]) -> VerifiedReply {
        let request = self.user(cdb::SET_ATTRIBUTES, object).sets(page, attribute, value);
        self.run(request)
    }

    /// Reads an attribute of the test's partition.
    #[track_caller]
    pub(crate) fn of_partition(&mut self, page: u32, attribute: u32) -> Vec<u8> {
        let request = self.own(cdb::GET_ATTRIBUTES).gets(&[(page, attribute)]);
        self.run(request).good().value()
    }

    #[track_caller]
    pub(crate) fn of_root(&mut self, page: u32, attribute: u32) -> Vec<u8> {
        let request = self.request(cdb::GET_ATTRIBUTES).gets(&[(page, attribute)]);
        self.run(request).good().value()
    }

    #[track_caller]
    pub(crate) fn length(&mut self, object: u64) -> u64 {
        number(&self.get(object, 1, 0x82))
    }

    /// Returns the ids that LIST gives for the test's partition.
    #[track_caller]
    pub(crate) fn list(&mut self) -> Vec<u64> {
        let mut ids = Vec::new();
        let mut initial = 0;
        loop {
            let request = self.own(cdb::LIST).fetches(24 + 8 * 512).start(initial);
            let data = self.run(request).good().data;
            let end = 24 + (number(&data[..8]).saturating_sub(16) as usize).min(8 * 512);
            ids.extend(data[24..end.min(data.len())].chunks_exact(8).map(number));
            initial = number(&data[8..16]);
            if initial == 0 {
                return ids;
            }
        }
    }

    /// Removes the test's partition and its content, as far as they still exist.
    pub(crate) fn clean_up(&mut self) {
        let with_contents =
            Request::new(Generation::Osd2, cdb::REMOVE_PARTITION).at(cdb::PARTITION, self.partition, 0);
        if self.run(with_contents.specific(1)).status == GOOD {
            return;
        }
        let listing = self.own(cdb::LIST).fetches(24 + 8 * 512);
        let answer = self.run(listing);
        if answer.status == GOOD {
            let end = 24 + (number(&answer.data[..8]).saturating_sub(16) as usize).min(8 * 512);
            for object in answer.data[24..end.min(answer.data.len())].chunks_exact(8).map(number) {
                let request = self.user(cdb::REMOVE, object);
                let _ = self.run(request);
            }
        }
        let request = self.own(cdb::REMOVE_PARTITION);
        let _ = self.run(request);
    }
}

fn head(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(32)]
}

impl Device {
    /// Signs with a clock that is this many milliseconds off.
    pub(crate) fn shift_clock(&mut self, off_ms: i64) {
        self.clock_offset_ms = off_ms;
    }
}
