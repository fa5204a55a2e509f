//! Moves objects from devices that are fuller than the others.
//!
//! Contract: each move makes devices more equally full by the current figures. It ends even if
//! files are in use or devices report freed space late.

use std::time::Duration;

use sealstone_mds::placement::DevicePool;
use sealstone_mds::{BalancePass, Mds};
use tokio::time::Instant;

use super::{Housekeeper, MoveError, PROBLEMS_MAX, RateLimit};

/// Age after which capacity figures are read again.
const CAPACITY_AGE_MAX: Duration = Duration::from_secs(30);
/// Maximum consecutive passes that start with no less to move than the one before: devices report
/// freed space late.
const IDLE_MAX: usize = 2;

impl Housekeeper {
    /// Rebalances devices, if requested: runs passes until one finds nothing to move.
    pub async fn rebalance(&self) {
        let (mut left_before, mut idle) = (u64::MAX, 0);
        loop {
            let Some(Some(now)) = self.log_error(self.blocking(Mds::rebalancing)) else { return };
            if !self.is_leader() {
                return;
            }
            let mut pool = self.read_capacities().await;
            let left = pool.surplus();
            idle = if left < left_before { 0 } else { idle + 1 };
            left_before = left;
            let Some((mut pass, moved)) = self.balance(now.began_ms, &mut pool).await else { return };
            pass.last = moved == 0 || idle >= IDLE_MAX;
            let now_ms = self.environment.now_ms();
            let noted = self.blocking(|mds| mds.rebalance_passed(now.began_ms, &pass, now_ms));
            if let Err(error) = noted {
                tracing::error!(%error, "cannot save rebalance progress");
                return;
            }
            if pass.last {
                tracing::info!(left = pass.left_bytes, in_use = pass.in_use, problem = %pass.problem, "devices rebalanced");
                return;
            }
        }
    }

    /// Reads the current capacity of all devices.
    async fn read_capacities(&self) -> DevicePool {
        self.poll_devices().await;
        self.blocking(Mds::pool)
    }

    /// Reads all files and moves those that help. Returns the pass and the number of moves, or
    /// `None` if it ended early.
    async fn balance(&self, began_ms: u64, pool: &mut DevicePool) -> Option<(BalancePass, u64)> {
        let mut pace = RateLimit { rate: 0, next: Instant::now() };
        let (mut pass, mut moved, mut problems) = (BalancePass::default(), 0, 0);
        let (mut after, mut read_at) = (None, Instant::now());
        loop {
            let page = self.log_error(self.blocking(|mds| mds.next_balancing_moves(pool, after)))?;
            for item in page.items {
                if !self.is_leader() {
                    return None;
                }
                // The rebalance may have been restarted or cancelled meanwhile.
                let now = self.log_error(self.blocking(Mds::rebalancing))??;
                if now.began_ms != began_ms {
                    return None;
                }
                pace.rate = now.rate;
                if problems >= PROBLEMS_MAX {
                    break;
                }
                if read_at.elapsed() > CAPACITY_AGE_MAX {
                    (*pool, read_at) = (self.read_capacities().await, Instant::now());
                }
                let read_capacities = &*pool;
                match self
                    .move_object(
                        |mds, now_ms| mds.begin_balancing_move(item.inode, read_capacities, now_ms),
                        &mut pace,
                    )
                    .await
                {
                    Ok(None) => {}
                    Ok(Some(object)) => {
                        moved += 1;
                        pool.moved(object.order.from.device, object.order.to.device, object.bytes);
                    }
                    Err(MoveError::InUse) => pass.in_use += 1,
                    Err(MoveError::Problem(problem)) => {
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
