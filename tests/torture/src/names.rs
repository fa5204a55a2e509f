//! Names that several clients change concurrently, while metadata servers and their database are
//! killed.
//!
//! Does: eight clients like mounts create, rename, exchange, remove and look up a few names in one
//! directory, at two metadata servers on one PostgreSQL, all of which are killed at random moments.
//! Then checks that the history is linearizable.
//! Contract: an acknowledged change exists and ran exactly once, even if it was requested
//! repeatedly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sealstone_client::nodes::{CreateParams, Nodes, NodesOptions};
use sealstone_client::{Client, ClientError, Name};
use sealstone_mds_protocol::{ErrorCode, LinkTarget, Node, NodeKind, RenameMode};
use sealstone_tests::{ServerPair, Signal};
use tokio::runtime::Runtime;

use crate::RunReport;
use crate::linear::{Event, NAMES, NameState, Operation, OperationResult, Verdict, check};

/// Number of clients.
const CLIENTS: usize = 8;
/// Operations of each client in one round.
const OPERATIONS: usize = 24;
/// Time that clients wait for servers, longer than any downtime.
const PATIENCE: Duration = Duration::from_secs(300);
/// Pauses between kills, in milliseconds.
const PAUSE_MS: (u64, u64) = (100, 2_500);
/// Downtime of a killed process, in milliseconds.
const AWAY_MS: (u64, u64) = (0, 1_500);

type Mount = Nodes<sealstone_client::MdsClient, sealstone_client::DevicePool>;

/// The servers and their clients.
pub struct ClientCrowd {
    pair: ServerPair,
    clients: Vec<Arc<Client>>,
    mounts: Vec<Mount>,
    random: StdRng,
    seed: u64,
}

impl ClientCrowd {
    /// Starts everything.
    ///
    /// # Errors
    /// A client cannot log in.
    pub fn new(runtime: &Runtime, seed: u64) -> Result<Self, String> {
        let pair = ServerPair::start(0);
        let mut this =
            Self { pair, clients: Vec::new(), mounts: Vec::new(), random: StdRng::seed_from_u64(seed), seed };
        let password =
            std::fs::read_to_string(this.pair.admin_secret()).map_err(|error| error.to_string())?;
        let pin = this.pair.system.mds().field("pin").parse().map_err(|_| "the pin does not parse")?;
        let (first, second) = (this.pair.system.mds().field("address").to_owned(), &this.pair.second_address);
        // Half of them start with either server.
        let orders = [format!("{first},{second}"), format!("{second},{first}")];
        for number in 0..CLIENTS {
            let servers = &orders[number % orders.len()];
            let login = Client::connect(servers, pin, "admin", password.trim_end().as_bytes());
            let client = runtime.block_on(login).map_err(|error| format!("client {number}: {error}"))?;
            let options = NodesOptions { timeout: Some(PATIENCE), ..NodesOptions::default() };
            let mount = runtime.block_on(async { Nodes::new(&client, options) });
            this.clients.push(Arc::new(client));
            this.mounts.push(mount);
        }
        Ok(this)
    }

    /// Runs rounds until the time is over, at least one.
    ///
    /// # Errors
    /// The history is not linearizable.
    pub fn torture(
        &mut self,
        runtime: &Runtime,
        until: Instant,
        report: &mut RunReport,
    ) -> Result<(), String> {
        let over = AtomicBool::new(false);
        let Self { pair, mounts, random, seed, .. } = self;
        let killer_seed = random.r#gen();
        std::thread::scope(|scope| {
            let killer = scope.spawn(|| kill(pair, StdRng::seed_from_u64(killer_seed), &over));
            let mut outcome = Ok(());
            for round in 0_u64.. {
                outcome = one_round(runtime, mounts, *seed, round, report);
                if outcome.is_err() || Instant::now() >= until {
                    break;
                }
            }
            over.store(true, Ordering::Relaxed);
            report.kills += killer.join().map_err(|_| "the killer panicked")?;
            outcome
        })
    }
}

/// Kills and restarts processes until the round is over; all run at the end. Returns the number of
/// kills.
fn kill(pair: &mut ServerPair, mut random: StdRng, over: &AtomicBool) -> u64 {
    let mut kills = 0;
    let pause = |random: &mut StdRng, (least, most): (u64, u64)| {
        let until = Instant::now() + Duration::from_millis(random.gen_range(least..most));
        while Instant::now() < until && !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    while !over.load(Ordering::Relaxed) {
        pause(&mut random, PAUSE_MS);
        match random.gen_range(0..8) {
            0..=2 => {
                pair.system.end_mds(Signal::Kill);
                pause(&mut random, AWAY_MS);
                pair.system.start_mds();
            }
            3..=5 => {
                pair.kill_second();
                pause(&mut random, AWAY_MS);
                pair.start_second();
            }
            6 => {
                pair.system.end_mds(Signal::Kill);
                pair.kill_second();
                kills += 1;
                pause(&mut random, AWAY_MS);
                pair.start_second();
                pair.system.start_mds();
            }
            _ => {
                pair.postgres.kill();
                pause(&mut random, AWAY_MS);
                pair.postgres.restart();
            }
        }
        kills += 1;
    }
    kills
}

/// Runs all clients in a new directory and checks their history.
fn one_round(
    runtime: &Runtime,
    mounts: &[Mount],
    seed: u64,
    round: u64,
    report: &mut RunReport,
) -> Result<(), String> {
    let name = Name::new(format!("round{round}")).map_err(|_| "a short name")?;
    let made = runtime.block_on(mounts[0].create_node(Node::ROOT, &name, create_params(NodeKind::Directory)));
    let directory = made.map_err(|error| format!("round {round}: {error}"))?.node();
    let time = Arc::new(AtomicU64::new(1));
    let tasks: Vec<_> = mounts
        .iter()
        .enumerate()
        .map(|(client, mount)| {
            let (mount, time) = (mount.clone(), time.clone());
            let random = StdRng::seed_from_u64(seed ^ (round << 8) ^ client as u64);
            runtime.spawn(work(mount, client, directory, random, time))
        })
        .collect();
    let mut history = Vec::new();
    for task in tasks {
        history.extend(runtime.block_on(task).map_err(|_| "a client panicked")??);
    }
    // The final state.
    let last = runtime.block_on(done(&mounts[0], directory, Operation::List, CLIENTS, &time))?;
    history.push(last);
    report.names_rounds += 1;
    report.names_operations += history.len() as u64;
    report.names_unknown +=
        history.iter().filter(|event| event.outcome == OperationResult::Unknown).count() as u64;
    match check(&history) {
        Verdict::Linearizable => {}
        Verdict::Undecided => report.names_undecided += 1,
        Verdict::Violation(longest) => {
            history.sort_unstable_by_key(|event| event.called);
            let lines: Vec<String> = history.iter().map(line).collect();
            return Err(format!(
                "round {round}: no order of the operations explains the replies to the clients ({longest} of {} at \
                 most):\n{}",
                history.len(),
                lines.join("\n")
            ));
        }
    }
    clean_up(runtime, &mounts[0], directory, &name).map_err(|error| format!("round {round}: {error}"))
}

fn line(event: &Event) -> String {
    let Event { client, operation, outcome, called, returned } = event;
    format!("{called:5} to {returned:5}  client {client}: {operation:?}: {outcome:?}")
}

/// Removes the directory of the round.
fn clean_up(runtime: &Runtime, mount: &Mount, directory: Node, name: &Name) -> Result<(), ClientError> {
    runtime.block_on(async {
        let (entries, _) = mount.read_directory(directory, None).await?;
        for entry in entries {
            mount.remove(directory, &entry.name, false).await?;
        }
        mount.remove(Node::ROOT, name, true).await
    })
}

/// Runs one client's operations.
async fn work(
    mount: Mount,
    client: usize,
    directory: Node,
    mut random: StdRng,
    time: Arc<AtomicU64>,
) -> Result<Vec<Event>, String> {
    let mut history = Vec::with_capacity(OPERATIONS);
    for index in 0..OPERATIONS {
        let operation = choose(&mut random, (client * OPERATIONS + index + 1) as u16);
        history.push(done(&mount, directory, operation, client, &time).await?);
    }
    Ok(history)
}

fn choose(random: &mut StdRng, number: u16) -> Operation {
    let one = random.gen_range(0..NAMES);
    let other = (one + random.gen_range(1..NAMES)) % NAMES;
    match random.gen_range(0..12) {
        0..=3 => Operation::Make(one, number),
        4 | 5 => Operation::Remove(one),
        6 | 7 => Operation::Replace(one, other),
        8 => Operation::Move(one, other),
        9 => Operation::Exchange(one, other),
        10 => Operation::Look(one),
        _ => Operation::List,
    }
}

const fn create_params(what: NodeKind) -> CreateParams {
    CreateParams { what, mode: 0o755, umask: 0, owner: None, group: None }
}

fn named(index: usize) -> Result<Name, String> {
    Name::new(format!("n{index}")).map_err(|error| error.to_string())
}

/// Runs one operation. A node is a symbolic link whose number is the length of its target, so every
/// stat shows it.
async fn done(
    mount: &Mount,
    directory: Node,
    operation: Operation,
    client: usize,
    time: &AtomicU64,
) -> Result<Event, String> {
    let called = time.fetch_add(1, Ordering::SeqCst);
    let rename = async |one: usize, other: usize, mode: RenameMode| {
        let (one, other) = (named(one)?, named(other)?);
        Ok::<_, String>(
            mount.rename((directory, &one), (directory, &other), mode).await.map(|()| OperationResult::Done),
        )
    };
    let result = match operation {
        Operation::Make(name, number) => {
            let target =
                LinkTarget::new("x".repeat(usize::from(number))).map_err(|error| error.to_string())?;
            let create_params = create_params(NodeKind::Symlink(target));
            mount.create_node(directory, &named(name)?, create_params).await.map(|_| OperationResult::Done)
        }
        Operation::Remove(name) => {
            mount.remove(directory, &named(name)?, false).await.map(|()| OperationResult::Done)
        }
        Operation::Replace(one, other) => rename(one, other, RenameMode::Replace).await?,
        Operation::Move(one, other) => rename(one, other, RenameMode::NoReplace).await?,
        Operation::Exchange(one, other) => rename(one, other, RenameMode::Exchange).await?,
        Operation::Look(name) => {
            mount.lookup(directory, &named(name)?).await.map(|stat| OperationResult::Found(stat.size as u16))
        }
        Operation::List => mount.read_directory(directory, None).await.and_then(|(entries, _)| {
            let mut state: NameState = [None; NAMES];
            for entry in entries {
                let index = std::str::from_utf8(entry.name.as_bytes()).ok();
                let index = index.and_then(|name| name.strip_prefix('n')?.parse().ok());
                let place = index.and_then(|index: usize| state.get_mut(index));
                let size = entry.stat.map(|stat| stat.size as u16);
                *place.ok_or(ClientError::Protocol("a name that nobody made"))? = size;
            }
            Ok(OperationResult::Listed(state))
        }),
    };
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(ClientError::Refused(failure)) if failure.code == ErrorCode::NotFound => OperationResult::Missing,
        Err(ClientError::Refused(failure)) if failure.code == ErrorCode::Exists => OperationResult::Taken,
        Err(ClientError::Connection(_) | ClientError::OutcomeUnknown { .. }) => OperationResult::Unknown,
        Err(error) => return Err(format!("client {client}: {operation:?}: {error}")),
    };
    let returned = time.fetch_add(1, Ordering::SeqCst);
    Ok(Event { client, operation, outcome, called, returned })
}
