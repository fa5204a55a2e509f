//! SDK for functions that run beside the data, on a device.
//!
//! Does: the host of the engines behind the seam of `sealstone-function-host`, which is
//! re-exported, and the entry point that engines call.
//! Does not: open files or sockets; a function reaches only the objects that its caller granted.
//! Contract: a function crate is a `cdylib` that calls [`export!`] once. It builds as a shared
//! object for the C engine, and for `wasm32-unknown-unknown` as a module for the WebAssembly
//! engine.
//! Source of truth: the table of calls, `active/function-abi/src/call.rs`.
//!
//! ```no_run
//! use sealstone_fn::{FunctionCall, FunctionFailure};
//!
//! /// Returns the length of each object.
//! fn lengths(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
//!     for object in 0..call.object_count() {
//!         let length = call.host().length(object)?;
//!         call.result(format!("{length}\n").as_bytes())?;
//!     }
//!     Ok(())
//! }
//! # // A function crate has this line at its top level:
//! # const _: &str = stringify!(
//! sealstone_fn::export!(lengths);
//! # );
//! ```

#![no_std]

extern crate alloc;

mod engine;

pub use engine::{EngineCall, EngineObject, enter, log_panic, objects};
#[doc(inline)]
pub use sealstone_function_host::*;

/// Calls of the engine that local hosts do not have, such as those of attributes and collections.
pub mod calls {
    pub use crate::engine::{
        add_member, append, clear, clock_ms, create, create_collection, flush, get_attribute, is_member,
        list, punch, remove, remove_collection, remove_member, set_attribute,
    };
}

/// Exports a function as the entry point of this crate.
///
/// The argument is a function that takes `&mut FunctionCall<'_>`. A panic is written to the job's
/// log and ends the job with the exit reason "trap".
#[macro_export]
macro_rules! export {
    ($function:path) => {
        /// Entry point that the engine calls.
        ///
        /// # Safety
        ///
        /// The call is valid until the return.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn osd_main(call: *const $crate::EngineCall) -> i64 {
            ::std::panic::set_hook(::std::boxed::Box::new(|panic| $crate::log_panic(panic)));
            // SAFETY: by the contract of the entry point.
            unsafe { $crate::enter(call, $function) }
        }
    };
}
