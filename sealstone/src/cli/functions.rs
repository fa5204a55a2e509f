//! Arguments of `fn`, `run` and `job`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum};
use sealstone_function_runs::{SecondPlace, parse_api_range, parse_pair};
use sealstone_functions::SHIPPED_FUNCTIONS;
use sealstone_functions::template::TemplateLanguage;
use sealstone_osd::function::attributes::FunctionPolicy;
use sealstone_osd::function::{ApiVersion, EngineType, TIMEOUT_MAX_MS};
use sealstone_units::{parse_hex32, parse_mode, parse_partition, parse_time_limit};

use super::MethodName;
use super::shipped::ShippedArguments;

/// Function files: code that devices run.
#[derive(Debug, Subcommand)]
pub(crate) enum Function {
    /// Create a project for a new function.
    #[command(after_help = "\
Examples:
  sealstone fn new --lang c longest
  sealstone fn new --lang java longest
  sealstone fn new --lang python longest
  sealstone fn new --lang rust --name my-count projects/count
The project contains the SDK, and builds as it is: with `make`, in Rust with `cargo build
--release`. Existing files are not replaced.")]
    New(FunctionProjectArgs),
    /// Run a function on local files, in its engine but without a device.
    #[command(after_help = "\
Examples:
  sealstone fn test ./longest.so access.log error.log
  sealstone fn test ./count.wasm --arg by=lines access.log
  sealstone fn test ./rewrite.py --update --commit copy.csv
  sealstone --json fn test ./longest.so access.log | jq .jobs[0].cpu_us
The engine program runs in the same sandbox as on a device, with the limits of a device. Each
file is an object of a run of its own, unless --together is given. Results go to standard
output; log, exit reason, CPU time and memory to standard error.")]
    Test(FunctionTestArgs),
    /// Store code as a function, with a copy on each active device.
    #[command(after_help = "\
Examples:
  sealstone fn put libgrep.so --engine c --api 1.0 grep
  sealstone fn put longest.py longest
  sealstone fn put count.wasm --manifest count.toml --sign publisher.key /tools/count
A name without a slash is stored in /.functions. The permission bit x of the stored file is the
right to run it: mode 0755 unless --mode is given. The key file has 32 random bytes, or 64 hex
digits, and mode 0600.")]
    Put(FunctionPutArgs),
    /// Store the shipped functions in /.functions, where all users find them.
    #[command(after_help = "\
Examples:
  sealstone fn install
  sealstone fn install grep count --engine wasm
  sealstone fn install --sign publisher.key
`make engines` builds the functions. Existing ones are replaced. A shared object is preferred to
a WebAssembly module, because its engine starts it without a translation.")]
    Install(FunctionInstallArgs),
    /// List the functions of a directory.
    #[command(after_help = "\
Examples:
  sealstone fn ls
  sealstone fn ls /tools")]
    Ls {
        /// Directory [default: /.functions].
        path: Option<OsString>,
    },
    /// Show the description, digest and copies of a function.
    #[command(after_help = "\
Example:
  sealstone fn show grep")]
    Show {
        /// Function: a stored path, or a name in /.functions.
        function: OsString,
    },
    /// Make the copies of a function that active devices lack.
    #[command(after_help = "\
Example:
  sealstone fn copy grep     after a device was added")]
    Copy {
        /// Function: a stored path, or a name in /.functions.
        function: OsString,
    },
    /// Remove functions with all copies.
    #[command(after_help = "\
Example:
  sealstone fn rm grep")]
    Rm {
        /// Functions: stored paths, or names in /.functions.
        #[arg(required = true)]
        functions: Vec<OsString>,
    },
    /// Show or set which functions may run on all devices (administrators).
    #[command(after_help = "\
Examples:
  sealstone fn policy
  sealstone fn policy --set listed --function grep --function /tools/count
  sealstone fn policy --set any
With `--set signed`, --key names each trusted publisher. --set replaces policy, keys and list. A
device that is added later gets the same policy before it runs a function.")]
    Policy(FunctionPolicyArgs),
    /// List the engines of all devices.
    #[command(after_help = "\
Example:
  sealstone fn engines")]
    Engines,
}

/// Arguments of `fn new`.
#[derive(Args, Clone, Debug)]
pub(crate) struct FunctionProjectArgs {
    /// Folder of the project, which is created.
    pub(crate) folder: PathBuf,
    /// Language of the function.
    #[arg(long = "lang", value_name = "LANGUAGE")]
    pub(crate) language: LanguageName,
    /// Name of the function [default: the name of the folder].
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Folder of another copy of the Rust SDK [default: the one in the project].
    #[arg(long, value_name = "DIR")]
    pub(crate) sdk: Option<PathBuf>,
}

/// Language of a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LanguageName {
    /// C, for the engine of shared objects.
    C,
    /// Rust, for the engines of shared objects and of WebAssembly modules.
    Rust,
    /// Java, for the engine of JAR files.
    Java,
    /// Python, for the engine of source files.
    Python,
}

impl From<LanguageName> for TemplateLanguage {
    fn from(name: LanguageName) -> Self {
        match name {
            LanguageName::C => Self::C,
            LanguageName::Rust => Self::Rust,
            LanguageName::Java => Self::Java,
            LanguageName::Python => Self::Python,
        }
    }
}

/// Arguments of `fn test`.
#[derive(Args, Clone, Debug)]
pub(crate) struct FunctionTestArgs {
    /// Local file with the code: a shared object, a WebAssembly module, a JAR or a Python module.
    pub(crate) function: PathBuf,
    /// Local files. Without any, the function runs once without objects.
    pub(crate) files: Vec<PathBuf>,
    /// Engine that runs it [default: by the first bytes, or by the extension so, wasm, jar or py].
    #[arg(long, value_name = "ENGINE")]
    pub(crate) engine: Option<EngineName>,
    /// Folder with the engine programs [default: that of this program].
    #[arg(long, value_name = "DIR", env = "SEALSTONE_OSD_ENGINES")]
    pub(crate) engines: Option<PathBuf>,
    /// Method of the function [default: its default method].
    #[arg(long, default_value = "", value_name = "M", hide_default_value = true)]
    pub(crate) method: String,
    /// Argument NAME=VALUE; repeat it for more.
    #[arg(long = "arg", value_name = "K=V", value_parser = parse_pair)]
    pub(crate) arguments: Vec<(String, String)>,
    /// Private file (mode 0600) with NAME=VALUE lines, for secret arguments.
    #[arg(long, value_name = "FILE")]
    pub(crate) arg_file: Option<PathBuf>,
    /// Allow the function to change the files.
    #[arg(long)]
    pub(crate) update: bool,
    /// Make changes visible only if the function succeeds.
    #[arg(long, requires = "update")]
    pub(crate) commit: bool,
    /// One run with all files, instead of one for each.
    #[arg(long)]
    pub(crate) together: bool,
    /// File for the results; `-` is standard output.
    #[arg(long, short, default_value = "-", value_name = "FILE")]
    pub(crate) output: OsString,
    /// Longest run, such as 30s, 5m or 1h.
    #[arg(long, default_value = "30s", value_name = "T", value_parser = parse_timeout)]
    pub(crate) timeout: u32,
}

/// Arguments of `fn put`.
#[derive(Args, Clone, Debug)]
pub(crate) struct FunctionPutArgs {
    /// Local file with the code: a shared object, a WebAssembly module, a JAR or a Python module.
    pub(crate) file: PathBuf,
    /// Stored path, or a name in /.functions.
    pub(crate) path: OsString,
    /// Engine that runs it [default: by the first bytes, or by the extension so, wasm, jar or py].
    #[arg(long, value_name = "ENGINE")]
    pub(crate) engine: Option<EngineName>,
    /// API version that the function needs, or the lowest and highest as 1.0-1.2; see `fn engines`.
    #[arg(long, default_value = "1.0", value_name = "VERSION", value_parser = parse_api_range)]
    pub(crate) api: (ApiVersion, ApiVersion),
    /// Text file with the manifest: methods and arguments.
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
    /// Version of the implementation.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub(crate) version: String,
    /// Name of the publisher.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub(crate) publisher: String,
    /// Private key file of the publisher: signs the code and its description.
    #[arg(long, value_name = "KEY")]
    pub(crate) sign: Option<PathBuf>,
    /// Permission bits, octal.
    #[arg(long, default_value = "755", value_name = "MODE", value_parser = parse_mode)]
    pub(crate) mode: u16,
    /// Fail if the function exists.
    #[arg(long)]
    pub(crate) no_replace: bool,
    /// Make no copies now; the first run on a device makes its copy.
    #[arg(long)]
    pub(crate) no_copies: bool,
}

/// Arguments of `fn install`.
#[derive(Args, Clone, Debug)]
pub(crate) struct FunctionInstallArgs {
    /// Functions to store [default: all].
    #[arg(value_parser = PossibleValuesParser::new(SHIPPED_FUNCTIONS.iter().map(|function| function.name)))]
    pub(crate) functions: Vec<String>,
    /// Folder with the built functions [default: functions beside this program].
    #[arg(long, value_name = "DIR")]
    pub(crate) from: Option<PathBuf>,
    /// Engine, c or wasm [default: c if there is a shared object].
    #[arg(long, value_name = "ENGINE", value_parser = parse_shipped_engine)]
    pub(crate) engine: Option<EngineName>,
    /// Name of the publisher.
    #[arg(long, default_value = "", value_name = "TEXT", hide_default_value = true)]
    pub(crate) publisher: String,
    /// Private key file of the publisher: signs the code and its description.
    #[arg(long, value_name = "KEY")]
    pub(crate) sign: Option<PathBuf>,
}

/// Parses an engine that has shipped functions.
fn parse_shipped_engine(text: &str) -> Result<EngineName, String> {
    match text {
        "c" => Ok(EngineName::C),
        "wasm" => Ok(EngineName::Wasm),
        _ => Err("shipped functions are built for the engines c and wasm".to_owned()),
    }
}

/// Arguments of `fn policy`.
#[derive(Args, Clone, Debug)]
pub(crate) struct FunctionPolicyArgs {
    /// New policy; without it the present one is shown.
    #[arg(long, value_name = "POLICY")]
    pub(crate) set: Option<PolicyName>,
    /// Public key of a trusted publisher, 64 hex digits as `fn show` prints it; repeat it for more.
    #[arg(long = "key", value_name = "HEX", requires = "set", value_parser = parse_hex32)]
    pub(crate) keys: Vec<[u8; 32]>,
    /// Function whose present code may run: a stored path, or a name in /.functions.
    #[arg(long = "function", value_name = "FUNCTION", requires = "set")]
    pub(crate) functions: Vec<OsString>,
    /// BLAKE3-256 of code that may run, 64 hex digits.
    #[arg(long = "digest", value_name = "HEX", requires = "set", value_parser = parse_hex32)]
    pub(crate) digests: Vec<[u8; 32]>,
    /// Partition with files (0x… or decimal); all of them without it.
    #[arg(long, value_name = "ID", value_parser = parse_partition)]
    pub(crate) partition: Option<u64>,
}

/// Which functions may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyName {
    /// Every function that its caller may execute.
    Any,
    /// Functions that a trusted publisher signed.
    Signed,
    /// Functions whose code is listed.
    Listed,
}

impl From<PolicyName> for FunctionPolicy {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::Any => Self::Any,
            PolicyName::Signed => Self::Signed,
            PolicyName::Listed => Self::AllowList,
        }
    }
}

/// An engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// Shared objects with the C interface.
    C,
    /// WebAssembly modules.
    Wasm,
    /// JAR files.
    Java,
    /// Python 3 modules.
    Python,
}

impl From<EngineName> for EngineType {
    fn from(name: EngineName) -> Self {
        match name {
            EngineName::C => Self::C,
            EngineName::Wasm => Self::Wasm,
            EngineName::Java => Self::Java,
            EngineName::Python => Self::Python,
        }
    }
}

/// Arguments of `run`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  sealstone run count --by lines,words,bytes /logs
  sealstone run grep --pattern error /logs/a.log /logs/b.log
  sealstone run filter --where status=500 --output errors.csv /tables
  sealstone run filter --where 'status >= 500' '/tables/*.parquet' -o errors.parquet
  sealstone run sha256 --timeout 5m /images/disk.img
  sealstone run compress --format zstd --to /logs/a.log.zst /logs/a.log
  sealstone run decompress --output a.log /logs/a.log.zst
  sealstone run thumbnail --size 256 --output small /photos
  sealstone run count --async /logs/huge.log; sealstone job ls
  sealstone run count --receipts receipts /logs/a.log
  sealstone run top-words --reduce merge-words --reduce-arg limit=10 /books
The function runs on the devices that store the files, in one job for each file and device. A
name without a slash is looked up in /.functions. Results of shipped functions are reduced to
one for each file, and a total of counts; those of others are written when their jobs end.
--arg-file keeps an argument out of the process list; --key-object keeps a key out of all
arguments.")]
pub(crate) struct RunArgs {
    /// Function: a stored path, or a name in /.functions.
    pub(crate) function: OsString,
    /// Stored files; a directory is all files below it, and `*` and `?` match last names.
    #[arg(required = true)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) call: CallArgs,
    /// Stored file with a key that the function reads on the device, such as that of aes.
    #[arg(long, value_name = "PATH")]
    pub(crate) key_object: Option<OsString>,
    /// Stored file for the output, or a stored directory for one output of each file.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["output", "raw", "is_async"])]
    pub(crate) to: Option<OsString>,
    /// Allow the function to change existing bytes of the files.
    #[arg(long)]
    pub(crate) update: bool,
    /// Make changes visible only if the function succeeds.
    #[arg(long, requires = "update")]
    pub(crate) commit: bool,
    /// Function that reduces the results of all jobs: a stored path, or a name in /.functions.
    #[arg(long, value_name = "FUNCTION", conflicts_with_all = ["is_async", "per_file"])]
    pub(crate) reduce: Option<OsString>,
    /// Where that function runs.
    #[arg(long, value_name = "PLACE", default_value = "device", requires = "reduce")]
    pub(crate) reduce_on: ReducePlace,
    /// Argument NAME=VALUE of that function; repeat it for more.
    #[arg(long = "reduce-arg", value_name = "K=V", value_parser = parse_pair, requires = "reduce")]
    pub(crate) reduce_arguments: Vec<(String, String)>,
    /// Only start the jobs; `sealstone job` shows them.
    #[arg(long = "async", id = "is_async", conflicts_with_all = ["timeout", "receipts"])]
    pub(crate) is_async: bool,
    /// Security method of commands; the server may raise it.
    #[arg(long = "security", env = "SEALSTONE_METHOD", default_value = "alldata", value_name = "METHOD")]
    pub(crate) security: MethodName,
}

/// Where a second function runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReducePlace {
    /// On a device that has a copy of it.
    Device,
    /// In the engine of this machine.
    Client,
}

impl From<ReducePlace> for SecondPlace {
    fn from(place: ReducePlace) -> Self {
        match place {
            ReducePlace::Device => Self::Device,
            ReducePlace::Client => Self::Client,
        }
    }
}

/// Arguments of a call of a function, and of the output of its results.
#[derive(Args, Clone, Debug)]
pub(crate) struct CallArgs {
    #[command(flatten)]
    pub(crate) shipped: ShippedArguments,
    /// Method of the function [default: its default method].
    #[arg(long, default_value = "", value_name = "M", hide_default_value = true)]
    pub(crate) method: String,
    /// Argument NAME=VALUE; repeat it for more.
    #[arg(long = "arg", value_name = "K=V", value_parser = parse_pair)]
    pub(crate) arguments: Vec<(String, String)>,
    /// Private file (mode 0600) with NAME=VALUE lines; devices do not record arguments then.
    #[arg(long, value_name = "FILE")]
    pub(crate) arg_file: Option<PathBuf>,
    /// One job for each device with up to 64 objects, instead of one for each file.
    #[arg(long)]
    pub(crate) together: bool,
    /// Write the counts of each file before the total.
    #[arg(long)]
    pub(crate) per_file: bool,
    /// Write the results of jobs as they are, not those of files.
    #[arg(long)]
    pub(crate) raw: bool,
    /// File for the results, or a folder for one output of each file; `-` is standard output.
    #[arg(long, short, default_value = "-", value_name = "FILE")]
    pub(crate) output: OsString,
    /// Folder for receipt and result of each job; receipts have digests of all bytes read.
    #[arg(long, value_name = "DIR")]
    pub(crate) receipts: Option<PathBuf>,
    /// Folder with engine programs, for jobs at the client [default: that of this program].
    #[arg(long, value_name = "DIR", env = "SEALSTONE_OSD_ENGINES")]
    pub(crate) engines: Option<PathBuf>,
    /// Longest run of a job, such as 30s, 5m or 1h.
    #[arg(long, default_value = "30s", value_name = "T", value_parser = parse_timeout)]
    pub(crate) timeout: u32,
}

/// Jobs of functions.
#[derive(Debug, Subcommand)]
pub(crate) enum Job {
    /// List the asynchronous and failed jobs of this session.
    #[command(after_help = "\
Example:
  sealstone job ls")]
    Ls,
    /// Show the state of jobs.
    #[command(after_help = "\
Examples:
  sealstone job status 3f9a
  sealstone --json job status 3f9a | jq .jobs[0].state")]
    Status {
        /// Ids, or the beginnings of ids.
        #[arg(required = true)]
        jobs: Vec<String>,
    },
    /// Wait until jobs end.
    #[command(after_help = "\
Example:
  sealstone job wait 3f9a --timeout 10m")]
    Wait {
        /// Ids, or the beginnings of ids.
        #[arg(required = true)]
        jobs: Vec<String>,
        /// Longest wait for each job, such as 30s, 5m or 1h.
        #[arg(long, default_value = "1h", value_name = "T", value_parser = parse_timeout)]
        timeout: u32,
    },
    /// Stop jobs.
    #[command(after_help = "\
Example:
  sealstone job cancel 3f9a")]
    Cancel {
        /// Ids, or the beginnings of ids.
        #[arg(required = true)]
        jobs: Vec<String>,
    },
    /// Write the log of a job to standard output.
    #[command(after_help = "\
Example:
  sealstone job log 3f9a")]
    Log {
        /// Id, or the beginning of one.
        job: String,
    },
    /// Write the result of a job to a file or standard output.
    #[command(after_help = "\
Examples:
  sealstone job result 3f9a
  sealstone job result 3f9a --output counts.json --receipt counts.receipt")]
    Result {
        /// Id, or the beginning of one.
        job: String,
        /// File for the result; `-` is standard output.
        #[arg(long, short, default_value = "-", value_name = "FILE")]
        output: OsString,
        /// File for the receipt of the device.
        #[arg(long, value_name = "FILE")]
        receipt: Option<PathBuf>,
    },
    /// Verify the receipt of a job at the metadata server.
    #[command(after_help = "\
Examples:
  sealstone job verify 3f9a
  sealstone job verify --receipt counts.receipt --result counts.json
  sealstone job verify --receipt counts.receipt --input access.log
A receipt states which code ran, with which arguments and objects, and the digest of the result.")]
    Verify {
        /// Id, or the beginning of one.
        #[arg(required_unless_present = "receipt", conflicts_with = "receipt")]
        job: Option<String>,
        /// Receipt file.
        #[arg(long, value_name = "FILE")]
        receipt: Option<PathBuf>,
        /// Result file to compare with the receipt.
        #[arg(long, value_name = "FILE", requires = "receipt")]
        result: Option<PathBuf>,
        /// Local copy of an object whose digest the receipt must have; repeat it for more.
        #[arg(long = "input", value_name = "FILE")]
        inputs: Vec<PathBuf>,
    },
}

/// Parses a time such as 30s, 5m or 1h, as milliseconds.
fn parse_timeout(text: &str) -> Result<u32, String> {
    parse_time_limit(text, TIMEOUT_MAX_MS)
}
