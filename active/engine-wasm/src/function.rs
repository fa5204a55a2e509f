//! Compiling a module, and running calls in it.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use sealstone_function_abi::{GuestCall, OwnedCallDescriptor};
use sealstone_function_ring::EngineRing;
use sealstone_wasm_module::limits::PAGE_BYTES;
use sealstone_wasm_module::{ModuleError, ModuleSummary};
use wasmtime::{
    Config, Engine, Error, InstancePre, Linker, Memory, Module, OptLevel, Store, Strategy, Trap,
    WasmBacktrace,
};
use zerocopy::IntoBytes as _;

use crate::calls;
use crate::guest::CallState;

/// Address space of a module's memory: all addresses of 32 bits, so that the processor checks them.
const RESERVATION_BYTES: u64 = 4 << 30;
/// Address space after it that has no memory, for the offsets of instructions.
const GUARD_BYTES: u64 = 32 << 20;
/// Maximum size of the stack of a function, in bytes; a deeper recursion traps.
const STACK_BYTES: usize = 1 << 20;
/// Frames of a trap that the log shows.
const SHOWN_FRAMES_MAX: usize = 8;
/// Characters of a function's name that the log shows.
const SHOWN_NAME_CHARS_MAX: usize = 80;

/// Why a function cannot be loaded.
#[derive(Debug)]
pub(crate) enum ModuleLoadError {
    /// The file cannot be read.
    File(io::Error),
    /// The module exceeds a limit, or has another interface.
    Module(ModuleError),
    /// The module needs more memory than the job may use.
    Memory { bytes: u64, limit: u64 },
    /// The compiler refused the module.
    Compiler(Error),
}

impl std::fmt::Display for ModuleLoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(error) => write!(f, "cannot read the module: {error}"),
            Self::Module(error) => error.fmt(f),
            Self::Memory { bytes, limit } => {
                write!(f, "its memory has {bytes} bytes at the start, and the job may use {limit}")
            }
            Self::Compiler(error) => write!(f, "{error:#}"),
        }
    }
}

impl std::error::Error for ModuleLoadError {}

/// Why a call did not return.
#[derive(Debug)]
pub(crate) enum RunFailure {
    /// The function did not start.
    Refused(String),
    /// The function trapped.
    Trapped(String),
}

/// A compiled function.
pub(crate) struct CompiledFunction {
    engine: Engine,
    instance: InstancePre<CallState>,
    summary: ModuleSummary,
    memory_max: u64,
}

/// Returns the configuration of the compiler and of the memory of modules.
fn configuration() -> Config {
    let mut config = Config::new();
    config.strategy(Strategy::Cranelift);
    config.cranelift_opt_level(OptLevel::Speed);
    config.memory_reservation(RESERVATION_BYTES);
    config.memory_guard_size(GUARD_BYTES);
    config.memory_may_move(false);
    config.guard_before_linear_memory(false);
    // It would create memory files, which the filter of system calls forbids.
    config.memory_init_cow(false);
    config.max_wasm_stack(STACK_BYTES);
    config.native_unwind_info(false);
    config.wasm_simd(true);
    config.wasm_bulk_memory(true);
    config.wasm_multi_value(true);
    config.wasm_tail_call(true);
    config.wasm_extended_const(true);
    config.wasm_relaxed_simd(false);
    config.wasm_memory64(false);
    config.wasm_multi_memory(false);
    config.wasm_custom_page_sizes(false);
    config.wasm_wide_arithmetic(false);
    config
}

impl CompiledFunction {
    /// Checks and compiles a module.
    pub(crate) fn load(path: &Path, memory_max: u64) -> Result<Self, ModuleLoadError> {
        let bytes = std::fs::read(path).map_err(ModuleLoadError::File)?;
        let summary = ModuleSummary::parse(&bytes).map_err(ModuleLoadError::Module)?;
        let bytes_at_start = summary.memory_pages * PAGE_BYTES;
        if bytes_at_start > memory_max {
            return Err(ModuleLoadError::Memory { bytes: bytes_at_start, limit: memory_max });
        }
        let engine = Engine::new(&configuration()).map_err(ModuleLoadError::Compiler)?;
        let module = Module::new(&engine, &bytes).map_err(ModuleLoadError::Compiler)?;
        let mut linker = Linker::new(&engine);
        calls::define(&mut linker).map_err(ModuleLoadError::Compiler)?;
        let instance = linker.instantiate_pre(&module).map_err(ModuleLoadError::Compiler)?;
        Ok(Self { engine, instance, summary, memory_max })
    }

    /// Runs a call in an instance of its own; returns the ring and the status.
    pub(crate) fn run(
        &self,
        ring: EngineRing,
        call: OwnedCallDescriptor,
    ) -> (EngineRing, Result<i64, RunFailure>) {
        let mut store = Store::new(&self.engine, CallState::new(ring, self.memory_max));
        store.limiter(|state| &mut state.limits);
        let outcome = self.run_in(&mut store, call);
        (store.into_data().ring, outcome)
    }

    fn run_in(&self, store: &mut Store<CallState>, call: OwnedCallDescriptor) -> Result<i64, RunFailure> {
        let instance = self.instance.instantiate(&mut *store).map_err(|error| failure(&error))?;
        let memory = instance
            .get_memory(&mut *store, "memory")
            .ok_or_else(|| RunFailure::Refused("it does not export its memory".to_owned()))?;
        let address = place_call(store, memory, call)?;
        if self.summary.has_initializer {
            let initializer = instance.get_typed_func::<(), ()>(&mut *store, "_initialize");
            initializer.and_then(|run| run.call(&mut *store, ())).map_err(|error| failure(&error))?;
        }
        let entry = instance.get_typed_func::<u32, i64>(&mut *store, self.summary.entry.name());
        entry.and_then(|run| run.call(&mut *store, address)).map_err(|error| failure(&error))
    }
}

/// Copies a call to pages that the memory of the function gains; returns its address.
fn place_call(
    store: &mut Store<CallState>,
    memory: Memory,
    call: OwnedCallDescriptor,
) -> Result<u32, RunFailure> {
    let objects = call.objects.as_bytes();
    let parts = [objects, call.method.as_bytes(), &[0], &call.arguments[..], &[0]];
    let length = size_of::<GuestCall>() + parts.iter().map(|part| part.len()).sum::<usize>();
    let pages = (length as u64).div_ceil(PAGE_BYTES);
    let grown = memory.grow(&mut *store, pages).map_err(|_| {
        RunFailure::Refused(format!("its memory cannot grow by {pages} pages, which the call needs"))
    })?;
    let base = grown * PAGE_BYTES;
    let objects_at = base + size_of::<GuestCall>() as u64;
    let method_at = objects_at + objects.len() as u64;
    let arguments_at = method_at + call.method.len() as u64 + 1;
    let guest = GuestCall::new(&call.borrow(), method_at, arguments_at, objects_at);
    let placed = memory.data_mut(store).get_mut(base as usize..).unwrap_or_default();
    let mut rest = placed;
    for part in [guest.as_bytes()].into_iter().chain(parts) {
        // The pages have the length of all parts.
        let Some((target, after)) = rest.split_at_mut_checked(part.len()) else {
            return Err(RunFailure::Refused("the call does not fit".to_owned()));
        };
        target.copy_from_slice(part);
        rest = after;
    }
    u32::try_from(base).map_err(|_| RunFailure::Refused("its memory is full".to_owned()))
}

/// Describes an error of an instance: a trap with its frames, or the reason why it did not start.
fn failure(error: &Error) -> RunFailure {
    let Some(trap) = error.downcast_ref::<Trap>() else {
        return RunFailure::Refused(format!("{error:#}"));
    };
    let mut text = format!("{trap}");
    let frames = error.downcast_ref::<WasmBacktrace>().map(WasmBacktrace::frames).unwrap_or_default();
    for (index, frame) in frames.iter().take(SHOWN_FRAMES_MAX).enumerate() {
        text.push_str(if index == 0 { ", in " } else { " < " });
        match frame.func_name() {
            Some(name) => text.extend(name.chars().filter(|c| !c.is_control()).take(SHOWN_NAME_CHARS_MAX)),
            None => {
                let _ = write!(text, "function {}", frame.func_index());
            }
        }
        if let (0, Some(offset)) = (index, frame.module_offset()) {
            let _ = write!(text, " (byte {offset} of the module)");
        }
    }
    if frames.len() > SHOWN_FRAMES_MAX {
        let _ = write!(text, " < {} more", frames.len() - SHOWN_FRAMES_MAX);
    }
    RunFailure::Trapped(text)
}
