//! Table of initiator ports that a block unit stores durably: unflushed writes, lost writes, use of
//! write-through.
//!
//! Does: keep a bounded number of rows, limited per initiator name, and their record.
//! Does not: access the store; `durable` does.
//! Contract: a flag that was set and not cleared is reported by [`PortTable::flags`], also when the
//! table is full.
//! Truth: docs/adr/0054-write-through-and-power-loss.md.

/// Rows of a unit. Beyond that a flag holds for every port of the unit.
pub(crate) const ROWS_MAX: usize = 128;
/// Rows with one iSCSI name. Beyond that one row holds for every port of that name.
pub(crate) const ROWS_PER_NAME_MAX: usize = 16;
/// Longest iSCSI name (RFC 7143 §4.2.7.1) and longest account in a row, in bytes. A longer account
/// uses the row of its name.
const TEXT_MAX: usize = 223;
/// Layout version of the record.
const VERSION: u8 = 1;

/// A SCSI initiator port as iSCSI identifies it (name and ISID, RFC 7143 §4.4.3.1), with its
/// authenticated account. Names are not authenticated, so state of a port must not pass to another
/// account with the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PortIdentity {
    pub(crate) name: String,
    pub(crate) isid: [u8; 6],
    /// CHAP name; `None` if CHAP was not required.
    pub(crate) account: Option<String>,
}

impl PortIdentity {
    /// Whether both have the same name and ISID, regardless of the account.
    pub(crate) fn is_named_as(&self, other: &Self) -> bool {
        self.name == other.name && self.isid == other.isid
    }
}

/// Set of flags of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortFlags(u8);

impl PortFlags {
    /// Writes were acknowledged and may not be durable.
    pub(crate) const DIRTY: Self = Self(0x01);
    /// Writes of an earlier start may be lost, and the initiator has not been informed.
    pub(crate) const LOST: Self = Self(0x02);
    /// The initiator was last informed that the write cache is off.
    pub(crate) const WRITE_THROUGH: Self = Self(0x04);
    /// Flags of every port if the record cannot be read.
    const UNKNOWN: Self = Self(0x06);

    pub(crate) const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// Row of one port, or of every port of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PortRow {
    name: String,
    /// ISID and account; `None` for every port of the name.
    exact: Option<([u8; 6], Option<String>)>,
    flags: PortFlags,
}

impl PortRow {
    fn of(port: &PortIdentity) -> Self {
        let fits = port.account.as_ref().is_none_or(|account| account.len() <= TEXT_MAX);
        let exact = fits.then(|| (port.isid, port.account.clone()));
        Self { name: port.name.clone(), exact, flags: PortFlags::default() }
    }

    fn covers(&self, port: &PortIdentity) -> bool {
        self.name == port.name
            && self
                .exact
                .as_ref()
                .is_none_or(|(isid, account)| *isid == port.isid && *account == port.account)
    }
}

/// Rows of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortTable {
    rows: Vec<PortRow>,
    /// Flags of every port of the unit.
    every: PortFlags,
    /// Identifies the boot of the machine during which ports became dirty.
    boot_id: [u8; 16],
}

impl PortTable {
    /// Returns the flags that hold for a port.
    pub(crate) fn flags(&self, port: &PortIdentity) -> PortFlags {
        self.rows.iter().filter(|row| row.covers(port)).fold(self.every, |all, row| all.with(row.flags))
    }

    /// Whether the flag holds for any port.
    pub(crate) fn any(&self, flag: PortFlags) -> bool {
        self.every.contains(flag) || self.rows.iter().any(|row| row.flags.contains(flag))
    }

    /// Sets a flag of a port. Returns whether the table changed.
    pub(crate) fn set(&mut self, port: &PortIdentity, flag: PortFlags) -> bool {
        if self.flags(port).contains(flag) {
            return false;
        }
        if let Some(row) = self.rows.iter_mut().find(|row| row.covers(port)) {
            row.flags = row.flags.with(flag);
            return true;
        }
        let mut row = PortRow { flags: flag, ..PortRow::of(port) };
        if row.name.len() > TEXT_MAX {
            self.every = self.every.with(flag);
            return true;
        }
        let of_name = self.rows.iter().filter(|other| other.name == row.name);
        if row.exact.is_none() || of_name.clone().count() >= ROWS_PER_NAME_MAX {
            row.flags = of_name.fold(row.flags, |all, other| all.with(other.flags));
            row.exact = None;
            self.rows.retain(|other| other.name != row.name);
        }
        if self.rows.len() >= ROWS_MAX {
            self.every = self.every.with(row.flags);
        } else {
            self.rows.push(row);
        }
        true
    }

    /// Sets a flag of every port of the unit. Returns whether the table changed.
    pub(crate) fn set_every(&mut self, flag: PortFlags) -> bool {
        let is_new = !self.every.contains(flag);
        self.every = self.every.with(flag);
        is_new
    }

    /// Clears a flag in the row of exactly this port. Returns whether the table changed.
    pub(crate) fn clear(&mut self, port: &PortIdentity, flag: PortFlags) -> bool {
        self.clear_where(flag, |row| row.exact.is_some() && row.covers(port))
    }

    /// Clears the flag of every row and of the whole unit. Returns whether the table changed.
    pub(crate) fn clear_all(&mut self, flag: PortFlags) -> bool {
        let every = self.every.contains(flag);
        self.every = self.every.without(flag);
        self.clear_where(flag, |_| true) || every
    }

    /// Clears the flag where it holds for several ports: rows of a whole name, and the whole unit.
    pub(crate) fn clear_shared(&mut self, flag: PortFlags) -> bool {
        let every = self.every.contains(flag);
        self.every = self.every.without(flag);
        self.clear_where(flag, |row| row.exact.is_none()) || every
    }

    /// Clears the dirty flag of rows without a port in `active`. Returns whether the table changed.
    pub(crate) fn clear_dirty_except(&mut self, active: &[&PortIdentity]) -> bool {
        let every = self.every.contains(PortFlags::DIRTY) && active.is_empty();
        if every {
            self.every = self.every.without(PortFlags::DIRTY);
        }
        self.clear_where(PortFlags::DIRTY, |row| !active.iter().any(|port| row.covers(port))) || every
    }

    /// Whether [`Self::clear_dirty_except`] would change anything.
    pub(crate) fn has_idle(&self, active: &[&PortIdentity]) -> bool {
        let is_dirty = |row: &&PortRow| row.flags.contains(PortFlags::DIRTY);
        (self.every.contains(PortFlags::DIRTY) && active.is_empty())
            || self.rows.iter().filter(is_dirty).any(|row| !active.iter().any(|port| row.covers(port)))
    }

    fn clear_where(&mut self, flag: PortFlags, matches: impl Fn(&PortRow) -> bool) -> bool {
        let mut changed = false;
        for row in self.rows.iter_mut().filter(|row| row.flags.contains(flag)) {
            if matches(row) {
                row.flags = row.flags.without(flag);
                changed = true;
            }
        }
        self.rows.retain(|row| row.flags != PortFlags::default());
        changed
    }

    /// Turns dirty flags into lost-writes flags. Returns whether the table changed.
    pub(crate) fn lose_dirty(&mut self) -> bool {
        let lose = |flags: &mut PortFlags| {
            let dirty = flags.contains(PortFlags::DIRTY);
            if dirty {
                *flags = flags.without(PortFlags::DIRTY).with(PortFlags::LOST);
            }
            dirty
        };
        let every = lose(&mut self.every);
        self.rows.iter_mut().fold(every, |changed, row| lose(&mut row.flags) || changed)
    }

    /// Returns the boot of the machine during which ports became dirty.
    pub(crate) const fn boot_id(&self) -> [u8; 16] {
        self.boot_id
    }

    pub(crate) const fn set_boot_id(&mut self, boot_id: [u8; 16]) {
        self.boot_id = boot_id;
    }

    /// Returns the record of the table, which is empty if no flag is set.
    pub(crate) fn encode(&self) -> Vec<u8> {
        if *self == (Self { boot_id: self.boot_id, ..Self::default() }) {
            return Vec::new();
        }
        let mut out = vec![VERSION, self.every.0];
        out.extend(self.boot_id);
        for row in &self.rows {
            out.push(row.flags.0);
            push_text(&mut out, &row.name);
            match &row.exact {
                None => out.push(0),
                Some((isid, account)) => {
                    out.push(if account.is_some() { 2 } else { 1 });
                    out.extend(isid);
                    if let Some(account) = account {
                        push_text(&mut out, account);
                    }
                }
            }
        }
        out
    }

    /// Reads a record. If it is unreadable, every port may have lost writes and uses write-through.
    pub(crate) fn decode(record: &[u8]) -> Self {
        Self::parse(record).unwrap_or_else(|| Self { every: PortFlags::UNKNOWN, ..Self::default() })
    }

    fn parse(record: &[u8]) -> Option<Self> {
        let [VERSION, every, rest @ ..] = record else {
            return record.is_empty().then(Self::default);
        };
        let (boot_id, mut rest) = rest.split_first_chunk::<16>()?;
        let mut rows = Vec::new();
        while let [flags, tail @ ..] = rest {
            let (name, tail) = take_text(tail)?;
            let (exact, tail) = match tail {
                [0, tail @ ..] => (None, tail),
                [kind @ (1 | 2), tail @ ..] => {
                    let (isid, tail) = tail.split_first_chunk::<6>()?;
                    let (account, tail) = match kind {
                        1 => (None, tail),
                        _ => take_text(tail).map(|(account, tail)| (Some(account), tail))?,
                    };
                    (Some((*isid, account)), tail)
                }
                _ => return None,
            };
            if rows.len() >= ROWS_MAX {
                return None;
            }
            rows.push(PortRow { name, exact, flags: PortFlags(*flags) });
            rest = tail;
        }
        Some(Self { rows, every: PortFlags(*every), boot_id: *boot_id })
    }
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    out.push(u8::try_from(text.len()).expect("at most TEXT_MAX"));
    out.extend_from_slice(text.as_bytes());
}

fn take_text(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((std::str::from_utf8(text).ok()?.to_owned(), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn port(name: &str, session: u16) -> PortIdentity {
        let [high, low] = session.to_be_bytes();
        PortIdentity { name: name.to_owned(), isid: [0, 0, 0, 0, high, low], account: None }
    }

    #[test]
    fn one_name_fills_its_share_alone() {
        let mut table = PortTable::default();
        for session in 0..1000 {
            assert!(table.set(&port("iqn.x:a", session), PortFlags::DIRTY) || session > 16);
        }
        assert!(table.set(&port("iqn.x:b", 0), PortFlags::DIRTY));
        assert!(table.flags(&port("iqn.x:a", 2000)).contains(PortFlags::DIRTY), "every port of the name");
        assert!(!table.flags(&port("iqn.x:b", 1)).contains(PortFlags::DIRTY));
        assert_eq!(table.rows.len(), 2);
    }

    #[test]
    fn full_table_holds_for_every_port() {
        let mut table = PortTable::default();
        for name in 0..=ROWS_MAX {
            table.set(&port(&format!("iqn.x:{name}"), 0), PortFlags::DIRTY);
        }
        assert_eq!(table.rows.len(), ROWS_MAX);
        assert!(table.flags(&port("iqn.x:other", 9)).contains(PortFlags::DIRTY));
        assert!(table.lose_dirty() && table.flags(&port("iqn.x:other", 9)).contains(PortFlags::LOST));
        assert!(table.clear_all(PortFlags::LOST) && table.encode().is_empty());
    }

    #[test]
    fn idle_rows_are_cleared_and_active_ones_stay() {
        let mut table = PortTable::default();
        let (busy, idle) = (port("iqn.x:a", 1), port("iqn.x:b", 1));
        table.set(&busy, PortFlags::DIRTY);
        table.set(&idle, PortFlags::DIRTY);
        table.set(&idle, PortFlags::WRITE_THROUGH);
        assert!(table.has_idle(&[&busy]) && table.clear_dirty_except(&[&busy]));
        assert!(!table.has_idle(&[&busy]) && table.flags(&busy).contains(PortFlags::DIRTY));
        assert_eq!(table.flags(&idle), PortFlags::WRITE_THROUGH);
    }

    #[test]
    fn unreadable_record_holds_for_every_port() {
        let table = PortTable::decode(&[9, 9, 9]);
        assert!(table.flags(&port("iqn.x:a", 1)).contains(PortFlags::LOST));
    }

    #[test]
    fn largest_record_fits_an_attribute() {
        let mut table = PortTable::default();
        for row in 0..ROWS_MAX {
            let name = format!("{row:0>width$}", width = TEXT_MAX);
            let port = PortIdentity { name, isid: [1; 6], account: Some("a".repeat(TEXT_MAX)) };
            table.set(&port, PortFlags::DIRTY);
        }
        assert!(table.encode().len() <= sealstone_store::MAX_ATTRIBUTE_LENGTH);
    }

    proptest! {
        #[test]
        fn records_read_back(
            ports in proptest::collection::vec(("[a-z.:]{0,40}", any::<[u8; 6]>(), any::<Option<String>>(), 1_u8..8), 0..40),
            boot_id: [u8; 16],
        ) {
            let mut table = PortTable { boot_id, ..PortTable::default() };
            for (name, isid, account, flags) in ports {
                table.set(&PortIdentity { name, isid, account }, PortFlags(flags));
            }
            let record = table.encode();
            let expected = if record.is_empty() { PortTable::default() } else { table };
            prop_assert_eq!(PortTable::decode(&record), expected);
        }

        #[test]
        fn arbitrary_records_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut versioned = vec![VERSION];
            versioned.extend(&bytes);
            let _ = (PortTable::decode(&bytes), PortTable::decode(&versioned));
        }
    }
}
