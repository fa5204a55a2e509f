//! Layout of the store in the directory tree.
//!
//! Below the configured base is one entry `ou=sealstone-OWNER`; below it `ou=records` with an entry
//! for each record, and `ou=journal` with an entry for each of the latest commits. Only standard
//! classes and attributes are used: `document` and `audio` of RFC 4524 and RFC 2798's schema files,
//! `extensibleObject` of RFC 4512.

use sealstone_ldap::{
    Attribute, LdapResult, SearchEntry, SearchScope, add_request, delete_request, rename_request,
    replace_request,
};
use sealstone_mds::store::describe;
use zeroize::Zeroizing;

use super::LdapStoreError;
use super::connection::{LdapConnection, RequestError};
use super::journal::record;

/// Format text in the entry of the store; incompatible releases use another one.
const FORMAT: &str = "Sealstone metadata, format 1";
const PREFIX: &str = "sealstone-";
/// Owner of a new store without writes.
pub(super) const NEW_OWNER: &str = "new";
/// Maximum bytes of a key that names its entry. LDAP servers accept names of about 250 characters.
/// Entries of longer keys are named by a digest.
pub(super) const NAMED_BYTES_MAX: usize = 100;
/// Maximum characters of a description.
const TEXT_CHARS_MAX: usize = 512;

const CLASS: &str = "objectClass";
const ID: &str = "documentIdentifier";
const BYTES: &str = "audio";
const TEXT: &str = "description";
const TITLE: &str = "documentTitle";
const LOCATION: &str = "documentLocation";
const UNIT: &str = "ou";

const DOCUMENT: &[&[u8]] = &[b"document", b"extensibleObject"];

/// DNs of the entries below a base.
pub(super) struct StoreTree {
    base: String,
    /// Host and base, for messages.
    name: String,
}

fn attribute(name: &str) -> Result<Attribute, LdapStoreError> {
    Attribute::new(name)
        .map_err(|error| LdapStoreError::Damaged { dn: name.to_owned(), why: error.to_string() })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the identifier of a record's entry.
fn record_id(key: &[u8]) -> String {
    match key.len() {
        0 => "empty".to_owned(),
        1..=NAMED_BYTES_MAX => hex(key),
        _ => format!("digest-{}", hex(blake3::hash(key).as_bytes())),
    }
}

fn first<'a>(entry: &'a SearchEntry, attribute: &'a Attribute) -> Option<&'a [u8]> {
    entry.values(attribute).next()
}

/// Kind of change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryChange {
    Add,
    Replace,
    Remove,
}

impl StoreTree {
    pub(super) fn new(base: &str, name: &str) -> Self {
        Self { base: base.to_owned(), name: name.to_owned() }
    }

    pub(super) fn store(&self, owner: &str) -> String {
        format!("{UNIT}={PREFIX}{owner},{}", self.base)
    }

    fn records(&self, owner: &str) -> String {
        format!("{UNIT}=records,{}", self.store(owner))
    }

    fn journal(&self, owner: &str) -> String {
        format!("{UNIT}=journal,{}", self.store(owner))
    }

    pub(super) fn commit(&self, owner: &str, number: u64) -> String {
        format!("{ID}={number:016x},{}", self.journal(owner))
    }

    /// Converts a failed request to an error that names the likely cause.
    pub(super) fn explain(&self, error: RequestError) -> LdapStoreError {
        let name = self.name.clone();
        match error.code() {
            Some(LdapResult::INVALID_CREDENTIALS) => LdapStoreError::Password { name },
            Some(LdapResult::INSUFFICIENT_ACCESS) => LdapStoreError::Rights { name },
            Some(
                LdapResult::SIZE_LIMIT_EXCEEDED
                | LdapResult::ADMIN_LIMIT_EXCEEDED
                | LdapResult::TIME_LIMIT_EXCEEDED,
            ) => LdapStoreError::Limits { name },
            Some(
                LdapResult::UNDEFINED_ATTRIBUTE | LdapResult::INVALID_SYNTAX | LdapResult::CLASS_VIOLATION,
            ) => LdapStoreError::Schema { name, why: error.to_string() },
            _ => LdapStoreError::Connect { name, source: Box::new(error) },
        }
    }

    /// Returns the owner of the store; `None` if there is no store.
    pub(super) fn find(&self, connection: &mut LdapConnection) -> Result<Option<String>, LdapStoreError> {
        let (unit, text) = (attribute(UNIT)?, attribute(TEXT)?);
        let mut found: Option<String> = None;
        let mut wrong = None;
        let searched =
            connection.search::<RequestError>(&self.base, SearchScope::Below, &[&unit, &text], |entry| {
                let named = first(&entry, &unit).and_then(|unit| core::str::from_utf8(unit).ok());
                let format = String::from_utf8_lossy(first(&entry, &text).unwrap_or_default()).into_owned();
                let dn = || String::from_utf8_lossy(&entry.dn).into_owned();
                match named.and_then(|named| named.strip_prefix(PREFIX)) {
                    Some(owner) if format == FORMAT && found.is_none() => found = Some(owner.to_owned()),
                    Some(_) if format == FORMAT => {
                        wrong = Some(LdapStoreError::Several { name: self.name.clone() })
                    }
                    Some(_) => wrong = Some(LdapStoreError::Version { dn: dn(), found: format }),
                    None => wrong = Some(LdapStoreError::Others { dn: dn() }),
                }
                Ok(())
            });
        match (searched, wrong) {
            (Err(error), _) if error.code() == Some(LdapResult::NO_SUCH_OBJECT) => {
                Err(LdapStoreError::NoBase { base: self.base.clone() })
            }
            (Err(error), _) => Err(self.explain(error)),
            (Ok(()), Some(wrong)) => Err(wrong),
            (Ok(()), None) => Ok(found),
        }
    }

    /// Creates an empty store, or the missing entries of one without writes.
    pub(super) fn make(&self, connection: &mut LdapConnection) -> Result<(), RequestError> {
        let class: &[&[u8]] = &[b"organizationalUnit"];
        let own = format!("{PREFIX}{NEW_OWNER}");
        let units = [
            (self.store(NEW_OWNER), &*own, FORMAT),
            (self.journal(NEW_OWNER), "journal", "Commits that are not all in the records yet"),
            (self.records(NEW_OWNER), "records", "Sealstone's records; audio has their bytes"),
        ];
        for (dn, unit, text) in units {
            let attributes: [(&str, &[&[u8]]); 3] =
                [(CLASS, class), (UNIT, &[unit.as_bytes()]), (TEXT, &[text.as_bytes()])];
            match connection.change("making the store", |id| add_request(id, &dn, &attributes)) {
                Err(error) if error.code() == Some(LdapResult::EXISTS) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Renames the store to another owner: requests with the old name find nothing from now on.
    pub(super) fn rename_to(
        &self,
        connection: &mut LdapConnection,
        from: &str,
        to: &str,
    ) -> Result<(), RequestError> {
        let rdn = format!("{UNIT}={PREFIX}{to}");
        connection.change("taking the store over", |id| rename_request(id, &self.store(from), &rdn))
    }

    /// Adds a commit.
    pub(super) fn add_commit(
        &self,
        connection: &mut LdapConnection,
        owner: &str,
        number: u64,
        bytes: &[u8],
    ) -> Result<(), RequestError> {
        let (dn, id) = (self.commit(owner, number), format!("{number:016x}"));
        let text = format!("commit {number}");
        let attributes: [(&str, &[&[u8]]); 4] =
            [(CLASS, DOCUMENT), (ID, &[id.as_bytes()]), (TEXT, &[text.as_bytes()]), (BYTES, &[bytes])];
        connection.change("commit", |id| add_request(id, &dn, &attributes))
    }

    /// Returns a request that changes the entry of a record.
    pub(super) fn record_request(
        &self,
        id: u32,
        owner: &str,
        kind: EntryChange,
        key: &[u8],
        value: &[u8],
    ) -> Zeroizing<Vec<u8>> {
        let name = record_id(key);
        let dn = format!("{ID}={name},{}", self.records(owner));
        if kind == EntryChange::Remove {
            return delete_request(id, &dn);
        }
        let bytes = record(key, value);
        let description = describe(key, value);
        let cut = |text: String| text.chars().take(TEXT_CHARS_MAX).collect::<String>();
        let (text, title, location) =
            (cut(description.text), description.title.map(cut), description.layout.map(cut));
        let title = title.as_ref().map(|title| title.as_bytes());
        let location = location.as_ref().map(|location| location.as_bytes());
        let mut attributes: Vec<(&str, &[&[u8]])> = Vec::new();
        let (bytes, text, called) = ([&bytes[..]], [text.as_bytes()], [name.as_bytes()]);
        if kind == EntryChange::Add {
            attributes.push((CLASS, DOCUMENT));
            attributes.push((ID, &called));
            attributes.push((TEXT, &text));
            attributes.push((BYTES, &bytes));
            // An attribute in an add request needs a value.
            attributes.extend(title.is_some().then_some((TITLE, title.as_slice())));
            attributes.extend(location.is_some().then_some((LOCATION, location.as_slice())));
            return add_request(id, &dn, &attributes);
        }
        attributes.push((TEXT, &text));
        attributes.push((BYTES, &bytes));
        // An attribute without a value is removed: a file may have lost its layout.
        attributes.push((TITLE, title.as_slice()));
        attributes.push((LOCATION, location.as_slice()));
        replace_request(id, &dn, &attributes)
    }

    /// Returns a request that removes a commit.
    pub(super) fn forget_request(&self, id: u32, owner: &str, number: u64) -> Zeroizing<Vec<u8>> {
        delete_request(id, &self.commit(owner, number))
    }

    /// Calls `work` with the bytes of each record, in no order.
    pub(super) fn each_record(
        &self,
        connection: &mut LdapConnection,
        owner: &str,
        mut work: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), LoadError> {
        self.each(connection, &self.records(owner), &mut work)
    }

    /// Calls `work` with the bytes of each commit, in no order.
    pub(super) fn each_commit(
        &self,
        connection: &mut LdapConnection,
        owner: &str,
        mut work: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), LoadError> {
        self.each(connection, &self.journal(owner), &mut work)
    }

    fn each(
        &self,
        connection: &mut LdapConnection,
        base: &str,
        work: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), LoadError> {
        let bytes = attribute(BYTES)?;
        let searched = connection.search(base, SearchScope::Below, &[&bytes], |entry| {
            let read = first(&entry, &bytes).ok_or_else(|| format!("it has no {BYTES}")).and_then(&mut *work);
            read.map_err(|why| {
                let dn = String::from_utf8_lossy(&entry.dn).into_owned();
                LoadError::Failed(LdapStoreError::Damaged { dn, why })
            })
        });
        match searched {
            Err(LoadError::RequestError(error)) if error.code() == Some(LdapResult::NO_SUCH_OBJECT) => {
                Err(LoadError::Moved)
            }
            Err(LoadError::RequestError(error)) if error.code().is_some() => {
                Err(LoadError::Failed(self.explain(error)))
            }
            other => other,
        }
    }

    /// Returns the number of the newest commit; `None` if there is none.
    pub(super) fn newest(
        &self,
        connection: &mut LdapConnection,
        owner: &str,
    ) -> Result<Option<u64>, LoadError> {
        let id = attribute(ID)?;
        let mut newest = None;
        connection.search::<RequestError>(&self.journal(owner), SearchScope::Below, &[&id], |entry| {
            let text = first(&entry, &id).and_then(|id| core::str::from_utf8(id).ok());
            newest = newest.max(text.and_then(|text| u64::from_str_radix(text, 16).ok()));
            Ok(())
        })?;
        Ok(newest)
    }
}

/// Reason why loading failed.
#[derive(Debug)]
pub(super) enum LoadError {
    RequestError(RequestError),
    /// The store got another owner meanwhile.
    Moved,
    Failed(LdapStoreError),
}

impl From<RequestError> for LoadError {
    fn from(error: RequestError) -> Self {
        Self::RequestError(error)
    }
}

impl From<LdapStoreError> for LoadError {
    fn from(error: LdapStoreError) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_unique_valid_name() {
        assert_eq!(record_id(b"i\x00\xFF"), "6900ff");
        let named = record_id(&[7; NAMED_BYTES_MAX]);
        let longer = record_id(&[7; NAMED_BYTES_MAX + 1]);
        assert_eq!(named.len(), 2 * NAMED_BYTES_MAX);
        assert!(longer.starts_with("digest-") && longer.len() < 250);
        assert_ne!(longer, record_id(&[7; NAMED_BYTES_MAX + 2]));
        assert!(!record_id(b"").is_empty());
    }
}
