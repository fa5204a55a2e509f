//! An LDAP server as the directory of users and groups.
//!
//! Does: one connection, one bind and two searches for each lookup.
//! Does not: check passwords; none is ever sent to the directory.
//! Contract: connections to other machines use TLS 1.3, with a server certificate signed by an
//! authority in the configured file, unless `insecure` is set. Each lookup has one deadline, each
//! answer a limit of bytes and entries. Referrals are not followed. After a lookup without an
//! answer the next ones fail at once for [`PAUSE`], so that a hanging directory delays one login at
//! a time.
//! Truth: RFC 4511, RFC 4513 (TLS, simple bind); docs/adr/0026-users-from-ldap.md.

mod account_status;
mod connection;
mod settings;

use core::time::Duration;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustls::ClientConfig;
use sealstone_ldap::{Attribute, Filter, Search, SearchEntry, SearchScope};
use sealstone_mds::{DIRECTORY_GROUPS_MAX, DirectoryEntry, DirectoryError, DirectoryLookup, UserDirectory};
use sealstone_mds_protocol::{GroupName, UserName};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use connection::{DirectoryConnection, SearchResult};
use settings::DirectoryAddress;
pub use settings::{DirectorySettings, DirectorySettingsError, TIMEOUT_MAX};

/// How long lookups fail at once after one without an answer.
pub(crate) const PAUSE: Duration = Duration::from_secs(2);
/// Maximum group entries in an answer; only those with valid group names count.
const GROUPS_FOUND_MAX: u32 = 4 * DIRECTORY_GROUPS_MAX as u32;
/// Limit of a user search: a second entry shows that the name is ambiguous.
const USERS_FOUND_MAX: u32 = 2;
const ENTRY_LABEL: &[u8] = b"sealstone directory entry v1";

/// An LDAP server as a directory.
pub struct LdapDirectory {
    address: DirectoryAddress,
    tls: Option<Arc<ClientConfig>>,
    bind: Option<(String, zeroize::Zeroizing<String>)>,
    users: EntrySearch,
    groups: EntrySearch,
    id_attribute_name: Attribute,
    /// Group attributes that list members by DN, and those that list them by user name.
    members: (Vec<Attribute>, Vec<Attribute>),
    timeout: Duration,
    /// Time of the last unanswered lookup; `None` after an answered one.
    unanswered_since: Mutex<Option<Instant>>,
}

/// Base and filter of a search, and the attribute with the entries' names.
struct EntrySearch {
    base: String,
    filter: Filter,
    name: Attribute,
}

impl EntrySearch {
    fn which(&self, condition: Filter) -> Filter {
        Filter::And(vec![self.filter.clone(), condition])
    }
}

impl UserDirectory for LdapDirectory {
    fn look_up(&self, user: &UserName) -> Result<DirectoryLookup, DirectoryError> {
        self.look_up_name(user.as_str())
    }
}

impl LdapDirectory {
    /// Looks up a name, even one that no account can have.
    ///
    /// # Errors
    /// See [`DirectoryError`].
    pub fn look_up_name(&self, name: &str) -> Result<DirectoryLookup, DirectoryError> {
        self.check_pause()?;
        // On a thread of its own: the caller may run inside a runtime, where another cannot be
        // started.
        let asked = std::thread::scope(|scope| scope.spawn(|| self.look_up_in_time(name)).join());
        let asked = asked.unwrap_or_else(|_| Err(DirectoryError::Unreachable("lookup thread failed".into())));
        let unanswered_since = asked.as_ref().is_err_and(DirectoryError::is_silence);
        *self.unanswered_since.lock() = unanswered_since.then(Instant::now);
        asked
    }

    /// Fails during [`PAUSE`] after an unanswered lookup; afterwards lets one lookup at a time
    /// through.
    fn check_pause(&self) -> Result<(), DirectoryError> {
        let mut unanswered_since = self.unanswered_since.lock();
        if unanswered_since.is_some_and(|since| since.elapsed() < PAUSE) {
            return Err(DirectoryError::Unreachable("no response a moment ago; retry in 2 s".into()));
        }
        if unanswered_since.is_some() {
            *unanswered_since = Some(Instant::now());
        }
        Ok(())
    }

    fn look_up_in_time(&self, name: &str) -> Result<DirectoryLookup, DirectoryError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| DirectoryError::Unreachable(error.to_string()))?;
        let asked = runtime.block_on(async { timeout(self.timeout, self.query(name)).await });
        // Does not wait for a pending DNS resolution.
        runtime.shutdown_background();
        asked.unwrap_or_else(|_| {
            let seconds = self.timeout.as_secs_f32();
            Err(DirectoryError::Unreachable(format!("no complete response within {seconds} s")))
        })
    }

    async fn query(&self, name: &str) -> Result<DirectoryLookup, DirectoryError> {
        let mut connection =
            DirectoryConnection::begin(&self.address, self.tls.as_ref(), self.timeout).await?;
        if let Some((dn, password)) = &self.bind {
            connection.bind(dn, password).await?;
        }
        let found = self.query_on(&mut connection, name).await;
        connection.end().await;
        found
    }

    async fn query_on(
        &self,
        connection: &mut DirectoryConnection,
        name: &str,
    ) -> Result<DirectoryLookup, DirectoryError> {
        let filter = self.users.which(Filter::equal(&self.users.name, name));
        let status_attributes = account_status::status_attributes();
        let attributes: Vec<&Attribute> = status_attributes.iter().chain([&self.id_attribute_name]).collect();
        let found = self.search(connection, &self.users, &filter, &attributes, USERS_FOUND_MAX).await?;
        let entry = match found {
            SearchResult { mut entries, more: false } if entries.len() <= 1 => match entries.pop() {
                Some(entry) => entry,
                None => return Ok(DirectoryLookup::NotFound),
            },
            _ => return Err(DirectoryError::Ambiguous),
        };
        if let Some(closing_attribute) = account_status::closing_attribute(&entry, since_1970()) {
            return Ok(DirectoryLookup::Closed(closing_attribute));
        }
        let entry_id = self.entry_id(&entry)?;
        let (by_dn, by_name) = &self.members;
        let by_dn = by_dn.iter().map(|attribute| Filter::equal(attribute, &entry.dn));
        let by_name = by_name.iter().map(|attribute| Filter::equal(attribute, name));
        let filter = self.groups.which(Filter::Or(by_dn.chain(by_name).collect()));
        let cn = &self.groups.name;
        let found = self.search(connection, &self.groups, &filter, &[cn], GROUPS_FOUND_MAX).await?;
        if found.more {
            return Err(DirectoryError::TooManyGroups);
        }
        // Groups whose names are invalid here (with blanks, for example) grant nothing.
        let names = found.entries.iter().flat_map(|entry| entry.values(cn));
        let names = names.filter_map(|name| GroupName::new(core::str::from_utf8(name).ok()?).ok());
        let mut groups: Vec<GroupName> = names.collect();
        groups.sort_unstable();
        groups.dedup();
        if groups.len() > DIRECTORY_GROUPS_MAX {
            return Err(DirectoryError::TooManyGroups);
        }
        Ok(DirectoryLookup::Entry(DirectoryEntry { entry: entry_id, groups }))
    }

    async fn search(
        &self,
        connection: &mut DirectoryConnection,
        which: &EntrySearch,
        filter: &Filter,
        attributes: &[&Attribute],
        entries_max: u32,
    ) -> Result<SearchResult, DirectoryError> {
        let time_s_max = u32::try_from(self.timeout.as_secs()).unwrap_or(u32::MAX).max(1);
        let (base, scope) = (&*which.base, SearchScope::Subtree);
        let search = Search { base, scope, filter, attributes, entries_max, time_s_max };
        connection.search(&search).await
    }

    /// Returns the digest of the value that identifies an entry even if it is renamed.
    fn entry_id(&self, entry: &SearchEntry) -> Result<[u8; 32], DirectoryError> {
        let mut values = entry.values(&self.id_attribute_name);
        match (values.next(), values.next()) {
            (Some(value), None) if !value.is_empty() => {
                Ok(Sha256::new().chain_update(ENTRY_LABEL).chain_update(value).finalize().into())
            }
            _ => Err(DirectoryError::NoLastingName(self.id_attribute_name.as_str().to_owned())),
        }
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
