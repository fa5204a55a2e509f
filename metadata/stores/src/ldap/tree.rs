//! Where what is, and how it looks there.
//!
//! Below the configured base is one entry `ou=sealstone-OWNER`; below it `ou=records` with an entry for each record, and
//! `ou=journal` with an entry for each of the latest commits. Standard classes and attributes are all it takes: `document` and
//! `audio` of RFC 4524 and RFC 2798's schema files, `extensibleObject` of RFC 4512.

use sealstone_ldap::{
    Attribute, Entry, Outcome, Scope, add_request, delete_request, rename_request, replace_request,
};
use sealstone_mds::store::describe;
use zeroize::Zeroizing;

use super::LdapStoreError;
use super::journal::record;
use super::link::{Link, Trouble};

/// What the entry of the store says of itself; another release that cannot read this one's says something else.
const FORMAT: &str = "Sealstone metadata, format 1";
const PREFIX: &str = "sealstone-";
/// Its owner as long as nobody wrote.
pub(super) const NOBODY: &str = "new";
/// Bytes of a key that an entry is named by; an LDAP server takes names of some 250 characters for sure. Entries of longer ones
/// are named by their digest.
pub(super) const NAMED_BYTES_MAX: usize = 100;
/// Characters of a text for people.
const TEXT_CHARS_MAX: usize = 512;

const CLASS: &str = "objectClass";
const ID: &str = "documentIdentifier";
const BYTES: &str = "audio";
const TEXT: &str = "description";
const TITLE: &str = "documentTitle";
const LOCATION: &str = "documentLocation";
const UNIT: &str = "ou";

const DOCUMENT: &[&[u8]] = &[b"document", b"extensibleObject"];

/// Names of entries below a base.
pub(super) struct Tree {
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

/// What the entry of a record is called.
fn record_id(key: &[u8]) -> String {
    match key.len() {
        0 => "empty".to_owned(),
        1..=NAMED_BYTES_MAX => hex(key),
        _ => format!("digest-{}", hex(blake3::hash(key).as_bytes())),
    }
}

fn first<'a>(entry: &'a Entry, attribute: &'a Attribute) -> Option<&'a [u8]> {
    entry.values(attribute).next()
}

/// What is done to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Add,
    Replace,
    Remove,
}

impl Tree {
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

    /// Why the server did not do something.
    pub(super) fn explain(&self, trouble: Trouble) -> LdapStoreError {
        let name = self.name.clone();
        match trouble.code() {
            Some(Outcome::INVALID_CREDENTIALS) => LdapStoreError::Password { name },
            Some(Outcome::INSUFFICIENT_ACCESS) => LdapStoreError::Rights { name },
            Some(
                Outcome::SIZE_LIMIT_EXCEEDED | Outcome::ADMIN_LIMIT_EXCEEDED | Outcome::TIME_LIMIT_EXCEEDED,
            ) => LdapStoreError::Limits { name },
            Some(Outcome::UNDEFINED_ATTRIBUTE | Outcome::INVALID_SYNTAX | Outcome::CLASS_VIOLATION) => {
                LdapStoreError::Schema { name, why: trouble.to_string() }
            }
            _ => LdapStoreError::Connect { name, source: Box::new(trouble) },
        }
    }

    /// Who owns the store; `None` if there is none.
    pub(super) fn find(&self, link: &mut Link) -> Result<Option<String>, LdapStoreError> {
        let (unit, text) = (attribute(UNIT)?, attribute(TEXT)?);
        let mut found: Option<String> = None;
        let mut wrong = None;
        let searched = link.search::<Trouble>(&self.base, Scope::Below, &[&unit, &text], |entry| {
            let named = first(&entry, &unit).and_then(|unit| core::str::from_utf8(unit).ok());
            let said = String::from_utf8_lossy(first(&entry, &text).unwrap_or_default()).into_owned();
            let dn = || String::from_utf8_lossy(&entry.dn).into_owned();
            match named.and_then(|named| named.strip_prefix(PREFIX)) {
                Some(owner) if said == FORMAT && found.is_none() => found = Some(owner.to_owned()),
                Some(_) if said == FORMAT => {
                    wrong = Some(LdapStoreError::Several { name: self.name.clone() })
                }
                Some(_) => wrong = Some(LdapStoreError::Version { dn: dn(), found: said }),
                None => wrong = Some(LdapStoreError::Others { dn: dn() }),
            }
            Ok(())
        });
        match (searched, wrong) {
            (Err(trouble), _) if trouble.code() == Some(Outcome::NO_SUCH_OBJECT) => {
                Err(LdapStoreError::NoBase { base: self.base.clone() })
            }
            (Err(trouble), _) => Err(self.explain(trouble)),
            (Ok(()), Some(wrong)) => Err(wrong),
            (Ok(()), None) => Ok(found),
        }
    }

    /// Makes an empty store, or what is missing of one that nobody wrote to.
    pub(super) fn make(&self, link: &mut Link) -> Result<(), Trouble> {
        let class: &[&[u8]] = &[b"organizationalUnit"];
        let own = format!("{PREFIX}{NOBODY}");
        let units = [
            (self.store(NOBODY), &*own, FORMAT),
            (self.journal(NOBODY), "journal", "Commits that are not all in the records yet"),
            (self.records(NOBODY), "records", "Sealstone's records; audio has their bytes"),
        ];
        for (dn, unit, text) in units {
            let attributes: [(&str, &[&[u8]]); 3] =
                [(CLASS, class), (UNIT, &[unit.as_bytes()]), (TEXT, &[text.as_bytes()])];
            match link.change("making the store", |id| add_request(id, &dn, &attributes)) {
                Err(trouble) if trouble.code() == Some(Outcome::EXISTS) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Gives the store to another owner: whoever uses its old name finds nothing from now on.
    pub(super) fn give(&self, link: &mut Link, from: &str, to: &str) -> Result<(), Trouble> {
        let rdn = format!("{UNIT}={PREFIX}{to}");
        link.change("taking the store over", |id| rename_request(id, &self.store(from), &rdn))
    }

    /// Adds a commit.
    pub(super) fn add_commit(
        &self,
        link: &mut Link,
        owner: &str,
        number: u64,
        bytes: &[u8],
    ) -> Result<(), Trouble> {
        let (dn, id) = (self.commit(owner, number), format!("{number:016x}"));
        let text = format!("commit {number}");
        let attributes: [(&str, &[&[u8]]); 4] =
            [(CLASS, DOCUMENT), (ID, &[id.as_bytes()]), (TEXT, &[text.as_bytes()]), (BYTES, &[bytes])];
        link.change("commit", |id| add_request(id, &dn, &attributes))
    }

    /// A request that changes the entry of a record.
    pub(super) fn record_request(
        &self,
        id: u32,
        owner: &str,
        kind: Kind,
        key: &[u8],
        value: &[u8],
    ) -> Zeroizing<Vec<u8>> {
        let name = record_id(key);
        let dn = format!("{ID}={name},{}", self.records(owner));
        if kind == Kind::Remove {
            return delete_request(id, &dn);
        }
        let bytes = record(key, value);
        let told = describe(key, value);
        let cut = |text: String| text.chars().take(TEXT_CHARS_MAX).collect::<String>();
        let (text, title, location) = (cut(told.text), told.title.map(cut), told.layout.map(cut));
        let title = title.as_ref().map(|title| title.as_bytes());
        let location = location.as_ref().map(|location| location.as_bytes());
        let mut attributes: Vec<(&str, &[&[u8]])> = Vec::new();
        let (bytes, text, called) = ([&bytes[..]], [text.as_bytes()], [name.as_bytes()]);
        if kind == Kind::Add {
            attributes.push((CLASS, DOCUMENT));
            attributes.push((ID, &called));
            attributes.push((TEXT, &text));
            attributes.push((BYTES, &bytes));
            // An attribute that an entry is added with has a value.
            attributes.extend(title.is_some().then_some((TITLE, title.as_slice())));
            attributes.extend(location.is_some().then_some((LOCATION, location.as_slice())));
            return add_request(id, &dn, &attributes);
        }
        attributes.push((TEXT, &text));
        attributes.push((BYTES, &bytes));
        // Without a value it goes: a file that had a layout may have none now.
        attributes.push((TITLE, title.as_slice()));
        attributes.push((LOCATION, location.as_slice()));
        replace_request(id, &dn, &attributes)
    }

    /// A request that removes a commit.
    pub(super) fn forget_request(&self, id: u32, owner: &str, number: u64) -> Zeroizing<Vec<u8>> {
        delete_request(id, &self.commit(owner, number))
    }

    /// Does something with the bytes of each record, in no order.
    pub(super) fn each_record(
        &self,
        link: &mut Link,
        owner: &str,
        mut work: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), Loading> {
        self.each(link, &self.records(owner), &mut work)
    }

    /// Does something with the bytes of each commit, in no order.
    pub(super) fn each_commit(
        &self,
        link: &mut Link,
        owner: &str,
        mut work: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), Loading> {
        self.each(link, &self.journal(owner), &mut work)
    }

    fn each(
        &self,
        link: &mut Link,
        base: &str,
        work: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), Loading> {
        let bytes = attribute(BYTES)?;
        let searched = link.search(base, Scope::Below, &[&bytes], |entry| {
            let read = first(&entry, &bytes).ok_or_else(|| format!("it has no {BYTES}")).and_then(&mut *work);
            read.map_err(|why| {
                let dn = String::from_utf8_lossy(&entry.dn).into_owned();
                Loading::Failed(LdapStoreError::Damaged { dn, why })
            })
        });
        match searched {
            Err(Loading::Trouble(trouble)) if trouble.code() == Some(Outcome::NO_SUCH_OBJECT) => {
                Err(Loading::Moved)
            }
            Err(Loading::Trouble(trouble)) if trouble.code().is_some() => {
                Err(Loading::Failed(self.explain(trouble)))
            }
            other => other,
        }
    }

    /// The number of the newest commit; none if there is none.
    pub(super) fn newest(&self, link: &mut Link, owner: &str) -> Result<Option<u64>, Loading> {
        let id = attribute(ID)?;
        let mut newest = None;
        link.search::<Trouble>(&self.journal(owner), Scope::Below, &[&id], |entry| {
            let text = first(&entry, &id).and_then(|id| core::str::from_utf8(id).ok());
            newest = newest.max(text.and_then(|text| u64::from_str_radix(text, 16).ok()));
            Ok(())
        })?;
        Ok(newest)
    }
}

/// Why records were not loaded.
#[derive(Debug)]
pub(super) enum Loading {
    Trouble(Trouble),
    /// The store got another owner meanwhile.
    Moved,
    Failed(LdapStoreError),
}

impl From<Trouble> for Loading {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

impl From<LdapStoreError> for Loading {
    fn from(error: LdapStoreError) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_name_of_its_own_that_a_server_takes() {
        assert_eq!(record_id(b"i\x00\xFF"), "6900ff");
        let named = record_id(&[7; NAMED_BYTES_MAX]);
        let longer = record_id(&[7; NAMED_BYTES_MAX + 1]);
        assert_eq!(named.len(), 2 * NAMED_BYTES_MAX);
        assert!(longer.starts_with("digest-") && longer.len() < 250);
        assert_ne!(longer, record_id(&[7; NAMED_BYTES_MAX + 2]));
        assert!(!record_id(b"").is_empty());
    }
}
