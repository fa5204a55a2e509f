//! Tests of the whole server without a socket.

mod accounts;
mod attacks;
mod carries;
mod check;
mod crash;
mod directory;
mod ending;
mod enrolment;
mod fences;
mod files;
mod grants;
mod groups;
mod keys;
mod lazy;
mod leases;
mod logins;
mod model;
mod moves;
mod names;
mod nodes;
mod once;
mod paper;
mod quotas;
mod rebalance;
mod seen;
mod shared;
pub(crate) mod world;
