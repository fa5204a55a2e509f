//! Codes of engines, job states and exit reasons.

use core::fmt;

macro_rules! codes {
    ($(#[$about:meta])* $name:ident { $($variant:ident = $code:literal, $text:literal, $doc:literal;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name {
            $(#[doc = $doc] $variant = $code,)*
        }

        impl $name {
            /// All values, in the order of their codes.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the value of a code; `None` for a reserved one.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the code.
            #[must_use]
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// Returns the name for messages, metrics and JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

codes! {
    /// The engine that runs a function.
    EngineType {
        C = 1, "c", "A shared object for the C interface.";
        Wasm = 2, "wasm", "A WebAssembly module.";
        Java = 3, "java", "A JAR file.";
        Python = 4, "python", "A Python 3 module.";
    }
}

codes! {
    /// State of a job.
    JobState {
        Queued = 1, "queued", "Waits for an engine.";
        Running = 2, "running", "Runs.";
        Done = 3, "done", "Ended with a result.";
        Failed = 4, "failed", "Ended without a result; the exit reason says why.";
        TimedOut = 5, "timed-out", "Stopped by its timeout.";
        Cancelled = 6, "cancelled", "Stopped by its client.";
        Lost = 7, "lost", "The device restarted while it ran.";
    }
}

impl JobState {
    /// Whether the job has ended.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

codes! {
    /// Why a job ended.
    ExitReason {
        Success = 0, "success", "The function returned 0, or the job has not ended.";
        Trap = 1, "trap", "A signal or a WebAssembly trap.";
        CpuTime = 2, "cpu-time", "The limit of CPU time.";
        Memory = 3, "memory", "The limit of memory.";
        WallTime = 4, "wall-time", "The timeout.";
        Output = 5, "output", "The limit of output bytes.";
        Killed = 6, "killed", "The device stopped it, for example at a shutdown.";
        EngineMissing = 7, "engine-missing", "The device has no engine of this type or version.";
        Cancelled = 8, "cancelled", "The client cancelled it.";
        ProtocolViolation = 9, "protocol-violation", "The engine sent a malformed request.";
        Lost = 10, "lost", "The device restarted.";
        FunctionError = 11, "function-error", "The function returned an error code.";
    }
}
