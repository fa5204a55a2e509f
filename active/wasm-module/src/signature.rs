//! Types of calls in WebAssembly.

use alloc::vec::Vec;
use core::fmt;

use sealstone_function_abi::{FunctionCallRow, ParameterKind, ReturnKind};

/// A type of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// An integer of 32 bits, or an address.
    I32,
    /// An integer of 64 bits.
    I64,
    /// A floating-point number of 32 bits.
    F32,
    /// A floating-point number of 64 bits.
    F64,
    /// A vector of 128 bits.
    V128,
    /// A reference to a function.
    FuncRef,
    /// A reference to a value of the host.
    ExternRef,
}

impl ValueType {
    /// Returns the type of a code of the binary format.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x7F => Self::I32,
            0x7E => Self::I64,
            0x7D => Self::F32,
            0x7C => Self::F64,
            0x7B => Self::V128,
            0x70 => Self::FuncRef,
            0x6F => Self::ExternRef,
            _ => return None,
        })
    }

    const fn name(self) -> &'static str {
        match self {
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::V128 => "v128",
            Self::FuncRef => "funcref",
            Self::ExternRef => "externref",
        }
    }
}

/// Type of a function: parameters and results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallSignature {
    /// Types of the parameters.
    pub parameters: Vec<ValueType>,
    /// Types of the results.
    pub results: Vec<ValueType>,
}

impl CallSignature {
    /// Returns the type of an entry point: the address of the call, and a status.
    #[must_use]
    pub fn entry_point() -> Self {
        Self { parameters: [ValueType::I32].into(), results: [ValueType::I64].into() }
    }

    /// Returns the type of a call of the table. Addresses and lengths have 32 bits.
    #[must_use]
    pub fn of_call(row: &FunctionCallRow) -> Self {
        let mut parameters = Vec::new();
        for parameter in row.parameters {
            match parameter.kind {
                ParameterKind::U32
                | ParameterKind::NumberOut
                | ParameterKind::ReadPointerOut
                | ParameterKind::WritePointerOut => parameters.push(ValueType::I32),
                ParameterKind::U64 | ParameterKind::I64 => parameters.push(ValueType::I64),
                ParameterKind::BytesIn
                | ParameterKind::BytesOut
                | ParameterKind::TextIn
                | ParameterKind::NumbersOut => parameters.extend([ValueType::I32; 2]),
            }
        }
        let result = match row.returns {
            ReturnKind::Result => ValueType::I64,
            ReturnKind::Flag => ValueType::I32,
        };
        Self { parameters, results: [result].into() }
    }
}

/// Values of a signature that an error shows; others are counted.
const SHOWN_VALUES_MAX: usize = 8;

impl fmt::Display for CallSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (values, separator) in [(&self.parameters, ""), (&self.results, " -> ")] {
            write!(f, "{separator}(")?;
            for (index, value) in values.iter().take(SHOWN_VALUES_MAX).enumerate() {
                let comma = if index == 0 { "" } else { ", " };
                write!(f, "{comma}{}", value.name())?;
            }
            if values.len() > SHOWN_VALUES_MAX {
                write!(f, " and {} more", values.len() - SHOWN_VALUES_MAX)?;
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}
