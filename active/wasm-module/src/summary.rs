//! The pass over the sections of a module.

use alloc::string::String;
use alloc::vec::Vec;

use sealstone_function_abi::find_call;

use crate::limits::{
    DATA_SEGMENTS_MAX, ELEMENT_SEGMENTS_MAX, EXPORTS_MAX, FUNCTION_BYTES_MAX, FUNCTIONS_MAX, GLOBALS_MAX,
    IMPORTS_MAX, MODULE_BYTES_MAX, PAGES_MAX, QUOTED_NAME_CHARS_MAX, TABLE_ENTRIES_MAX, TABLES_MAX,
    TYPE_VALUES_MAX, TYPES_MAX,
};
use crate::reader::SectionReader;
use crate::signature::{CallSignature, ValueType};
use crate::{IMPORT_MODULES, MAGIC, ModuleError, ModuleExtension, SectionKind};

/// The exported function that a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryPoint {
    /// The export `osd_main`.
    OsdMain,
    /// The export `start`, the name in the ASF paper.
    Start,
}

impl EntryPoint {
    /// Both, in the order in which they are searched.
    pub const ALL: [Self; 2] = [Self::OsdMain, Self::Start];

    /// Returns the name of the export.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OsdMain => "osd_main",
            Self::Start => "start",
        }
    }
}

/// A module within all limits, whose imports and exports are those of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleSummary {
    /// The function that a call runs.
    pub entry: EntryPoint,
    /// Number of functions that the module defines.
    pub functions: u32,
    /// Number of imported calls.
    pub imports: u32,
    /// Number of data segments.
    pub data_segments: u32,
    /// Pages of the memory at the start.
    pub memory_pages: u64,
    /// Pages up to which the memory can grow, if the module limits them.
    pub memory_pages_max: Option<u64>,
    /// Whether the module exports `_initialize`, which runs before the entry point.
    pub has_initializer: bool,
}

/// Position of a section in the order of the format; the number of data segments precedes the code.
const fn rank(number: u8) -> Option<(u8, SectionKind)> {
    Some(match number {
        1 => (1, SectionKind::Types),
        2 => (2, SectionKind::Imports),
        3 => (3, SectionKind::Functions),
        4 => (4, SectionKind::Tables),
        5 => (5, SectionKind::Memories),
        6 => (6, SectionKind::Globals),
        7 => (7, SectionKind::Exports),
        8 => (8, SectionKind::Start),
        9 => (9, SectionKind::Elements),
        12 => (10, SectionKind::DataCount),
        10 => (11, SectionKind::Code),
        11 => (12, SectionKind::Data),
        _ => return None,
    })
}

/// Number of the section of exception tags.
const TAG_SECTION: u8 = 13;
/// Version of a core module.
const MODULE_VERSION: u32 = 1;

/// State of the pass over the sections.
#[derive(Default)]
struct ModulePass {
    types: Vec<CallSignature>,
    /// Indices of the types of all functions, imported ones first.
    functions: Vec<u32>,
    imports: u32,
    memories: Vec<(u64, Option<u64>)>,
    entry: Option<(EntryPoint, u32)>,
    exports_memory: bool,
    initializer: Option<u32>,
    data_segments: u32,
    bodies: u32,
}

impl ModuleSummary {
    /// Reads the sections of a module.
    ///
    /// # Errors
    ///
    /// The bytes are no module, exceed a limit, or do not have the interface of a function.
    pub fn parse(module: &[u8]) -> Result<Self, ModuleError> {
        if module.len() > MODULE_BYTES_MAX {
            return Err(ModuleError::Length(module.len()));
        }
        let mut reader = SectionReader::new(module, 0);
        if reader.take(MAGIC.len()).ok() != Some(&MAGIC[..]) {
            return Err(ModuleError::NotWebAssembly);
        }
        let version = reader.take(4)?;
        let version = version.iter().rev().fold(0, |version, byte| version << 8 | u32::from(*byte));
        if version != MODULE_VERSION {
            // The upper half of the version of a component is 1.
            let is_component = version >> 16 == 1;
            return Err(match is_component {
                true => ModuleError::Extension(ModuleExtension::Components),
                false => ModuleError::Version(version),
            });
        }
        let mut pass = ModulePass::default();
        let mut last = 0;
        while !reader.is_at_end() {
            let offset = reader.offset();
            let number = reader.byte()?;
            let length = reader.u32()?;
            let start = reader.offset();
            let content = reader.take(length as usize)?;
            // Custom sections have any position and any content.
            if number == 0 {
                continue;
            }
            if number == TAG_SECTION {
                return Err(ModuleError::Extension(ModuleExtension::Exceptions));
            }
            let (position, kind) = rank(number).ok_or(ModuleError::UnknownSection { number, offset })?;
            if position <= last {
                return Err(ModuleError::Order { number, offset });
            }
            last = position;
            pass.section(kind, SectionReader::new(content, start))?;
        }
        pass.conclude()
    }
}

impl ModulePass {
    fn section(&mut self, kind: SectionKind, mut reader: SectionReader<'_>) -> Result<(), ModuleError> {
        match kind {
            SectionKind::Types => {
                for _ in 0..count(&mut reader, kind, TYPES_MAX)? {
                    self.types.push(function_type(&mut reader)?);
                }
            }
            SectionKind::Imports => {
                self.imports = count(&mut reader, kind, IMPORTS_MAX)?;
                for _ in 0..self.imports {
                    self.import(&mut reader)?;
                }
            }
            SectionKind::Functions => {
                for _ in 0..count(&mut reader, kind, FUNCTIONS_MAX)? {
                    self.functions.push(reader.u32()?);
                }
            }
            SectionKind::Tables => {
                for _ in 0..count(&mut reader, kind, TABLES_MAX)? {
                    table(&mut reader)?;
                }
            }
            SectionKind::Memories => {
                let memories = reader.u32()?;
                if memories != 1 {
                    return Err(ModuleError::MemoryCount(memories));
                }
                self.memories.push(memory(&mut reader)?);
            }
            SectionKind::Exports => {
                for _ in 0..count(&mut reader, kind, EXPORTS_MAX)? {
                    self.export(&mut reader)?;
                }
            }
            SectionKind::Code => {
                self.bodies = count(&mut reader, kind, FUNCTIONS_MAX)?;
                for body in 0..self.bodies {
                    let bytes = reader.u32()?;
                    if bytes > FUNCTION_BYTES_MAX {
                        let function = self.imports.saturating_add(body);
                        return Err(ModuleError::FunctionBytes {
                            function,
                            bytes,
                            limit: FUNCTION_BYTES_MAX,
                        });
                    }
                    reader.take(bytes as usize)?;
                }
            }
            SectionKind::Data => self.data_segments = count(&mut reader, kind, DATA_SEGMENTS_MAX)?,
            // Their entries are expressions, which the compiler validates.
            SectionKind::Globals => drop(count(&mut reader, kind, GLOBALS_MAX)?),
            SectionKind::Elements => drop(count(&mut reader, kind, ELEMENT_SEGMENTS_MAX)?),
            SectionKind::DataCount => drop(count(&mut reader, kind, DATA_SEGMENTS_MAX)?),
            SectionKind::Start => drop(reader.u32()?),
        }
        Ok(())
    }

    fn import(&mut self, reader: &mut SectionReader<'_>) -> Result<(), ModuleError> {
        let module = reader.name()?;
        let name = reader.name()?;
        let at = reader.offset();
        let kind = match reader.byte()? {
            0 => None,
            1 => Some("table"),
            2 => Some("memory"),
            3 => Some("global variable"),
            4 => Some("tag"),
            _ => return Err(ModuleError::Malformed(at)),
        };
        if let Some(kind) = kind {
            return Err(ModuleError::ImportKind { module: quoted(module), name: quoted(name), kind });
        }
        let index = reader.u32()?;
        let call = find_call(name).filter(|_| IMPORT_MODULES.contains(&module));
        let Some(call) = call else {
            return Err(ModuleError::UnknownImport { module: quoted(module), name: quoted(name) });
        };
        let found = self.types.get(index as usize).ok_or(ModuleError::Malformed(at))?;
        let expected = CallSignature::of_call(call);
        if *found != expected {
            return Err(ModuleError::ImportType { name: quoted(name), found: found.clone(), expected });
        }
        self.functions.push(index);
        Ok(())
    }

    fn export(&mut self, reader: &mut SectionReader<'_>) -> Result<(), ModuleError> {
        let name = reader.name()?;
        let at = reader.offset();
        let kind = reader.byte()?;
        let index = reader.u32()?;
        match kind {
            0 => {
                if let Some(entry) = EntryPoint::ALL.into_iter().find(|entry| entry.name() == name)
                    && self.entry.is_none_or(|(found, _)| entry < found)
                {
                    self.entry = Some((entry, index));
                }
                if name == "_initialize" {
                    self.initializer = Some(index);
                }
            }
            2 => self.exports_memory |= name == "memory" && index == 0,
            1 | 3 => {}
            4 => return Err(ModuleError::Extension(ModuleExtension::Exceptions)),
            _ => return Err(ModuleError::Malformed(at)),
        }
        Ok(())
    }

    /// Returns the type of a function; an empty one if an index is out of range.
    fn type_of(&self, function: u32) -> CallSignature {
        let index = self.functions.get(function as usize);
        index.and_then(|index| self.types.get(*index as usize)).cloned().unwrap_or_default()
    }

    fn conclude(self) -> Result<ModuleSummary, ModuleError> {
        let defined = (self.functions.len() as u32).saturating_sub(self.imports);
        if defined != self.bodies {
            return Err(ModuleError::BodyCount { functions: defined, bodies: self.bodies });
        }
        let (memory_pages, memory_pages_max) = *self.memories.first().ok_or(ModuleError::MemoryCount(0))?;
        if !self.exports_memory {
            return Err(ModuleError::NoMemoryExport);
        }
        let (entry, function) = self.entry.ok_or(ModuleError::NoEntryPoint)?;
        let (found, expected) = (self.type_of(function), CallSignature::entry_point());
        if found != expected {
            return Err(ModuleError::EntryType { name: entry.name(), found, expected });
        }
        if let Some(initializer) = self.initializer {
            let (found, expected) = (self.type_of(initializer), CallSignature::default());
            let is_defined = (initializer as usize) < self.functions.len();
            if !is_defined || found != expected {
                return Err(ModuleError::EntryType { name: "_initialize", found, expected });
            }
        }
        Ok(ModuleSummary {
            entry,
            functions: defined,
            imports: self.imports,
            data_segments: self.data_segments,
            memory_pages,
            memory_pages_max,
            has_initializer: self.initializer.is_some(),
        })
    }
}

fn count(reader: &mut SectionReader<'_>, section: SectionKind, limit: u32) -> Result<u32, ModuleError> {
    let count = reader.u32()?;
    if count > limit { Err(ModuleError::Count { section, count, limit }) } else { Ok(count) }
}

fn function_type(reader: &mut SectionReader<'_>) -> Result<CallSignature, ModuleError> {
    let at = reader.offset();
    match reader.byte()? {
        0x60 => Ok(CallSignature { parameters: values(reader)?, results: values(reader)? }),
        // Structures, arrays, subtypes and recursive groups.
        0x4E..=0x50 | 0x5E | 0x5F => Err(ModuleError::Extension(ModuleExtension::GarbageCollection)),
        _ => Err(ModuleError::Malformed(at)),
    }
}

fn values(reader: &mut SectionReader<'_>) -> Result<Vec<ValueType>, ModuleError> {
    let at = reader.offset();
    let count = reader.u32()?;
    if count > TYPE_VALUES_MAX {
        return Err(ModuleError::TypeValues { count, limit: TYPE_VALUES_MAX });
    }
    let codes = reader.take(count as usize)?;
    let values = codes.iter().map(|code| match code {
        0x63..=0x65 | 0x68..=0x6E | 0x71..=0x74 => {
            Err(ModuleError::Extension(ModuleExtension::GarbageCollection))
        }
        code => ValueType::from_code(*code).ok_or(ModuleError::Malformed(at)),
    });
    values.collect()
}

fn table(reader: &mut SectionReader<'_>) -> Result<(), ModuleError> {
    let at = reader.offset();
    match reader.byte()? {
        0x70 | 0x6F => {}
        // An initial expression begins with 40h, and other types of references are longer.
        0x40 => return Err(ModuleError::Extension(ModuleExtension::TableTypes)),
        0x63..=0x74 => return Err(ModuleError::Extension(ModuleExtension::GarbageCollection)),
        _ => return Err(ModuleError::Malformed(at)),
    }
    let at = reader.offset();
    let flags = reader.byte()?;
    if flags & !1 != 0 {
        return Err(if flags & !7 == 0 {
            ModuleError::Extension(ModuleExtension::TableTypes)
        } else {
            ModuleError::Malformed(at)
        });
    }
    let entries = u64::from(reader.u32()?);
    if entries > TABLE_ENTRIES_MAX {
        return Err(ModuleError::TableEntries { entries, limit: TABLE_ENTRIES_MAX });
    }
    if flags & 1 != 0 {
        reader.u32()?;
    }
    Ok(())
}

fn memory(reader: &mut SectionReader<'_>) -> Result<(u64, Option<u64>), ModuleError> {
    let at = reader.offset();
    let flags = reader.byte()?;
    for (bit, extension) in
        [(2, ModuleExtension::Threads), (4, ModuleExtension::Memory64), (8, ModuleExtension::PageSizes)]
    {
        if flags & bit != 0 {
            return Err(ModuleError::Extension(extension));
        }
    }
    if flags & !1 != 0 {
        return Err(ModuleError::Malformed(at));
    }
    let pages = reader.u64()?;
    let maximum = if flags & 1 != 0 { Some(reader.u64()?) } else { None };
    for pages in [Some(pages), maximum].into_iter().flatten() {
        if pages > PAGES_MAX {
            return Err(ModuleError::MemoryPages { pages, limit: PAGES_MAX });
        }
    }
    Ok((pages, maximum))
}

/// Returns a name for an error: its first characters, without control characters.
fn quoted(name: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    name.chars().take(QUOTED_NAME_CHARS_MAX).map(shown).collect()
}
