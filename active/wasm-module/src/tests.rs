//! Tests of the checks: a valid module, and modules with one violation each.

use alloc::string::ToString as _;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use sealstone_function_abi::CALLS;

use super::*;
use crate::limits::{FUNCTIONS_MAX, IMPORTS_MAX, MODULE_BYTES_MAX, PAGES_MAX, TABLE_ENTRIES_MAX, TYPES_MAX};

const PREAMBLE: [u8; 8] = *b"\0asm\x01\0\0\0";

fn leb(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn name(text: &str) -> Vec<u8> {
    [&leb(text.len() as u64)[..], text.as_bytes()].concat()
}

fn section(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number][..], &leb(content.len() as u64), content].concat()
}

fn list(count: usize, entry: &[u8]) -> Vec<u8> {
    [leb(count as u64), entry.repeat(count)].concat()
}

/// The sections of a function that returns 0, each of which a test can replace.
fn sections() -> Vec<(u8, Vec<u8>)> {
    let exports = [&[2][..], &name("memory"), &[2, 0], &name("osd_main"), &[0, 0]].concat();
    vec![
        (1, vec![1, 0x60, 1, 0x7F, 1, 0x7E]),
        (3, vec![1, 0]),
        (5, vec![1, 0, 2]),
        (7, exports),
        (10, vec![1, 4, 0, 0x42, 0, 0x0B]),
    ]
}

fn assemble(sections: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let sections = sections.iter().flat_map(|(number, content)| section(*number, content));
    PREAMBLE.into_iter().chain(sections).collect()
}

/// Returns the error of the module with one section replaced or inserted.
fn refused(number: u8, content: &[u8]) -> ModuleError {
    let mut changed: Vec<_> = sections().into_iter().filter(|(other, _)| *other != number).collect();
    let at = changed.iter().position(|(other, _)| *other > number).unwrap_or(changed.len());
    changed.insert(at, (number, content.to_vec()));
    ModuleSummary::parse(&assemble(&changed)).expect_err("refused")
}

/// Returns an import of a call with a type.
fn import(module: &str, call: &str, kind: u8) -> Vec<u8> {
    [&[1][..], &name(module), &name(call), &[kind, 0]].concat()
}

#[test]
fn smallest_function_is_accepted() {
    let summary = ModuleSummary::parse(&assemble(&sections())).expect("accepted");
    let expected = ModuleSummary {
        entry: EntryPoint::OsdMain,
        functions: 1,
        imports: 0,
        data_segments: 0,
        memory_pages: 2,
        memory_pages_max: None,
        has_initializer: false,
    };
    assert_eq!(summary, expected);
}

#[test]
fn start_is_second_choice_of_entry() {
    let two = [&[3][..], &name("memory"), &[2, 0], &name("start"), &[0, 0], &name("osd_main"), &[0, 0]];
    let mut changed = sections();
    changed[3].1 = two.concat();
    assert_eq!(ModuleSummary::parse(&assemble(&changed)).expect("accepted").entry, EntryPoint::OsdMain);
    changed[3].1 = [&[2][..], &name("memory"), &[2, 0], &name("start"), &[0, 0]].concat();
    assert_eq!(ModuleSummary::parse(&assemble(&changed)).expect("accepted").entry, EntryPoint::Start);
}

#[test]
fn every_call_can_be_imported() {
    let codes = |values: &[ValueType]| -> Vec<u8> {
        let code = |value: &ValueType| {
            (0x60..0x80).find(|code| ValueType::from_code(*code) == Some(*value)).expect("a code")
        };
        [leb(values.len() as u64), values.iter().map(code).collect()].concat()
    };
    let entry = CallSignature::entry_point();
    let types: Vec<CallSignature> =
        core::iter::once(entry).chain(CALLS.iter().map(CallSignature::of_call)).collect();
    let types =
        types.iter().flat_map(|one| [&[0x60][..], &codes(&one.parameters), &codes(&one.results)].concat());
    let imports = CALLS.iter().enumerate().flat_map(|(index, row)| {
        let module = IMPORT_MODULES[index % 2];
        [&name(module)[..], &name(row.name), &[0], &leb(index as u64 + 1)].concat()
    });
    let mut changed = sections();
    changed[0].1 = leb(CALLS.len() as u64 + 1).into_iter().chain(types).collect();
    let imports = leb(CALLS.len() as u64).into_iter().chain(imports).collect();
    changed.insert(1, (2, imports));
    changed[4].1 =
        [&[2][..], &name("memory"), &[2, 0], &name("osd_main"), &[0], &leb(CALLS.len() as u64)].concat();
    let summary = ModuleSummary::parse(&assemble(&changed)).expect("accepted");
    assert_eq!((summary.imports, summary.functions), (CALLS.len() as u32, 1));
}

#[test]
fn unknown_import_is_refused_with_its_name() {
    let wasi = refused(2, &import("wasi_snapshot_preview1", "fd_write", 0));
    assert_eq!(wasi.to_string().split(" is ").next(), Some("import wasi_snapshot_preview1.fd_write"));
    let module = refused(2, &import("other", "osd_read", 0));
    assert!(matches!(module, ModuleError::UnknownImport { .. }), "{module}");
    let memory = refused(2, &import("env", "memory", 2));
    assert_eq!(memory.to_string(), "import env.memory is a memory; only functions can be imported");
    let long = refused(2, &import("osd", &"\n".repeat(5000), 0));
    assert!(long.to_string().len() < 200 && !long.to_string().contains('\n'), "{long}");
}

#[test]
fn import_of_wrong_type_is_refused() {
    let error = refused(2, &import("osd", "osd_cancelled", 0));
    assert_eq!(error.to_string(), "import osd_cancelled has the type (i32) -> (i64), not () -> (i32)");
}

#[test]
fn missing_exports_are_refused() {
    assert_eq!(refused(7, &[0]), ModuleError::NoMemoryExport);
    let memory = [&[1][..], &name("memory"), &[2, 0]].concat();
    assert_eq!(refused(7, &memory), ModuleError::NoEntryPoint);
    assert_eq!(refused(5, &[0]), ModuleError::MemoryCount(0));
    assert_eq!(refused(5, &[2, 0, 1, 0, 1]), ModuleError::MemoryCount(2));
    let mut none = sections();
    none.remove(2);
    assert_eq!(ModuleSummary::parse(&assemble(&none)), Err(ModuleError::MemoryCount(0)));
}

#[test]
fn entry_of_wrong_type_is_refused() {
    let error = refused(1, &[1, 0x60, 0, 0]);
    assert_eq!(error.to_string(), "the entry point osd_main has the type () -> (), not (i32) -> (i64)");
    // An export of a function that does not exist.
    let exports = [&[2][..], &name("memory"), &[2, 0], &name("osd_main"), &[0, 9]].concat();
    assert!(matches!(refused(7, &exports), ModuleError::EntryType { .. }));
    let initializer =
        [&[3][..], &name("memory"), &[2, 0], &name("osd_main"), &[0, 0], &name("_initialize"), &[0, 0]];
    assert!(matches!(refused(7, &initializer.concat()), ModuleError::EntryType { name: "_initialize", .. }));
}

#[test]
fn limits_plus_one_are_refused() {
    let count = |section, count: u32| ModuleError::Count { section, count, limit: count - 1 };
    let types = list(TYPES_MAX as usize + 1, &[0x60, 0, 0]);
    assert_eq!(refused(1, &types), count(SectionKind::Types, TYPES_MAX + 1));
    let functions = list(FUNCTIONS_MAX as usize + 1, &[0]);
    assert_eq!(refused(3, &functions), count(SectionKind::Functions, FUNCTIONS_MAX + 1));
    let million = refused(3, &list(1_000_000, &[0]));
    assert_eq!(million.to_string(), "1000000 functions, at most 50000");
    assert_eq!(refused(2, &leb(u64::from(IMPORTS_MAX) + 1)), count(SectionKind::Imports, IMPORTS_MAX + 1));
    let table = [&[1, 0x70, 0][..], &leb(TABLE_ENTRIES_MAX + 1)].concat();
    assert!(matches!(refused(4, &table), ModuleError::TableEntries { .. }));
    let memory = [&[1, 0][..], &leb(PAGES_MAX + 1)].concat();
    assert!(matches!(refused(5, &memory), ModuleError::MemoryPages { .. }));
    for (number, section) in [
        (4, SectionKind::Tables),
        (6, SectionKind::Globals),
        (7, SectionKind::Exports),
        (9, SectionKind::Elements),
    ] {
        let error = refused(number, &leb(u64::from(u32::MAX)));
        assert!(matches!(error, ModuleError::Count { section: found, .. } if found == section), "{error}");
    }
    let long = vec![0; MODULE_BYTES_MAX + 1];
    assert_eq!(ModuleSummary::parse(&long), Err(ModuleError::Length(long.len())));
    let body = [&[1][..], &leb(1 << 21), &vec![0; 1 << 21]].concat();
    assert!(matches!(refused(10, &body), ModuleError::FunctionBytes { function: 0, .. }));
    assert!(matches!(refused(1, &[1, 0x60, 0xFF, 0x7F]), ModuleError::TypeValues { .. }));
}

#[test]
fn unsupported_features_are_named() {
    let component = ModuleSummary::parse(b"\0asm\x0d\0\x01\0").expect_err("refused");
    assert_eq!(component, ModuleError::Extension(ModuleExtension::Components));
    for (flags, extension) in
        [(3, ModuleExtension::Threads), (4, ModuleExtension::Memory64), (8, ModuleExtension::PageSizes)]
    {
        assert_eq!(refused(5, &[1, flags, 1, 2]), ModuleError::Extension(extension));
    }
    assert_eq!(refused(13, &[0]), ModuleError::Extension(ModuleExtension::Exceptions));
    let structure = refused(1, &[1, 0x5F, 0]);
    assert_eq!(structure, ModuleError::Extension(ModuleExtension::GarbageCollection));
    assert_eq!(ModuleSummary::parse(b"\0asm\x02\0\0\0"), Err(ModuleError::Version(2)));
    assert_eq!(ModuleSummary::parse(b"\x7fELF"), Err(ModuleError::NotWebAssembly));
}

#[test]
fn sections_out_of_order_are_refused() {
    let mut changed = sections();
    changed.swap(1, 2);
    assert!(matches!(ModuleSummary::parse(&assemble(&changed)), Err(ModuleError::Order { number: 3, .. })));
    let mut twice = sections();
    twice.insert(1, twice[0].clone());
    assert!(matches!(ModuleSummary::parse(&assemble(&twice)), Err(ModuleError::Order { number: 1, .. })));
    assert!(matches!(refused(14, &[]), ModuleError::UnknownSection { number: 14, .. }));
    assert_eq!(refused(10, &[0]), ModuleError::BodyCount { functions: 1, bodies: 0 });
}

#[test]
fn every_truncation_is_refused() {
    let module = assemble(&sections());
    for length in 0..module.len() {
        assert!(ModuleSummary::parse(&module[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn overlong_numbers_are_refused() {
    assert!(matches!(refused(3, &[0xFF, 0xFF, 0xFF, 0xFF, 0x1F]), ModuleError::Malformed(_)));
    assert!(matches!(refused(3, &[0x80, 0x80, 0x80, 0x80, 0x80, 0x00]), ModuleError::Malformed(_)));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let module: Vec<u8> = PREAMBLE.into_iter().chain(bytes).collect();
        let _ = ModuleSummary::parse(&module);
    }

    #[test]
    fn changed_byte_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut module = assemble(&sections());
        let at = at.index(module.len());
        module[at] = byte;
        let _ = ModuleSummary::parse(&module);
    }
}
