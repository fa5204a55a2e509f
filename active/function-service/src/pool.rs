//! Engine processes: started when needed, and reused by the same owner for the same function.
//!
//! Does: start engines and keep idle ones. Does not: talk to them; `invocation` does. Contract: an
//! engine that ran a function of one owner is used again for the same code and the same owner only.
//! An engine that broke the protocol, had secret arguments, or was killed is never used again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
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
    idle_since: Instant,
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
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// Idle engines, the one that has been idle for the longest time first.
    idle: VecDeque<PooledEngine>,
    started: u64,
    reused: u64,
}

impl EnginePool {
    pub(crate) fn new(engines: EngineSet, limits: &ServiceLimits) -> Self {
        Self { engines, warm_max: limits.warm_engines, warm_time: limits.warm_time, state: Mutex::default() }
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
        let memory = HostMemory::create(RingOptions::default()).map_err(EngineStartError::Memory)?;
        let request = EngineRequest {
            code: Some(EngineCode::new(code_name(key.engine), code)?),
            descriptors: memory.descriptors().to_vec(),
            parameters: Vec::new(),
            limits: engine_limits(key.engine, limits),
        };
        let process = zygote.start(&request)?;
        drop(request);
        self.state.lock().started += 1;
        Ok(PooledEngine { key, process, ring: HostRing::new(Arc::new(memory)), idle_since: Instant::now() })
    }

    fn take_idle(&self, key: EngineKey) -> Option<PooledEngine> {
        let mut state = self.state.lock();
        // The newest one: its memory is most likely in the cache.
        while let Some(at) = state.idle.iter().rposition(|engine| engine.key == key) {
            let engine = state.idle.remove(at)?;
            if matches!(engine.process.wait(Some(Duration::ZERO)), Ok(None)) {
                state.reused += 1;
                return Some(engine);
            }
        }
        None
    }

    /// Keeps an engine that has returned from a call and may be used again.
    pub(crate) fn release(&self, mut engine: PooledEngine) {
        if engine.process.cpu_time() >= Duration::from_secs(REUSE_CPU_S) {
            return;
        }
        engine.idle_since = Instant::now();
        let mut removed = Vec::new();
        let mut state = self.state.lock();
        state.idle.push_back(engine);
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
        let mut state = self.state.lock();
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
        let idle = std::mem::take(&mut self.state.lock().idle);
        drop(idle);
    }

    pub(crate) fn counts(&self) -> PoolCounts {
        let state = self.state.lock();
        PoolCounts { started: state.started, reused: state.reused, idle: state.idle.len() }
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
