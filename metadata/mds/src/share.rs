//! Shares of a bounded table: whether a user may take another entry.
//!
//! Contract: a user may take entries only while the user has no more than are free. One user has at
//! most half of a table, and `n` greedy users leave at least `1 / 2^n` of it free. O(1), without
//! knowledge of the other users.
//! Truth: the dynamic threshold of Choudhury and Hahne for shared-memory switches, with factor 1;
//! docs/reference/limits.md.

/// Whether a user with `own` of the `used` entries may take `more` in a table of `max`.
pub(crate) const fn is_free(own: usize, used: usize, more: usize, max: usize) -> bool {
    own.saturating_add(more) <= max.saturating_sub(used)
}

/// The largest number of entries for each user so that all together have `max` at most.
pub(crate) fn equal_cap(counts: impl Iterator<Item = usize> + Clone, max: usize) -> usize {
    let (mut fits, mut over) = (0, counts.clone().max().unwrap_or_default() + 1);
    while over - fits > 1 {
        let cap = fits + (over - fits) / 2;
        match counts.clone().map(|count| count.min(cap)).sum::<usize>() <= max {
            true => fits = cap,
            false => over = cap,
        }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 1_024;

    #[test]
    fn greedy_users_leave_half_of_the_free_entries() {
        let mut used = 0;
        for users in 1..=9 {
            let mut own = 0;
            while is_free(own, used, 1, MAX) {
                own += 1;
                used += 1;
            }
            assert_eq!(MAX - used, MAX >> users);
        }
        assert!(is_free(0, used, 1, MAX));
        assert!(!is_free(0, MAX, 1, MAX) && !is_free(usize::MAX, 0, usize::MAX, MAX));
    }

    #[test]
    fn users_at_the_same_time_get_equal_shares() {
        let (mut owned, mut used) = ([0; 3], 0);
        for at in 0..2 * MAX {
            if is_free(owned[at % 3], used, 1, MAX) {
                owned[at % 3] += 1;
                used += 1;
            }
        }
        assert!(owned.iter().all(|own| (MAX / 4 - 1..=MAX / 4 + 1).contains(own)), "{owned:?}");
    }

    #[test]
    fn equal_cap_takes_from_largest_users_only() {
        assert_eq!(equal_cap([900, 10, 5].into_iter(), 100), 85);
        assert_eq!(equal_cap([900, 900, 5].into_iter(), 105), 50);
        assert_eq!(equal_cap([3, 2].into_iter(), 100), 3);
        assert_eq!(equal_cap([7; 10].into_iter(), 5), 0);
        assert_eq!(equal_cap([].into_iter(), 5), 0);
    }
}
