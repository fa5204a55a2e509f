//! Generates the C header and the reference page from the table of calls.
//!
//! `SEALSTONE_WRITE_DOCS=1 cargo test -p sealstone-function-abi header` writes both files.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::string::String;
use std::{format, vec};

use crate::{
    API_MAJOR, API_MINOR, CALLS, CallErrno, CallParameter, CallTransport, FunctionCallRow, ObjectKind,
    ObjectRights, ParameterKind, ReturnKind, limits,
};

const HEADER_START: &str = "\
/* Interface of functions that run on a device.
 *
 * Generated from the table of calls (active/function-abi/src/call.rs); do not edit.
 * A function exports `int64_t osd_main(const osd_call *call)` and is built by
 *
 *     cc -shared -fPIC -O2 -o function.so function.c
 *
 * It returns 0, or a negative error number. Calls return a count or number, or a negative error
 * number. A function has no other way to reach the system: no files, no sockets, no other process.
 */
#ifndef SEALSTONE_OSD_H
#define SEALSTONE_OSD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {
#endif

";

const HEADER_STRUCTURES: &str = "\
/* An object of the call. Its handle is its index in the list of objects. */
typedef struct osd_object {
    uint64_t partition;
    uint64_t number; /* 0 for a partition */
    uint64_t length; /* bytes at the start of the call, as far as the rights show it */
    uint8_t kind;    /* OSD_PARTITION, OSD_COLLECTION or OSD_USER_OBJECT */
    uint8_t rights;  /* OSD_READ and others */
    uint8_t reserved[6];
} osd_object;

/* The call. Addresses are 64 bits wide in every engine; the functions below convert them. */
typedef struct osd_call {
    uint32_t size; /* bytes of this structure; later versions append fields */
    uint16_t api_major;
    uint16_t api_minor;
    uint64_t method_address;
    uint64_t arguments_address;
    uint64_t objects_address;
    uint32_t method_length;
    uint32_t arguments_length;
    uint32_t object_count;
    uint32_t timeout_ms; /* 0: only the limits of the device apply */
    uint64_t result_bytes_max;
    uint64_t reserved;
} osd_call;

/* Returns the method: UTF-8, with a zero byte at its end; empty for the default method. */
static inline const char *osd_method(const osd_call *call) {
    return (const char *)(uintptr_t)call->method_address;
}

/* Returns the arguments; a zero byte follows them. */
static inline const char *osd_arguments(const osd_call *call) {
    return (const char *)(uintptr_t)call->arguments_address;
}

/* Returns the objects. */
static inline const osd_object *osd_objects(const osd_call *call) {
    return (const osd_object *)(uintptr_t)call->objects_address;
}

/* The entry point that a function exports. Without it, `start` is called in the same way. */
int64_t osd_main(const osd_call *call);

";

const HEADER_END: &str = "\
#ifdef __cplusplus
}
#endif

#endif
";

const PAGE_START: &str = "\
# Function API

The calls of a function that runs on a device; generated from the table of calls
(`active/function-abi/src/call.rs`), do not edit. The C header is `active/engine-c/include/osd.h`.
WebAssembly modules import the same names from the module `osd`.

A function exports `osd_main`, which receives the call: method, arguments, objects and limits. A C
function may export `start` instead. It returns 0, or a negative error number, which the caller
receives. Objects are named by handles: the index in the object list of the call, or the value that
`osd_create` or `osd_create_collection` returned. The right of a row is that of its first handle.
The device checks rights, range and expiry on each request. So a revoked capability stops a running
function at its next request; `osd_read` and streams can still return bytes that were read ahead.

In WebAssembly an address and a length are numbers of 32 bits, and `osd_main` receives the address
of the call in its memory. The structure is the same as in C. Buffers of streams are in this memory
as well: [functions in WebAssembly](../how-to/functions-in-webassembly.md).

";

/// Width of a comment line in the header, characters.
const WIDTH: usize = 96;

/// Breaks a text into lines of at most `width` characters.
fn wrap(text: &str, width: usize) -> vec::Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("at least one line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.into());
        }
    }
    lines
}

fn comment(text: &str) -> String {
    let lines = wrap(text, WIDTH - 6);
    match &lines[..] {
        [line] => format!("/* {line} */\n"),
        lines => format!("/* {} */\n", lines.join("\n * ")),
    }
}

fn c_parameter(parameter: &CallParameter) -> String {
    let name = parameter.name;
    match parameter.kind {
        ParameterKind::U32 => format!("uint32_t {name}"),
        ParameterKind::U64 => format!("uint64_t {name}"),
        ParameterKind::I64 => format!("int64_t {name}"),
        ParameterKind::BytesIn => format!("const void *{name}, size_t length"),
        ParameterKind::TextIn => format!("const char *{name}, size_t length"),
        ParameterKind::BytesOut => format!("void *{name}, size_t capacity"),
        ParameterKind::NumbersOut => format!("uint64_t *{name}, size_t capacity"),
        ParameterKind::NumberOut => format!("uint64_t *{name}"),
        ParameterKind::ReadPointerOut => format!("const void **{name}"),
        ParameterKind::WritePointerOut => format!("void **{name}"),
    }
}

fn c_prototype(row: &FunctionCallRow) -> String {
    let parameters: vec::Vec<String> = row.parameters.iter().map(c_parameter).collect();
    let returns = match row.returns {
        ReturnKind::Result => "int64_t",
        ReturnKind::Flag => "int32_t",
    };
    let parameters = if parameters.is_empty() { "void".into() } else { parameters.join(", ") };
    format!("{returns} {}({parameters})", row.name)
}

/// Returns the documentation of a call, with its first version unless every version has it.
fn documentation(row: &FunctionCallRow) -> String {
    match row.since_minor {
        0 => row.doc.into(),
        minor => format!("{} Since version {API_MAJOR}.{minor}.", row.doc),
    }
}

fn right_name(row: &FunctionCallRow) -> &'static str {
    let named = ObjectRights::NAMES.iter().find(|(right, ..)| *right == row.right);
    named.map_or("-", |(_, _, wire)| wire)
}

fn header() -> String {
    let mut text = String::from(HEADER_START);
    let _ = write!(
        text,
        "/* Version of this interface. */\n#define OSD_API_MAJOR {API_MAJOR}\n#define OSD_API_MINOR {API_MINOR}\n\n"
    );
    text.push_str("/* Types of objects. */\n");
    for (kind, name) in ObjectKind::NAMES {
        let _ = writeln!(text, "#define {name} 0x{:02x}", kind as u8);
    }
    text.push_str("\n/* Rights of a handle. */\n");
    for (right, name, _) in ObjectRights::NAMES {
        let _ = writeln!(text, "#define {name} 0x{:02x}", right.bits());
    }
    text.push_str("\n/* Error numbers, with a minus sign in results. */\n");
    for &error in CallErrno::ALL {
        let _ = writeln!(text, "#define OSD_{} {} /* {} */", error.symbol(), error as i32, error.doc());
    }
    text.push_str("\n/* Levels of log lines. */\n");
    text.push_str("#define OSD_LOG_ERROR 1\n#define OSD_LOG_WARNING 2\n#define OSD_LOG_INFO 3\n\n");
    text.push_str("/* Limits. */\n");
    for (name, value) in constants() {
        let _ = writeln!(text, "#define {name} {value}");
    }
    text.push('\n');
    text.push_str(HEADER_STRUCTURES);
    for row in CALLS {
        text.push_str(&comment(&documentation(row)));
        let _ = write!(text, "{};\n\n", c_prototype(row));
    }
    text.push_str(HEADER_END);
    text
}

fn constants() -> [(&'static str, u64); 8] {
    [
        ("OSD_BUFFER_BYTES", u64::from(limits::BUFFER_BYTES)),
        ("OSD_REQUEST_BYTES_MAX", u64::from(limits::REQUEST_BYTES_MAX)),
        ("OSD_ARGUMENT_BYTES_MAX", limits::ARGUMENT_BYTES_MAX as u64),
        ("OSD_OBJECTS_MAX", limits::OBJECTS_MAX as u64),
        ("OSD_ATTRIBUTE_BYTES_MAX", u64::from(limits::ATTRIBUTE_BYTES_MAX)),
        ("OSD_LOG_LINE_BYTES_MAX", u64::from(limits::LOG_LINE_BYTES_MAX)),
        ("OSD_LIST_ENTRIES_MAX", u64::from(limits::LIST_ENTRIES_MAX)),
        ("OSD_STREAMS_MAX", limits::STREAMS_MAX as u64),
    ]
}

fn page() -> String {
    let mut text = String::from(PAGE_START);
    let _ = write!(text, "Version {API_MAJOR}.{API_MINOR}.\n\n");
    let sections: [(&str, &str, fn(&CallTransport) -> bool); 2] = [
        ("Calls", "", |transport| *transport != CallTransport::Stream),
        (
            "Streams",
            "Streams overlap the work of the function with reads and writes in order. Functions in C and \
             WebAssembly call them; the SDKs for Rust, Java and Python use them.",
            |transport| *transport == CallTransport::Stream,
        ),
    ];
    for (title, about, is_here) in sections {
        let _ = write!(text, "## {title}\n\n");
        if !about.is_empty() {
            let _ = write!(text, "{}\n\n", wrap(about, 100).join("\n"));
        }
        text.push_str("| call | right | description |\n|---|---|---|\n");
        for row in CALLS.iter().filter(|row| is_here(&row.transport)) {
            let _ =
                writeln!(text, "| `{}` | {} | {} |", c_prototype(row), right_name(row), documentation(row));
        }
        text.push('\n');
    }
    text.push_str("## Errors\n\n| number | symbol | meaning |\n|---|---|---|\n");
    for &error in CallErrno::ALL {
        let _ = writeln!(text, "| {} | {} | {} |", error as i32, error.symbol(), error.doc());
    }
    text.push_str("\n## Limits\n\n| constant | value |\n|---|---|\n");
    for (name, value) in constants() {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    text
}

fn check(file: &str, content: &str) {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../..", file].iter().collect();
    if std::env::var_os("SEALSTONE_WRITE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("create the folder");
        std::fs::write(&path, content).expect("write the file");
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == content, "{file} is out of date: run this test with SEALSTONE_WRITE_DOCS=1");
}

#[test]
fn c_header_matches_table() {
    check("active/engine-c/include/osd.h", &header());
}

#[test]
fn function_reference_matches_table() {
    check("docs/reference/function-api.md", &page());
}

/// Returns the prototype in Rust, in the form that [`prototypes_of`] gives to source text.
fn rust_prototype(row: &FunctionCallRow) -> String {
    let parameter = |parameter: &CallParameter| {
        let name = parameter.name;
        match parameter.kind {
            ParameterKind::U32 => format!("{name}: u32"),
            ParameterKind::U64 => format!("{name}: u64"),
            ParameterKind::I64 => format!("{name}: i64"),
            ParameterKind::BytesIn => format!("{name}: *const c_void, length: usize"),
            ParameterKind::TextIn => format!("{name}: *const c_char, length: usize"),
            ParameterKind::BytesOut => format!("{name}: *mut c_void, capacity: usize"),
            ParameterKind::NumbersOut => format!("{name}: *mut u64, capacity: usize"),
            ParameterKind::NumberOut => format!("{name}: *mut u64"),
            ParameterKind::ReadPointerOut => format!("{name}: *mut *const c_void"),
            ParameterKind::WritePointerOut => format!("{name}: *mut *mut c_void"),
        }
    };
    let parameters: vec::Vec<String> = row.parameters.iter().map(parameter).collect();
    let returns = match row.returns {
        ReturnKind::Result => "i64",
        ReturnKind::Flag => "i32",
    };
    format!("fn {}({}) -> {returns}", row.name, parameters.join(", "))
}

/// Returns the prototypes of functions `osd_…` in a source file, each in one line.
fn prototypes_of(file: &str) -> vec::Vec<String> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", file].iter().collect();
    let source = std::fs::read_to_string(path).expect("a source file of the workspace");
    let prototypes = source.split("fn osd_").skip(1).filter_map(|text| {
        let end = text.find([';', '{'])?;
        let words: vec::Vec<&str> = text[..end].split_whitespace().collect();
        let line = words.join(" ").replace("( ", "(").replace(", )", ")");
        Some(format!("fn osd_{line}"))
    });
    prototypes.collect()
}

/// The SDK in Rust, and the program that exports the calls, have the types of the C header.
#[test]
fn rust_prototypes_match_table() {
    let expected: vec::Vec<String> = CALLS.iter().map(rust_prototype).collect();
    for file in ["engine-c/src/calls.rs", "fn/src/engine.rs"] {
        let mut found = prototypes_of(file);
        // The SDK has no type of C for characters.
        found.iter_mut().for_each(|line| *line = line.replace("text: *const u8", "text: *const c_char"));
        assert_eq!(found, expected, "{file}");
    }
}
