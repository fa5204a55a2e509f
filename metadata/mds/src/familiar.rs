//! Addresses that accounts have logged in from, so that the login throttle can prefer them.
//!
//! Does: remember them in the store, for existing accounts.
//! Does not: limit anything; `limiter` does.
//! Contract: only a successful login adds an address, so no attacker can add or evict one. An
//! account has at most [`FAMILIAR_MAX`] addresses for [`FAMILIAR_MS`] each; they are removed with
//! the account.

use sealstone_mds_protocol::{UserName, record};

use crate::error::Result;
use crate::keys;
use crate::limiter::{Familiarity, LoginSource};
use crate::records::{load, save};
use crate::server::Mds;
use crate::store::Wait;
use crate::store::{Snapshot, Transaction};

/// Maximum number of addresses of one account; a further one replaces the least recently used.
const FAMILIAR_MAX: usize = 64;
/// Time that an address is remembered after its last login, milliseconds: 180 days.
const FAMILIAR_MS: u64 = 180 * 24 * 3_600_000;
/// Shortest interval between stored logins from a known address, milliseconds: a day.
const NOTED_EVERY_MS: u64 = 24 * 3_600_000;

record! {
    /// An address that an account has logged in from.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FamiliarSource {
        /// The address as in [`LoginSource`].
        pub source: [u8; 8],
        /// Time of the last login, milliseconds since 1970.
        pub seen_ms: u64,
    }
}

record! {
    /// All addresses that an account has logged in from.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct FamiliarSources {
        /// Addresses in no order.
        pub sources: Vec<FamiliarSource>,
    }
}

fn load_all<S: Snapshot + ?Sized>(view: &S, user: &UserName) -> Result<FamiliarSources> {
    Ok(load(view, &keys::familiar(user))?.unwrap_or_default())
}

/// Returns whether an account is known to have logged in from a source or its network.
pub(crate) fn of<S: Snapshot + ?Sized>(
    view: &S,
    user: &UserName,
    source: LoginSource,
    now_ms: u64,
) -> Result<Familiarity> {
    let known = load_all(view, user)?;
    let valid = known.sources.iter().filter(|known| now_ms.saturating_sub(known.seen_ms) < FAMILIAR_MS);
    let mut found = Familiarity::Stranger;
    for known in valid {
        let known = LoginSource::from_bytes(known.source);
        if known == source {
            return Ok(Familiarity::Address);
        }
        if known.network() == source.network() {
            found = Familiarity::Network;
        }
    }
    Ok(found)
}

fn is_noted(known: &FamiliarSources, source: [u8; 8], now_ms: u64) -> bool {
    let mut same = known.sources.iter().filter(|known| known.source == source);
    same.any(|known| now_ms.saturating_sub(known.seen_ms) < NOTED_EVERY_MS)
}

fn note(tx: &mut dyn Transaction, user: &UserName, source: [u8; 8], now_ms: u64) -> Result<()> {
    if tx.get(&keys::user(user))?.is_none() {
        // The account was removed meanwhile.
        return Ok(());
    }
    let mut known = load_all(tx, user)?;
    known.sources.retain(|known| known.source != source);
    known.sources.sort_unstable_by_key(|known| known.seen_ms);
    let more = (known.sources.len() + 1).saturating_sub(FAMILIAR_MAX);
    known.sources.drain(..more);
    known.sources.push(FamiliarSource { source, seen_ms: now_ms });
    Ok(save(tx, &keys::familiar(user), &known)?)
}

impl Mds {
    /// Counts a login attempt.
    ///
    /// # Errors
    /// Milliseconds to wait.
    pub(crate) fn throttle(
        &self,
        user: &UserName,
        source: LoginSource,
        now_ms: u64,
    ) -> std::result::Result<(), u64> {
        // Checked before the store is read, so that a flood from one address costs the store
        // nothing.
        self.limiter.lock().attempt_from(source, now_ms)?;
        let view = self.store.snapshot();
        let known =
            view.map_err(crate::error::MdsError::from).and_then(|view| of(&*view, user, source, now_ms));
        // The next step reports a failed store.
        let familiarity = known.unwrap_or(Familiarity::Stranger);
        self.limiter.lock().attempt(user, source, familiarity, now_ms)
    }

    /// Records a successful login from this source.
    pub(crate) fn note_login(&self, user: &UserName, source: LoginSource, now_ms: u64) {
        self.limiter.lock().succeeded(user, source);
        let Some(bytes) = source.to_bytes() else { return };
        let noted = self.store.snapshot().map_err(crate::error::MdsError::from).and_then(|view| {
            if is_noted(&load_all(&*view, user)?, bytes, now_ms) {
                return Ok(());
            }
            drop(view);
            self.update_and(|tx| Ok((note(tx, user, bytes, now_ms)?, Wait::No)))
        });
        if let Err(error) = noted {
            tracing::warn!(%user, %error, "cannot store the address of a login; its next login is throttled as from an unknown address");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::world::{World, user};

    fn source(last: u16) -> LoginSource {
        std::net::IpAddr::from([10, 0, (last >> 8) as u8, last as u8]).into()
    }

    #[test]
    fn address_of_login_is_familiar_until_account_ends() {
        let world = World::with_accounts(0);
        let (alice, now) = (user("alice"), world.now);
        let of = |source, now| of(&*world.mds.store.snapshot().unwrap(), &alice, source, now).unwrap();
        assert_eq!(of(source(1), now), Familiarity::Stranger);
        world.mds.note_login(&alice, source(1), now);
        assert_eq!(of(source(1), now), Familiarity::Address);
        assert_eq!(of(source(2), now), Familiarity::Network);
        assert_eq!(of(source(0x0201), now), Familiarity::Stranger);
        assert_eq!(of(source(1), now + FAMILIAR_MS), Familiarity::Stranger);
        world.mds.update(|tx| crate::accounts::remove(tx, &alice, None)).unwrap();
        assert_eq!(of(source(1), now), Familiarity::Stranger);
        world.mds.note_login(&alice, source(1), now);
        assert_eq!(of(source(1), now), Familiarity::Stranger, "names that do not exist are not remembered");
    }

    #[test]
    fn oldest_address_makes_place() {
        let world = World::with_accounts(0);
        let alice = user("alice");
        for n in 0..=FAMILIAR_MAX as u16 {
            world.mds.note_login(&alice, source(n << 8), world.now + u64::from(n));
        }
        let of =
            |n: u16| of(&*world.mds.store.snapshot().unwrap(), &alice, source(n << 8), world.now).unwrap();
        assert_eq!((of(0), of(1)), (Familiarity::Stranger, Familiarity::Address));
    }
}
