//! CDBs built byte by byte (t10-osd 1.1 to 1.6).

/// OSD-1 (200-byte CDB) or OSD-2 (236-byte CDB).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Generation {
    /// OSD-1, T10/1355-D.
    Osd1,
    /// OSD-2, T10/1729-D.
    #[default]
    Osd2,
}

impl Generation {
    pub(crate) fn pick<T>(self, osd1: T, osd2: T) -> T {
        match self {
            Self::Osd1 => osd1,
            Self::Osd2 => osd2,
        }
    }

    pub(crate) fn cdb_len(self) -> usize {
        self.pick(200, 236)
    }

    pub(crate) fn capability_len(self) -> usize {
        self.pick(80, 104)
    }

    pub(crate) fn icv_len(self) -> usize {
        self.pick(20, 32)
    }

    /// Returns the alignment of offsets in bytes.
    pub(crate) fn unit(self) -> usize {
        self.pick(256, 8)
    }

    /// Encodes an offset field with the finest exponent.
    pub(crate) fn offset(self, at: usize) -> u32 {
        assert!(at.is_multiple_of(self.unit()));
        match self {
            Self::Osd1 => (at >> 8) as u32,
            Self::Osd2 if at == 0 => 0,
            Self::Osd2 => 0xB000_0000 | (at >> 3) as u32,
        }
    }
}

/// Offset of an unused part.
pub(crate) const UNUSED: u32 = u32::MAX;

/// Codes of a service action: OSD-1 (0 if it has none) and OSD-2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServiceAction(pub(crate) u16, pub(crate) u16);

macro_rules! actions {
    ($($name:ident = $osd1:literal, $osd2:literal;)*) => { $(
        #[allow(dead_code, reason = "the table is whole; some commands have no test yet")]
        pub(crate) const $name: ServiceAction = ServiceAction($osd1, $osd2);
    )* };
}

actions! {
    STRUCTURE_CHECK = 0, 0x8880;
    FORMAT = 0x8801, 0x8881;
    CREATE = 0x8802, 0x8882;
    LIST = 0x8803, 0x8883;
    PUNCH = 0, 0x8884;
    READ = 0x8805, 0x8885;
    WRITE = 0x8806, 0x8886;
    APPEND = 0x8807, 0x8887;
    FLUSH = 0x8808, 0x8888;
    CLEAR = 0, 0x8889;
    REMOVE = 0x880A, 0x888A;
    CREATE_PARTITION = 0x880B, 0x888B;
    REMOVE_PARTITION = 0x880C, 0x888C;
    GET_ATTRIBUTES = 0x880E, 0x888E;
    SET_ATTRIBUTES = 0x880F, 0x888F;
    CREATE_AND_WRITE = 0x8812, 0x8892;
    COPY = 0, 0x8893;
    CREATE_TRACKING = 0, 0x8894;
    CREATE_COLLECTION = 0x8815, 0x8895;
    REMOVE_COLLECTION = 0x8816, 0x8896;
    LIST_COLLECTION = 0x8817, 0x8897;
    SET_KEY = 0x8818, 0x8898;
    SET_MASTER_KEY = 0x8819, 0x8899;
    FLUSH_COLLECTION = 0x881A, 0x889A;
    FLUSH_PARTITION = 0x881B, 0x889B;
    FLUSH_OSD = 0x881C, 0x889C;
    QUERY = 0, 0x88A0;
    REMOVE_MEMBERS = 0, 0x88A1;
    GET_MEMBERS = 0, 0x88A2;
    SET_MEMBERS = 0, 0x88A3;
    CREATE_CLONE = 0, 0x88A8;
    CREATE_SNAPSHOT = 0, 0x88A9;
    DETACH_CLONE = 0, 0x88AA;
    REFRESH = 0, 0x88AB;
    RESTORE = 0, 0x88AC;
    READ_MAP = 0, 0x88B1;
    READ_MAPS_AND_COMPARE = 0, 0x88B2;
    REWRITE = 0, 0x8F90;
    PERFORM_SCSI = 0x8F7E, 0x8F7C;
    PERFORM_TASK = 0x8F7F, 0x8F7D;
}

/// Attributes that a command retrieves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Get {
    Nothing,
    List(Vec<(u32, u32)>),
    Page(u32),
}

/// A command of a test; [`crate::device::Device::run`] lays out its buffers, and signs it if
/// needed.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) generation: Generation,
    pub(crate) action: ServiceAction,
    pub(crate) cdb: Vec<u8>,
    pub(crate) partition: u64,
    pub(crate) object: u64,
    /// Object type of the capability.
    pub(crate) kind: u8,
    pub(crate) data: Vec<u8>,
    /// Maximum bytes of command data-in.
    pub(crate) data_in: usize,
    pub(crate) set: Vec<(u32, u32, Vec<u8>)>,
    /// A whole set list as bytes, instead of `set`.
    pub(crate) raw_set: Option<Vec<u8>>,
    pub(crate) get: Get,
    pub(crate) allocation: usize,
    pub(crate) continuation: Vec<u8>,
    /// Changes of the CDB after its layout, before it is signed.
    pub(crate) patches: Vec<(usize, Vec<u8>)>,
    /// Type and id of another object of the same partition, and the first two permission bytes of a
    /// second capability for it.
    pub(crate) further: Option<(u8, u64, u16)>,
    /// Additional permissions of the capability, first two bytes.
    pub(crate) permissions: u16,
    /// Changes of the capability before it is signed.
    pub(crate) capability_patches: Vec<(usize, Vec<u8>)>,
}

pub(crate) const ROOT: u8 = 0x01;
pub(crate) const PARTITION: u8 = 0x02;
pub(crate) const COLLECTION: u8 = 0x40;
pub(crate) const USER: u8 = 0x80;

impl Request {
    pub(crate) fn new(generation: Generation, action: ServiceAction) -> Self {
        let code = generation.pick(action.0, action.1);
        let mut cdb = vec![0; generation.cdb_len()];
        cdb[0] = 0x7F;
        cdb[7] = (generation.cdb_len() - 8) as u8;
        cdb[8..10].copy_from_slice(&code.to_be_bytes());
        cdb[11] = 0x30;
        Self {
            generation,
            action,
            cdb,
            partition: 0,
            object: 0,
            kind: ROOT,
            data: Vec::new(),
            data_in: 0,
            set: Vec::new(),
            raw_set: None,
            get: Get::Nothing,
            allocation: 4096,
            continuation: Vec::new(),
            patches: Vec::new(),
            further: None,
            permissions: 0,
            capability_patches: Vec::new(),
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.cdb[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn at(mut self, kind: u8, partition: u64, object: u64) -> Self {
        (self.kind, self.partition, self.object) = (kind, partition, object);
        self.put(16, &partition.to_be_bytes());
        self.put(24, &object.to_be_bytes());
        self
    }

    pub(crate) fn user(self, partition: u64, object: u64) -> Self {
        self.at(USER, partition, object)
    }

    /// Returns the byte of the LENGTH field.
    pub(crate) fn length_at(&self) -> usize {
        self.generation.pick(36, 32)
    }

    /// Returns the byte of the STARTING BYTE field.
    pub(crate) fn start_at(&self) -> usize {
        self.generation.pick(44, 40)
    }

    pub(crate) fn length(mut self, length: u64) -> Self {
        let at = self.length_at();
        self.put(at, &length.to_be_bytes());
        self
    }

    pub(crate) fn start(mut self, start: u64) -> Self {
        let at = self.start_at();
        self.put(at, &start.to_be_bytes());
        self
    }

    pub(crate) fn options(mut self, bits: u8) -> Self {
        self.cdb[10] |= bits;
        self
    }

    pub(crate) fn specific(mut self, bits: u8) -> Self {
        self.cdb[11] |= bits;
        self
    }

    pub(crate) fn timestamps(mut self, byte: u8) -> Self {
        self.cdb[12] = byte;
        self
    }

    pub(crate) fn with(mut self, at: usize, bytes: &[u8]) -> Self {
        self.put(at, bytes);
        self
    }

    /// Sets data-out and LENGTH.
    pub(crate) fn sends(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self.length(data.len() as u64)
    }

    /// Sets the size of data-in and LENGTH.
    pub(crate) fn fetches(mut self, length: usize) -> Self {
        self.data_in = length;
        self.length(length as u64)
    }

    pub(crate) fn gets(mut self, attributes: &[(u32, u32)]) -> Self {
        self.get = Get::List(attributes.to_vec());
        self
    }

    pub(crate) fn gets_page(mut self, page: u32) -> Self {
        self.get = Get::Page(page);
        self
    }

    pub(crate) fn allocates(mut self, bytes: usize) -> Self {
        self.allocation = bytes;
        self
    }

    pub(crate) fn sets(mut self, page: u32, number: u32, value: &[u8]) -> Self {
        self.set.push((page, number, value.to_vec()));
        self
    }

    pub(crate) fn continues(mut self, segment: Vec<u8>) -> Self {
        self.continuation = segment;
        self
    }

    pub(crate) fn patched(mut self, at: usize, bytes: &[u8]) -> Self {
        self.patches.push((at, bytes.to_vec()));
        self
    }
}

/// Builds a continuation segment from descriptors; the check value is set when it is signed.
pub(crate) fn segment(action: ServiceAction, descriptors: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut out = vec![0; 40];
    out[0] = 1;
    out[2..4].copy_from_slice(&action.1.to_be_bytes());
    descriptors.iter().for_each(|(kind, data)| out.extend(descriptor(*kind, data)));
    out
}

/// Builds one descriptor of a segment.
pub(crate) fn descriptor(kind: u16, data: &[u8]) -> Vec<u8> {
    let pad = (8 - data.len() % 8) % 8;
    let mut out = [kind.to_be_bytes(), [0, pad as u8]].concat();
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
    out.resize(out.len() + pad, 0);
    out
}

/// Builds a scatter/gather list of offsets and lengths.
pub(crate) fn pieces(list: &[(u64, u64)]) -> Vec<u8> {
    list.iter().flat_map(|(at, length)| [at.to_be_bytes(), length.to_be_bytes()].concat()).collect()
}
