//! Distribution of the times from writes to their verification.

/// Milliseconds of a bucket below [`FINE_MS`].
const STEP_MS: u64 = 16;
/// Time from which buckets double.
const FINE_MS: u64 = 1024;
const FINE_BUCKETS: usize = (FINE_MS / STEP_MS) as usize;
const BUCKETS: usize = FINE_BUCKETS + 54;

/// Counts of verified versions by the time that they waited.
#[derive(Clone, Debug)]
pub(crate) struct WindowHistogram {
    counts: [u64; BUCKETS],
    total: u64,
    max_ms: u64,
}

impl Default for WindowHistogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], total: 0, max_ms: 0 }
    }
}

impl WindowHistogram {
    fn bucket(ms: u64) -> usize {
        if ms < FINE_MS {
            usize::try_from(ms / STEP_MS).unwrap_or(0)
        } else {
            FINE_BUCKETS + (ms.ilog2() - FINE_MS.ilog2()) as usize
        }
    }

    /// Returns the longest time of a bucket.
    fn bound_ms(bucket: usize) -> u64 {
        match bucket.checked_sub(FINE_BUCKETS) {
            None => (bucket as u64 + 1) * STEP_MS - 1,
            Some(above) => (FINE_MS << above).checked_mul(2).map_or(u64::MAX, |bound| bound - 1),
        }
    }

    pub(crate) fn add(&mut self, ms: u64) {
        self.counts[Self::bucket(ms)] += 1;
        self.total += 1;
        self.max_ms = self.max_ms.max(ms);
    }

    pub(crate) const fn max_ms(&self) -> u64 {
        self.max_ms
    }

    /// Returns a time that 99 of 100 versions did not exceed, rounded up to a bucket.
    pub(crate) fn p99_ms(&self) -> u64 {
        let needed = self.total - self.total / 100;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= needed && needed > 0 {
                return Self::bound_ms(bucket).min(self.max_ms);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_ignores_one_slow_version_in_hundred() {
        let mut window = WindowHistogram::default();
        assert_eq!((window.p99_ms(), window.max_ms()), (0, 0));
        (0..990).for_each(|_| window.add(500));
        (0..10).for_each(|_| window.add(40_000));
        assert_eq!((window.p99_ms(), window.max_ms()), (511, 40_000));
        window.add(40_000);
        assert_eq!(window.p99_ms(), 40_000);
    }

    #[test]
    fn every_time_has_a_bucket_that_bounds_it() {
        for ms in [0, 1, 15, 16, 1023, 1024, 2047, 2048, 1 << 40, u64::MAX] {
            assert!(WindowHistogram::bound_ms(WindowHistogram::bucket(ms)) >= ms, "{ms}");
        }
    }
}
