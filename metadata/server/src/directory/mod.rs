//! An LDAP server as the directory of users and groups.
//!
//! Does: one connection, one bind, two searches for each question. Does not: check passwords; none ever goes there.
//! Contract: beyond this machine only inside TLS 1.3, the server's certificate by the authority in the configured file,
//! unless the operator said otherwise; every question has one deadline, every answer a number of bytes and entries;
//! referrals are not followed. After a question without an answer the next ones fail at once for [`PAUSE`], so that a
//! directory that hangs holds up one login at a time.
//! Truth: RFC 4511, RFC 4513 (TLS, simple bind); docs/adr/0026-users-from-ldap.md.

mod closed;
mod conversation;
mod settings;

use core::time::Duration;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustls::ClientConfig;
use sealstone_ldap::{Attribute, Entry, Filter, Scope, Search};
use sealstone_mds::{DIRECTORY_GROUPS_MAX, Directory, DirectoryEntry, DirectoryError, DirectoryLookup};
use sealstone_mds_protocol::{GroupName, UserName};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use conversation::{Conversation, Searched};
use settings::Address;
pub use settings::{DirectorySettings, DirectorySettingsError, TIMEOUT_MAX};

/// After a question without an answer nobody else asks for so long.
pub(crate) const PAUSE: Duration = Duration::from_secs(2);
/// Entries of groups that an answer may have; of them those with names of ours count.
const GROUPS_FOUND_MAX: u32 = 4 * DIRECTORY_GROUPS_MAX as u32;
/// An entry, and one more, which says that there is not exactly one.
const USERS_FOUND_MAX: u32 = 2;
const ENTRY_LABEL: &[u8] = b"sealstone directory entry v1";

/// An LDAP server.
pub struct LdapDirectory {
    address: Address,
    tls: Option<Arc<ClientConfig>>,
    bind: Option<(String, zeroize::Zeroizing<String>)>,
    users: Searching,
    groups: Searching,
    lasting_name: Attribute,
    /// Attributes of groups with names (DNs) of entries, and with names of users.
    members: (Vec<Attribute>, Vec<Attribute>),
    timeout: Duration,
    /// When a question had no answer; none since one had.
    silent: Mutex<Option<Instant>>,
}

/// Where entries are looked for, which count, and which attribute has their names.
struct Searching {
    base: String,
    filter: Filter,
    name: Attribute,
}

impl Searching {
    fn which(&self, condition: Filter) -> Filter {
        Filter::And(vec![self.filter.clone(), condition])
    }
}

impl Directory for LdapDirectory {
    fn look_up(&self, user: &UserName) -> Result<DirectoryLookup, DirectoryError> {
        self.look_up_name(user.as_str())
    }
}

impl LdapDirectory {
    /// Whoever has this name in the directory, be it one that no account can have.
    ///
    /// # Errors
    /// See [`DirectoryError`].
    pub fn look_up_name(&self, name: &str) -> Result<DirectoryLookup, DirectoryError> {
        self.enter()?;
        // On a thread of its own: the caller's may belong to a runtime, in which another must not be started.
        let asked = std::thread::scope(|scope| scope.spawn(|| self.ask_in_time(name)).join());
        let asked = asked.unwrap_or_else(|_| Err(DirectoryError::Unreachable("asking failed".into())));
        let silent = asked.as_ref().is_err_and(DirectoryError::is_silence);
        *self.silent.lock() = silent.then(Instant::now);
        asked
    }

    /// Only one at a time asks a directory that was silent, and not at once.
    fn enter(&self) -> Result<(), DirectoryError> {
        let mut silent = self.silent.lock();
        if silent.is_some_and(|since| since.elapsed() < PAUSE) {
            return Err(DirectoryError::Unreachable(
                "it did not a moment ago, and was not asked again".into(),
            ));
        }
        if silent.is_some() {
            *silent = Some(Instant::now());
        }
        Ok(())
    }

    fn ask_in_time(&self, name: &str) -> Result<DirectoryLookup, DirectoryError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| DirectoryError::Unreachable(error.to_string()))?;
        let asked = runtime.block_on(async { timeout(self.timeout, self.ask(name)).await });
        // A name that is still being resolved is not waited for.
        runtime.shutdown_background();
        asked.unwrap_or_else(|_| {
            let seconds = self.timeout.as_secs_f32();
            Err(DirectoryError::Unreachable(format!("no whole answer within {seconds} s")))
        })
    }

    async fn ask(&self, name: &str) -> Result<DirectoryLookup, DirectoryError> {
        let mut conversation = Conversation::begin(&self.address, self.tls.as_ref(), self.timeout).await?;
        if let Some((dn, password)) = &self.bind {
            conversation.bind(dn, password).await?;
        }
        let found = self.ask_in(&mut conversation, name).await;
        conversation.end().await;
        found
    }

    async fn ask_in(
        &self,
        conversation: &mut Conversation,
        name: &str,
    ) -> Result<DirectoryLookup, DirectoryError> {
        let filter = self.users.which(Filter::equal(&self.users.name, name));
        let marks = closed::marks();
        let attributes: Vec<&Attribute> = marks.iter().chain([&self.lasting_name]).collect();
        let found = self.search(conversation, &self.users, &filter, &attributes, USERS_FOUND_MAX).await?;
        let entry = match found {
            Searched { mut entries, more: false } if entries.len() <= 1 => match entries.pop() {
                Some(entry) => entry,
                None => return Ok(DirectoryLookup::NotFound),
            },
            _ => return Err(DirectoryError::Ambiguous),
        };
        if let Some(mark) = closed::mark(&entry, since_1970()) {
            return Ok(DirectoryLookup::Closed(mark));
        }
        let lasting = self.lasting(&entry)?;
        let (by_dn, by_name) = &self.members;
        let by_dn = by_dn.iter().map(|attribute| Filter::equal(attribute, &entry.dn));
        let by_name = by_name.iter().map(|attribute| Filter::equal(attribute, name));
        let filter = self.groups.which(Filter::Or(by_dn.chain(by_name).collect()));
        let cn = &self.groups.name;
        let found = self.search(conversation, &self.groups, &filter, &[cn], GROUPS_FOUND_MAX).await?;
        if found.more {
            return Err(DirectoryError::TooManyGroups);
        }
        // Groups whose names could be none of ours (with blanks, say) give no right here.
        let names = found.entries.iter().flat_map(|entry| entry.values(cn));
        let names = names.filter_map(|name| GroupName::new(core::str::from_utf8(name).ok()?).ok());
        let mut groups: Vec<GroupName> = names.collect();
        groups.sort_unstable();
        groups.dedup();
        if groups.len() > DIRECTORY_GROUPS_MAX {
            return Err(DirectoryError::TooManyGroups);
        }
        Ok(DirectoryLookup::Entry(DirectoryEntry { entry: lasting, groups }))
    }

    async fn search(
        &self,
        conversation: &mut Conversation,
        which: &Searching,
        filter: &Filter,
        attributes: &[&Attribute],
        entries_max: u32,
    ) -> Result<Searched, DirectoryError> {
        let time_s_max = u32::try_from(self.timeout.as_secs()).unwrap_or(u32::MAX).max(1);
        let (base, scope) = (&*which.base, Scope::Subtree);
        let search = Search { base, scope, filter, attributes, entries_max, time_s_max };
        conversation.search(&search).await
    }

    /// The digest of the name by which an entry is known again, whatever it is called.
    fn lasting(&self, entry: &Entry) -> Result<[u8; 32], DirectoryError> {
        let mut values = entry.values(&self.lasting_name);
        match (values.next(), values.next()) {
            (Some(value), None) if !value.is_empty() => {
                Ok(Sha256::new().chain_update(ENTRY_LABEL).chain_update(value).finalize().into())
            }
            _ => Err(DirectoryError::NoLastingName(self.lasting_name.as_str().to_owned())),
        }
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
