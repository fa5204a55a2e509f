//! The table of shipped functions. Help texts, manifests and the local runner read it.

use sealstone_function_host::{FunctionCall, FunctionErrno, FunctionFailure};

use crate::search::MakeSearch;
use crate::{compression, count, digest, filter, grep, transform};

/// Destination of a function's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionOutput {
    /// JSON lines in the result of the job.
    Result,
    /// Bytes of a new file for each file, as `data` lines in the result of the job.
    File,
    /// An output object for each input object; the objects of the call are pairs.
    Objects,
}

/// An argument of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionParameter {
    /// Name in `name=value`, and of the option on the command line.
    pub name: &'static str,
    /// Whether the function refuses to run without it.
    pub required: bool,
    /// Whether its value must not appear in logs.
    pub secret: bool,
    /// Whether its value is `true` or `false`.
    pub is_switch: bool,
    /// Form and meaning of the value.
    pub help: &'static str,
}

/// A function that Sealstone ships.
pub struct ShippedFunction {
    /// Name of the function and its file.
    pub name: &'static str,
    /// One line of help.
    pub summary: &'static str,
    /// Arguments, without those that the client adds (`stripe.N`, `header.N`).
    pub parameters: &'static [FunctionParameter],
    /// Destination of its output.
    pub output: FunctionOutput,
    /// Whether this crate has its code. That of others is only in their modules.
    pub is_linked: bool,
    /// Runs the function on a host, if its code is linked; else the error ENOSYS.
    pub run: fn(&mut FunctionCall<'_>) -> Result<(), FunctionFailure>,
    /// The rule that reduces its results.
    pub(crate) reduction: ReductionRule,
}

/// Whether the arguments of a call have this `name=value`.
#[must_use]
pub fn has_argument(arguments: &[u8], pair: &str) -> bool {
    arguments.split(|byte| *byte == 0).any(|one| one == pair.as_bytes())
}

impl ShippedFunction {
    /// Whether the call filters Parquet files, whose code is not linked.
    fn reads_parquet(&self, arguments: &[u8]) -> bool {
        self.name == "filter" && has_argument(arguments, "format=parquet")
    }

    /// Whether its module has libraries of file formats that this crate does not have.
    #[must_use]
    pub fn has_formats(&self) -> bool {
        !self.is_linked || self.name == "filter"
    }

    /// Returns the destination of the output of a call with these arguments.
    #[must_use]
    pub fn output_of(&self, arguments: &[u8]) -> FunctionOutput {
        let is_file = self.reads_parquet(arguments)
            && has_argument(arguments, "result-format=parquet")
            && !has_argument(arguments, "count=true");
        if is_file { FunctionOutput::File } else { self.output }
    }

    /// Whether the code of a call with these arguments is linked.
    #[must_use]
    pub fn is_linked_for(&self, arguments: &[u8]) -> bool {
        self.is_linked && !self.reads_parquet(arguments)
    }

    /// Returns the rule for the results of a call with these arguments.
    pub(crate) fn reduction_of(&self, arguments: &[u8]) -> ReductionRule {
        match self.output_of(arguments) {
            FunctionOutput::File => ReductionRule::Data,
            _ if self.reads_parquet(arguments) => ReductionRule::Rows,
            _ => self.reduction,
        }
    }
}

/// Rule that reduces the results of a function.
#[derive(Clone, Copy)]
pub(crate) enum ReductionRule {
    Counts,
    ByteCounts,
    Search(MakeSearch),
    Digests,
    Outputs,
    Data,
    /// Records of whole files.
    Rows,
}

const fn parameter(name: &'static str, help: &'static str) -> FunctionParameter {
    FunctionParameter { name, required: false, secret: false, is_switch: false, help }
}

const fn required(name: &'static str, help: &'static str) -> FunctionParameter {
    FunctionParameter { name, required: true, secret: false, is_switch: false, help }
}

const fn switch(name: &'static str, help: &'static str) -> FunctionParameter {
    FunctionParameter { name, required: false, secret: false, is_switch: true, help }
}

const COUNT_SWITCH: FunctionParameter = switch("count", "return the number of matches only");

/// Stands for code that is only in a module.
fn run_in_engine(_: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    Err(FunctionFailure::new(FunctionErrno::UNSUPPORTED, "the code of the function is only in its module"))
}

/// All shipped functions.
pub static SHIPPED_FUNCTIONS: &[ShippedFunction] = &[
    ShippedFunction {
        name: "count",
        summary: "Counts bytes, lines, words and characters",
        parameters: &[parameter("by", "list of bytes, lines, words, characters (default lines,words,bytes)")],
        output: FunctionOutput::Result,
        run: count::run_count,
        is_linked: true,
        reduction: ReductionRule::Counts,
    },
    ShippedFunction {
        name: "wordcount",
        summary: "Counts the occurrences of a byte",
        parameters: &[parameter("byte", "ASCII character, or 0x and two digits (default a space)")],
        output: FunctionOutput::Result,
        run: count::run_wordcount,
        is_linked: true,
        reduction: ReductionRule::ByteCounts,
    },
    ShippedFunction {
        name: "grep",
        summary: "Finds lines that match a regular expression",
        parameters: &[
            required("pattern", "regular expression, at most 4096 bytes"),
            switch("fixed", "the pattern is plain text"),
            switch("ignore-case", "upper and lower case are equal"),
            switch("word", "match whole words only"),
            switch("invert", "select lines that do not match"),
            COUNT_SWITCH,
            parameter("record-bytes", "search records of this size for plain text, instead of lines"),
        ],
        output: FunctionOutput::Result,
        run: grep::run_grep,
        is_linked: true,
        reduction: ReductionRule::Search(grep::make_grep),
    },
    ShippedFunction {
        name: "filter",
        summary: "Selects records of CSV, JSON lines or Parquet by an expression",
        parameters: &[
            required("where", "expression, such as: status >= 500 and path starts_with '/api'"),
            required("format", "csv, jsonl or parquet (default: by the names of the files)"),
            parameter("columns", "columns of a parquet file to return, separated by commas (default all)"),
            parameter("result-format", "json or parquet, for parquet files (default: by the output's name)"),
            parameter("delimiter", "character between the columns of csv, or tab (default a comma)"),
            switch("skip-invalid", "skip malformed records instead of failing"),
            COUNT_SWITCH,
        ],
        output: FunctionOutput::Result,
        run: filter::run_filter,
        is_linked: true,
        reduction: ReductionRule::Search(filter::make_filter),
    },
    ShippedFunction {
        name: "thumbnail",
        summary: "Makes small pictures of JPEG and PNG files",
        parameters: &[parameter("size", "longer side in pixels, 16 to 4096 (default 256)")],
        output: FunctionOutput::File,
        run: run_in_engine,
        is_linked: false,
        reduction: ReductionRule::Data,
    },
    ShippedFunction {
        name: "sha256",
        summary: "Computes SHA-256 digests",
        parameters: &[],
        output: FunctionOutput::Result,
        run: digest::run_sha256,
        is_linked: true,
        reduction: ReductionRule::Digests,
    },
    ShippedFunction {
        name: "blake3",
        summary: "Computes BLAKE3 digests, of striped files too",
        parameters: &[],
        output: FunctionOutput::Result,
        run: digest::run_blake3,
        is_linked: true,
        reduction: ReductionRule::Digests,
    },
    ShippedFunction {
        name: "compress",
        summary: "Compresses files",
        parameters: &[
            parameter("format", "zstd or gzip (default zstd)"),
            parameter("level", "level of gzip, 1 to 9 (default 6)"),
        ],
        output: FunctionOutput::File,
        run: compression::run_compress,
        is_linked: true,
        reduction: ReductionRule::Data,
    },
    ShippedFunction {
        name: "decompress",
        summary: "Decompresses gzip and zstd files",
        parameters: &[
            parameter("format", "zstd or gzip (default: that of the file)"),
            parameter("max-bytes", "longest output of a file, bytes (default 1073741824)"),
        ],
        output: FunctionOutput::File,
        run: compression::run_decompress,
        is_linked: true,
        reduction: ReductionRule::Data,
    },
    ShippedFunction {
        name: "copy",
        summary: "Copies objects",
        parameters: &[],
        output: FunctionOutput::Objects,
        run: transform::run_copy,
        is_linked: true,
        reduction: ReductionRule::Outputs,
    },
    ShippedFunction {
        name: "aes",
        summary: "Encrypts or decrypts with AES-128 in counter mode",
        parameters: &[
            FunctionParameter {
                name: "key",
                required: false,
                secret: true,
                is_switch: false,
                help: "key, 32 hexadecimal digits; send the arguments as secret",
            },
            parameter("key-object", "index of the object with the key, the last one, instead of key"),
            required("iv", "first counter block, 32 hexadecimal digits; never repeat it with a key"),
        ],
        output: FunctionOutput::Objects,
        run: transform::run_aes,
        is_linked: true,
        reduction: ReductionRule::Outputs,
    },
];

/// Returns the shipped function of this name.
#[must_use]
pub fn find_function(name: &str) -> Option<&'static ShippedFunction> {
    SHIPPED_FUNCTIONS.iter().find(|function| function.name == name)
}
