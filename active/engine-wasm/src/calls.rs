//! The calls of the interface, as imports of modules.
//!
//! Contract: each row of the table of calls is an import of this name and type. A call never traps;
//! an address outside the memory of the function is the error `EINVAL`.

use sealstone_function_abi::CallErrno;
use sealstone_function_abi::limits::LIST_ENTRIES_MAX;
use sealstone_function_ring::{EngineRing, StreamId};
use sealstone_wasm_module::IMPORT_MODULES;
use wasmtime::{Linker, Result};

use crate::guest::{
    CallState, CallingGuest, check_store, guest_range, open_buffered, store_value, with_memory,
};

/// Bytes of a number.
const NUMBER_BYTES: usize = size_of::<u64>();
/// Bytes of an address.
const ADDRESS_BYTES: usize = size_of::<u32>();

/// Converts an outcome to the result of a call: a number, or a negative error number.
fn result<T: TryInto<i64>>(outcome: Result<T, CallErrno>) -> i64 {
    let number = outcome.and_then(|value| value.try_into().map_err(|_| CallErrno::TooLarge));
    number.unwrap_or_else(CallErrno::result)
}

fn unit(outcome: Result<(), CallErrno>) -> i64 {
    result(outcome.map(|()| 0))
}

/// Runs `body` with bytes of the function to read.
fn with_bytes<T>(
    guest: &mut CallingGuest<'_>,
    address: u32,
    length: u32,
    body: impl FnOnce(&mut CallState, &[u8]) -> Result<T, CallErrno>,
) -> Result<T, CallErrno> {
    with_memory(guest, |memory, state| {
        let range = guest_range(memory, address, length.into())?;
        body(state, &memory[range])
    })
}

/// Runs `body` with bytes of the function to fill.
fn with_buffer<T>(
    guest: &mut CallingGuest<'_>,
    address: u32,
    capacity: u32,
    body: impl FnOnce(&mut CallState, &mut [u8]) -> Result<T, CallErrno>,
) -> Result<T, CallErrno> {
    with_memory(guest, |memory, state| {
        let range = guest_range(memory, address, capacity.into())?;
        body(state, &mut memory[range])
    })
}

/// Adds all calls to a linker, once for each module that functions can import from.
pub(crate) fn define(linker: &mut Linker<CallState>) -> Result<()> {
    for module in IMPORT_MODULES {
        define_objects(linker, module)?;
        define_collections(linker, module)?;
        define_run(linker, module)?;
        define_streams(linker, module)?;
    }
    Ok(())
}

/// A call with a collection and another number.
type CollectionCall = fn(&mut EngineRing, u32, u32) -> i64;

const COLLECTION_CALLS: [(&str, CollectionCall); 4] = [
    ("osd_remove_collection", |ring, collection, force| unit(ring.remove_collection(collection, force))),
    ("osd_add_member", |ring, collection, object| unit(ring.add_member(collection, object))),
    ("osd_remove_member", |ring, collection, object| unit(ring.remove_member(collection, object))),
    ("osd_is_member", |ring, collection, object| result(ring.is_member(collection, object))),
];

/// Adds the calls that work on a collection.
fn define_collections(linker: &mut Linker<CallState>, module: &str) -> Result<()> {
    linker.func_wrap(
        module,
        "osd_create_collection",
        |mut guest: CallingGuest<'_>, collection: u32, number: u32| {
            result(create(&mut guest, number, |ring| ring.create_collection(collection)))
        },
    )?;
    for (name, call) in COLLECTION_CALLS {
        linker.func_wrap(module, name, move |mut guest: CallingGuest<'_>, collection: u32, other: u32| {
            call(&mut guest.data_mut().ring, collection, other)
        })?;
    }
    Ok(())
}

/// Adds the calls that work on an object.
fn define_objects(linker: &mut Linker<CallState>, module: &str) -> Result<()> {
    linker.func_wrap(
        module,
        "osd_read",
        |mut guest: CallingGuest<'_>, object: u32, offset: u64, buffer: u32, capacity: u32| {
            result(with_buffer(&mut guest, buffer, capacity, |state, buffer| {
                state.ring.read(object, offset, buffer)
            }))
        },
    )?;
    linker.func_wrap(
        module,
        "osd_write",
        |mut guest: CallingGuest<'_>, object: u32, offset: u64, data: u32, length: u32| {
            result(with_bytes(&mut guest, data, length, |state, data| state.ring.write(object, offset, data)))
        },
    )?;
    linker.func_wrap(
        module,
        "osd_append",
        |mut guest: CallingGuest<'_>, object: u32, data: u32, length: u32| {
            result(with_bytes(&mut guest, data, length, |state, data| state.ring.append(object, data)))
        },
    )?;
    linker.func_wrap(
        module,
        "osd_punch",
        |mut guest: CallingGuest<'_>, object: u32, offset: u64, length: u64| {
            unit(guest.data_mut().ring.punch(object, offset, length))
        },
    )?;
    linker.func_wrap(
        module,
        "osd_clear",
        |mut guest: CallingGuest<'_>, object: u32, offset: u64, length: u64| {
            unit(guest.data_mut().ring.clear(object, offset, length))
        },
    )?;
    linker.func_wrap(module, "osd_length", |mut guest: CallingGuest<'_>, object: u32| {
        result(guest.data_mut().ring.length(object))
    })?;
    linker.func_wrap(
        module,
        "osd_get_attribute",
        |mut guest: CallingGuest<'_>, object: u32, page: u32, number: u32, buffer: u32, capacity: u32| {
            result(with_buffer(&mut guest, buffer, capacity, |state, buffer| {
                state.ring.get_attribute(object, page, number, buffer)
            }))
        },
    )?;
    linker.func_wrap(
        module,
        "osd_set_attribute",
        |mut guest: CallingGuest<'_>, object: u32, page: u32, number: u32, data: u32, length: u32| {
            unit(with_bytes(&mut guest, data, length, |state, data| {
                state.ring.set_attribute(object, page, number, data)
            }))
        },
    )?;
    linker.func_wrap(
        module,
        "osd_list",
        |mut guest: CallingGuest<'_>, object: u32, after: u64, numbers: u32, capacity: u32| {
            result(list(&mut guest, object, after, numbers, capacity))
        },
    )?;
    linker.func_wrap(module, "osd_create", |mut guest: CallingGuest<'_>, partition: u32, number: u32| {
        result(create(&mut guest, number, |ring| ring.create(partition)))
    })?;
    linker.func_wrap(module, "osd_remove", |mut guest: CallingGuest<'_>, object: u32| {
        unit(guest.data_mut().ring.remove(object))
    })?;
    linker.func_wrap(module, "osd_flush", |mut guest: CallingGuest<'_>, object: u32| {
        unit(guest.data_mut().ring.flush(object))
    })?;
    Ok(())
}

/// Creates an object, and stores its number at an address of the function.
fn create(
    guest: &mut CallingGuest<'_>,
    number: u32,
    create: impl FnOnce(&mut EngineRing) -> Result<(u32, u64), CallErrno>,
) -> Result<u32, CallErrno> {
    with_memory(guest, |memory, state| {
        check_store(memory, number, NUMBER_BYTES)?;
        let (handle, created) = create(&mut state.ring)?;
        store_value(memory, number, &created.to_le_bytes())?;
        Ok(handle)
    })
}

fn list(
    guest: &mut CallingGuest<'_>,
    object: u32,
    after: u64,
    numbers: u32,
    capacity: u32,
) -> Result<usize, CallErrno> {
    with_memory(guest, |memory, state| {
        let range = guest_range(memory, numbers, u64::from(capacity) * NUMBER_BYTES as u64)?;
        let mut listed = vec![0; capacity.min(LIST_ENTRIES_MAX) as usize];
        let count = state.ring.list(object, after, &mut listed)?;
        for (bytes, number) in memory[range].chunks_exact_mut(NUMBER_BYTES).zip(&listed[..count]) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        Ok(count)
    })
}

/// Adds the calls that concern the run.
fn define_run(linker: &mut Linker<CallState>, module: &str) -> Result<()> {
    linker.func_wrap(module, "osd_result", |mut guest: CallingGuest<'_>, data: u32, length: u32| {
        unit(with_bytes(&mut guest, data, length, |state, data| state.ring.result(data)))
    })?;
    linker.func_wrap(
        module,
        "osd_log",
        |mut guest: CallingGuest<'_>, level: u32, text: u32, length: u32| {
            unit(with_bytes(&mut guest, text, length, |state, text| state.ring.log(level, text)))
        },
    )?;
    linker.func_wrap(module, "osd_progress", |mut guest: CallingGuest<'_>, done: u64, total: u64| {
        unit(guest.data_mut().ring.progress(done, total))
    })?;
    linker.func_wrap(module, "osd_cancelled", |guest: CallingGuest<'_>| {
        i32::from(guest.data().ring.is_cancelled())
    })?;
    linker.func_wrap(module, "osd_clock", |guest: CallingGuest<'_>| {
        result(Ok::<_, CallErrno>(guest.data().ring.clock_ms()))
    })?;
    Ok(())
}

/// Adds the calls of streams, whose buffers are in the memory of the function.
fn define_streams(linker: &mut Linker<CallState>, module: &str) -> Result<()> {
    linker.func_wrap(
        module,
        "osd_reader_open",
        |mut guest: CallingGuest<'_>, object: u32, offset: u64, length: u64| {
            result(open_buffered(&mut guest, false, |ring| ring.open_reader(object, offset, length)))
        },
    )?;
    linker.func_wrap(module, "osd_reader_next", |mut guest: CallingGuest<'_>, reader: i64, data: u32| {
        result(with_memory(&mut guest, |memory, state| {
            check_store(memory, data, ADDRESS_BYTES)?;
            let (address, length) = state.read_next(memory, StreamId::from_number(reader))?;
            store_value(memory, data, &address.to_le_bytes())?;
            Ok(length)
        }))
    })?;
    linker.func_wrap(module, "osd_reader_close", |mut guest: CallingGuest<'_>, reader: i64| {
        unit(guest.data_mut().close_stream(StreamId::from_number(reader), false))
    })?;
    linker.func_wrap(
        module,
        "osd_writer_open",
        |mut guest: CallingGuest<'_>, object: u32, offset: u64| {
            result(open_buffered(&mut guest, true, |ring| ring.open_writer(object, offset)))
        },
    )?;
    linker.func_wrap(
        module,
        "osd_writer_buffer",
        |mut guest: CallingGuest<'_>, writer: i64, data: u32| {
            result(with_memory(&mut guest, |memory, state| {
                check_store(memory, data, ADDRESS_BYTES)?;
                let (address, capacity) = state.write_buffer(StreamId::from_number(writer))?;
                store_value(memory, data, &address.to_le_bytes())?;
                Ok(capacity)
            }))
        },
    )?;
    linker.func_wrap(
        module,
        "osd_writer_commit",
        |mut guest: CallingGuest<'_>, writer: i64, length: u64| {
            unit(with_memory(&mut guest, |memory, state| {
                state.commit_buffer(memory, StreamId::from_number(writer), length)
            }))
        },
    )?;
    linker.func_wrap(module, "osd_writer_close", |mut guest: CallingGuest<'_>, writer: i64| {
        unit(guest.data_mut().close_stream(StreamId::from_number(writer), true))
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use sealstone_function_abi::CALLS;
    use sealstone_wasm_module::{CallSignature, ValueType};
    use wasmtime::{Engine, Module};

    use super::*;

    fn types(values: &[ValueType]) -> String {
        let name = |value: &ValueType| if *value == ValueType::I64 { "i64" } else { "i32" };
        values.iter().map(name).collect::<Vec<_>>().join(" ")
    }

    /// A module that imports every row of the table links, so each one has its name and type.
    #[test]
    fn each_row_of_table_is_defined() {
        let engine = Engine::default();
        let mut linker = Linker::new(&engine);
        define(&mut linker).expect("no name twice");
        for module in IMPORT_MODULES {
            let mut text = "(module".to_owned();
            for row in CALLS {
                let CallSignature { parameters, results } = CallSignature::of_call(row);
                let (parameters, results) = (types(&parameters), types(&results));
                let _ = write!(
                    text,
                    "(import \"{module}\" \"{}\" (func (param {parameters}) (result {results})))",
                    row.name
                );
            }
            text.push(')');
            let bytes = wat::parse_str(&text).expect("a module");
            let module = Module::new(&engine, bytes).expect("a valid module");
            linker.instantiate_pre(&module).expect("all calls are defined");
        }
    }
}
