//! Objects that leave a device since it is fuller than the others.
//!
//! Contract: each step is one move, and makes devices more equally full by the figures of that moment; it comes to an end,
//! also though files are in use or devices tell late how full they are.

use std::time::Duration;

use sealstone_mds::placement::DevicePool;
use sealstone_mds::{BalancePass, Mds};
use tokio::time::Instant;

use super::{Housekeeper, PROBLEMS_MAX, Pace, Stays};

/// How long the devices' figures are good for, beside what is moved.
const FIGURES_GOOD_FOR: Duration = Duration::from_secs(30);
/// Passes in a row that may begin with as much to move as the one before: devices tell late what was removed.
const IDLE_MAX: usize = 2;

impl Housekeeper {
    /// Makes devices equally full, if that is to be: pass after pass, until one finds nothing that it can move.
    pub async fn rebalance(&self) {
        let (mut left_before, mut idle) = (u64::MAX, 0);
        loop {
            let Some(Some(now)) = self.heard(self.blocking(Mds::rebalancing)) else { return };
            if !self.leads() {
                return;
            }
            let mut pool = self.figures().await;
            let left = pool.surplus();
            idle = if left < left_before { 0 } else { idle + 1 };
            left_before = left;
            let Some((mut pass, moved)) = self.balance(now.began_ms, &mut pool).await else { return };
            pass.last = moved == 0 || idle >= IDLE_MAX;
            let now_ms = self.environment.now_ms();
            let noted = self.blocking(|mds| mds.rebalance_passed(now.began_ms, &pass, now_ms));
            if let Err(error) = noted {
                tracing::error!(%error, "how equally full devices are is not stored");
                return;
            }
            if pass.last {
                tracing::info!(left = pass.left_bytes, in_use = pass.in_use, problem = %pass.problem, "devices rebalanced");
                return;
            }
        }
    }

    /// The devices as full as they say now.
    async fn figures(&self) -> DevicePool {
        self.poll_devices().await;
        self.blocking(Mds::pool)
    }

    /// Looks through all files, and moves what helps; none if that ended early. Gives what is left, and how many moved.
    async fn balance(&self, began_ms: u64, pool: &mut DevicePool) -> Option<(BalancePass, u64)> {
        let mut pace = Pace { rate: 0, next: Instant::now() };
        let (mut pass, mut moved, mut problems) = (BalancePass::default(), 0, 0);
        let (mut after, mut told) = (None, Instant::now());
        loop {
            let page = self.heard(self.blocking(|mds| mds.next_reliefs(pool, after)))?;
            for item in page.items {
                if !self.leads() {
                    return None;
                }
                // Said anew meanwhile, or ended.
                let now = self.heard(self.blocking(Mds::rebalancing))??;
                if now.began_ms != began_ms {
                    return None;
                }
                pace.rate = now.rate;
                if problems >= PROBLEMS_MAX {
                    break;
                }
                if told.elapsed() > FIGURES_GOOD_FOR {
                    (*pool, told) = (self.figures().await, Instant::now());
                }
                let figures = &*pool;
                match self.carry(|mds, now_ms| mds.begin_relief(item.inode, figures, now_ms), &mut pace).await
                {
                    Ok(None) => {}
                    Ok(Some(carried)) => {
                        moved += 1;
                        pool.moved(carried.order.from.device, carried.order.to.device, carried.bytes);
                    }
                    Err(Stays::InUse) => pass.in_use += 1,
                    Err(Stays::Problem(problem)) => {
                        problems += 1;
                        if pass.problem.is_empty() {
                            pass.problem = problem;
                        }
                    }
                }
            }
            after = page.next;
            if after.is_none() || problems >= PROBLEMS_MAX {
                break;
            }
            tokio::task::yield_now().await;
        }
        pass.left_bytes = pool.surplus();
        Some((pass, moved))
    }
}
