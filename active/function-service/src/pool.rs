//! Engine processes: started when needed, and reused by the same owner for the same function.
//!
//! Does: start engines, keep idle ones, and stop those so that they use no CPU time.
//! Does not: talk to them; `invocation` does.
//! Contract: an engine that ran a function of one owner is used again for the same code and the
//! same owner only. An engine that broke the protocol, had secret arguments, or was killed is never
//! used again. CPU time between two calls counts for the second.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sealstone_function_ring::{HostMemory, HostRing, RingOptions};
use sealstone_osd::function::EngineType;
use sealstone_sandbox::{EngineCode, EngineLimits, EngineRequest, SandboxError, SandboxedEngine};
use thiserror::Error;

use crate::engines::EngineSet;
use crate::job_table::JobUser;
use crate::limits::{REUSE_CPU_S, RunLimits, ServiceLimits};

/// Address space that an engine needs beside its memory: program, libraries and the shared heap.
const ADDRESS_SPACE_EXTRA: u64 = 512 << 20;

/// Address space that the memory of a WebAssembly module reserves: 4 GiB, and guards.
const MODULE_RESERVATION: u64 = 5 << 30;

/// The function and the owner of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineKey {
    pub(crate) engine: EngineType,
    pub(crate) digest: [u8; 32],
    pub(crate) user: JobUser,
}

/// A confined engine that has loaded one function, with the memory that it shares.
pub(crate) struct PooledEngine {
    pub(crate) key: EngineKey,
    pub(crate) process: SandboxedEngine,
    pub(crate) ring: HostRing,
    /// CPU time up to the end of the last call.
    pub(crate) cpu_charged: Duration,
    idle_since: Instant,
    /// Whether its threads are stopped.
    is_paused: bool,
}

/// Why no engine could be started.
#[derive(Debug, Error)]
pub(crate) enum EngineStartError {
    #[error("no engine of this type")]
    Missing,
    #[error("cannot create the shared memory")]
    Memory(#[source] std::io::Error),
    #[error("cannot start the engine")]
    Sandbox(#[from] SandboxError),
}

/// Counts of engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolCounts {
    pub(crate) started: u64,
    pub(crate) reused: u64,
    pub(crate) idle: usize,
}

/// The engines of a device.
pub(crate) struct EnginePool {
    engines: EngineSet,
    warm_max: usize,
    warm_time: Duration,
    ring: RingOptions,
    idle: Arc<IdleEngines>,
}

/// Idle engines, and the thread that pauses them.
#[derive(Default)]
struct IdleEngines {
    pause_after: Duration,
    state: Mutex<PoolState>,
    /// Signalled for the thread when an engine is idle, and at the end.
    changed: Condvar,
}

#[derive(Default)]
struct PoolState {
    /// Whether the thread waits until an engine is idle. Otherwise it wakes up by itself.
    is_pauser_waiting: bool,
    is_closed: bool,
    /// Idle engines, the one that has been idle for the longest time first.
    idle: VecDeque<PooledEngine>,
    started: u64,
    reused: u64,
}

impl EnginePool {
    pub(crate) fn new(engines: EngineSet, limits: &ServiceLimits) -> Self {
        let mut warm_max = limits.warm_engines;
        let idle = Arc::new(IdleEngines { pause_after: limits.pause_after, ..IdleEngines::default() });
        let for_thread = Arc::clone(&idle);
        let thread = std::thread::Builder::new().name("engine-pauser".to_owned());
        if let Err(error) = thread.spawn(move || for_thread.pause_idle()) {
            tracing::error!(%error, "cannot start the thread that pauses idle engines; engines are not reused");
            warm_max = 0;
        }
        let ring = RingOptions::for_cores(std::thread::available_parallelism().map_or(1, usize::from));
        Self { engines, warm_max, warm_time: limits.warm_time, ring, idle }
    }

    pub(crate) const fn engines(&self) -> &EngineSet {
        &self.engines
    }

    /// Returns an idle engine of this key, or a new one that loads the code.
    pub(crate) fn acquire(
        &self,
        key: EngineKey,
        code: &[u8],
        limits: &RunLimits,
    ) -> Result<PooledEngine, EngineStartError> {
        if let Some(engine) = self.take_idle(key) {
            return Ok(engine);
        }
        let zygote = self.engines.zygote(key.engine).ok_or(EngineStartError::Missing)?;
        let memory = HostMemory::create(self.ring).map_err(EngineStartError::Memory)?;
        let request = EngineRequest {
            code: Some(EngineCode::new(code_name(key.engine), code)?),
            descriptors: memory.descriptors().to_vec(),
            parameters: Vec::new(),
            limits: engine_limits(key.engine, limits),
        };
        let process = zygote.start(&request)?;
        drop(request);
        self.idle.state.lock().started += 1;
        Ok(PooledEngine {
            key,
            cpu_charged: process.cpu_time(),
            process,
            ring: HostRing::new(Arc::new(memory)),
            idle_since: Instant::now(),
            is_paused: false,
        })
    }

    fn take_idle(&self, key: EngineKey) -> Option<PooledEngine> {
        let mut state = self.idle.state.lock();
        // The newest one: its memory is most likely in the cache.
        while let Some(at) = state.idle.iter().rposition(|engine| engine.key == key) {
            let mut engine = state.idle.remove(at)?;
            let continues = !engine.is_paused || engine.process.resume();
            if continues && matches!(engine.process.wait(Some(Duration::ZERO)), Ok(None)) {
                engine.is_paused = false;
                state.reused += 1;
                return Some(engine);
            }
        }
        None
    }

    /// Keeps an engine that has returned from a call and may be used again.
    pub(crate) fn release(&self, mut engine: PooledEngine) {
        // Measured at the end of the call.
        if engine.cpu_charged >= Duration::from_secs(REUSE_CPU_S) {
            return;
        }
        engine.idle_since = Instant::now();
        let mut removed = Vec::new();
        let mut state = self.idle.state.lock();
        state.idle.push_back(engine);
        if state.is_pauser_waiting {
            self.idle.changed.notify_one();
        }
        while state.idle.len() > self.warm_max {
            removed.extend(state.idle.pop_front());
        }
        drop(state);
        // Killed without the lock.
        drop(removed);
    }

    /// Kills engines that have been idle for too long.
    pub(crate) fn expire(&self, now: Instant) {
        let mut removed = Vec::new();
        let mut state = self.idle.state.lock();
        while let Some(oldest) = state.idle.front()
            && now.saturating_duration_since(oldest.idle_since) >= self.warm_time
        {
            removed.extend(state.idle.pop_front());
        }
        drop(state);
        drop(removed);
    }

    /// Kills all idle engines.
    pub(crate) fn clear(&self) {
        let idle = std::mem::take(&mut self.idle.state.lock().idle);
        drop(idle);
    }

    pub(crate) fn counts(&self) -> PoolCounts {
        let state = self.idle.state.lock();
        PoolCounts { started: state.started, reused: state.reused, idle: state.idle.len() }
    }
}

impl Drop for EnginePool {
    fn drop(&mut self) {
        self.clear();
        self.idle.state.lock().is_closed = true;
        self.idle.changed.notify_one();
    }
}

impl IdleEngines {
    /// Stops each engine that has been idle for a short time, until the pool ends. Threads that a
    /// function left behind, or a function that pretended to return, then use no CPU time.
    fn pause_idle(&self) {
        let mut removed = Vec::new();
        let mut state = self.state.lock();
        while !state.is_closed {
            let now = Instant::now();
            let mut next: Option<Instant> = None;
            for at in (0..state.idle.len()).rev() {
                let Some(engine) = state.idle.get_mut(at).filter(|engine| !engine.is_paused) else {
                    continue;
                };
                let due = engine.idle_since + self.pause_after;
                if due > now {
                    next = Some(next.map_or(due, |next| next.min(due)));
                    continue;
                }
                engine.is_paused = engine.process.pause();
                if !engine.is_paused {
                    removed.extend(state.idle.remove(at));
                }
            }
            if !removed.is_empty() {
                tracing::debug!(count = removed.len(), "cannot pause idle engines; killing them");
                parking_lot::MutexGuard::unlocked(&mut state, || removed.clear());
                continue;
            }
            match next {
                Some(due) => {
                    self.changed.wait_until(&mut state, due);
                }
                None => {
                    state.is_pauser_waiting = true;
                    self.changed.wait(&mut state);
                    state.is_pauser_waiting = false;
                }
            }
        }
    }
}

/// Returns the name of the code in the root of an engine.
const fn code_name(engine: EngineType) -> &'static str {
    match engine {
        EngineType::C => "fn.so",
        EngineType::Wasm => "fn.wasm",
        EngineType::Java => "fn.jar",
        EngineType::Python => "fn.py",
    }
}

/// Returns the limits of an engine process, which may serve several runs.
fn engine_limits(engine: EngineType, limits: &RunLimits) -> EngineLimits {
    let address_space = limits.memory.saturating_add(ADDRESS_SPACE_EXTRA);
    let (address_space_bytes, threads, descriptors) = match engine {
        EngineType::C | EngineType::Python => (Some(address_space), 1, 32),
        EngineType::Wasm => (Some(address_space.saturating_add(MODULE_RESERVATION)), 1, 32),
        EngineType::Java => (None, 64, 64),
    };
    EngineLimits {
        memory_bytes: limits.memory,
        address_space_bytes,
        // Reservations say nothing about the memory that is used.
        data_bytes: matches!(engine, EngineType::Wasm | EngineType::Java).then_some(limits.memory),
        cpu_seconds: limits.cpu_s.saturating_add(REUSE_CPU_S).max(1),
        threads,
        descriptors,
        ..EngineLimits::default()
    }
}
