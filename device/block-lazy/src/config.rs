//! Parameters of a lazily protected unit.

use std::fmt;
use std::sync::Arc;

use sealstone_block_protection::{ProtectedBlock, ProtectionLevel, ProtectionProfile};
use sealstone_osd::ObjectId;
use zeroize::Zeroizing;

/// Milliseconds after which the `paper` profile verifies a version itself.
const PAPER_AGE_MS: u64 = 30_000;
/// Milliseconds within which `paper+safe` and `modern` verify a version. Half of the promised
/// second remains for the call interval of [`crate::LazyVolume::verify_due`] and its work.
const SAFE_AGE_MS: u64 = 500;
/// Versions of one block that are kept without verification.
const VERSIONS_MAX: usize = 8;
/// Versions of one block above which garbage collection verifies it.
const VERSIONS_DUE: usize = 4;
/// Smallest default capacity of a version log, in bytes: one write of 16 MiB in blocks of 512 bytes
/// takes 19.3 MiB with its sealed keys.
const LOG_MIN: u64 = 20 << 20;
/// Pages of keys that are cached: 64 MiB.
const CACHED_PAGES: usize = 16 * 1024;

/// Fills a slice with unpredictable bytes.
pub type RandomSource = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// Secret under which keys of blocks are sealed at rest.
pub type PageSecret = Zeroizing<[u8; 32]>;

/// Number of a writer, chosen by the caller: a nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriterId(pub u64);

/// Limits of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LazyLimits {
    /// Capacity of the version log in bytes.
    pub log_bytes_max: u64,
    /// Bytes of the version log above which garbage collection verifies everything.
    pub log_bytes_due: u64,
    /// Unverified versions of one block. The next write verifies the block first.
    pub versions_max: usize,
    /// Versions of one block above which garbage collection verifies it.
    pub versions_due: usize,
    /// Age in milliseconds from which garbage collection verifies a version.
    pub age_due_ms: u64,
    /// Pages of keys in memory, of 4 KiB each.
    pub cached_pages: usize,
}

impl LazyLimits {
    /// Returns the default limits of a unit: the log may take a quarter of its size.
    #[must_use]
    pub fn for_unit(bytes: u64, profile: ProtectionProfile) -> Self {
        let age_due_ms = match profile {
            ProtectionProfile::Paper | ProtectionProfile::PaperTaskTag => PAPER_AGE_MS,
            ProtectionProfile::PaperSafe | ProtectionProfile::Modern => SAFE_AGE_MS,
        };
        let log_bytes_max = (bytes / 4).max(LOG_MIN);
        Self {
            log_bytes_max,
            log_bytes_due: (bytes / 10).clamp(LOG_MIN / 8, log_bytes_max),
            versions_max: VERSIONS_MAX,
            versions_due: VERSIONS_DUE,
            age_due_ms,
            cached_pages: CACHED_PAGES,
        }
    }
}

/// Description of a lazily protected unit.
#[derive(Clone)]
pub struct LazyUnit {
    /// Logical unit number, which names the objects of keys and versions.
    pub lun: u16,
    /// The existing object of the blocks, as long as the unit.
    pub data: ObjectId,
    /// Serial number. Sealed keys open only in the unit with the same one.
    pub serial: [u8; 16],
    /// Length of a block.
    pub block: ProtectedBlock,
    /// Number of blocks.
    pub blocks: u64,
    /// Level of protection.
    pub level: ProtectionLevel,
    /// Profile of the level.
    pub profile: ProtectionProfile,
    /// Limits of versions and caches.
    pub limits: LazyLimits,
    /// Secret of keys at rest; present exactly with `paper+safe` and `modern`.
    pub secret: Option<PageSecret>,
    /// Random bytes for sealing.
    pub random: RandomSource,
}

impl fmt::Debug for LazyUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyUnit")
            .field("lun", &self.lun)
            .field("level", &self.level)
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}
