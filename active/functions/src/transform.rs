//! `copy` and the paper's `aes`: functions that write an output object for each input object.
//!
//! Objects of the call are pairs: object 0 is read and object 1 written, object 2 is read and
//! object 3 written.
//! Contract: input and output of a pair have the same geometry. `aes` never uses a byte of its key
//! stream twice in a call. It reads its key from the last object if the caller names that, so that
//! no argument has the key.

use aes::Aes128;
use ctr::Ctr128BE;
use ctr::cipher::{KeyIvInit as _, StreamCipher as _, StreamCipherSeek as _};
use sealstone_function_host::{
    CHUNK_BYTES, FunctionCall, FunctionErrno, FunctionFailure, StripeGeometry, StripeUnit, decode_hex,
};
use zeroize::Zeroizing;

use crate::result::{OutputLine, ResultLine, emit};

/// Runs `copy`.
pub fn run_copy(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    call.arguments()?.allow_only(&["stripe."])?;
    let objects = call.object_count();
    transform(call, objects, |_, _| Ok(()))
}

/// Reads the key of `aes` from the object that `key-object` names.
fn read_key(call: &mut FunctionCall<'_>, object: u32, key: &mut [u8; 16]) -> Result<(), FunctionFailure> {
    // A key in hexadecimal digits may end in a line feed. One byte more shows a longer object.
    let mut bytes = Zeroizing::new([0u8; 34]);
    let count = call.read(object, 0, &mut *bytes)?;
    let text = bytes[..count].strip_suffix(b"\n").unwrap_or(&bytes[..count]);
    let is_read = match count {
        16 => {
            key.copy_from_slice(&bytes[..16]);
            true
        }
        _ => decode_hex(text, key),
    };
    if is_read {
        return Ok(());
    }
    let message = format!("object {object} is no key: expected 16 bytes, or 32 hexadecimal digits");
    Err(FunctionFailure::new(FunctionErrno::BAD_DATA, message))
}

/// Runs `aes`: AES-128 in counter mode, which encrypts and decrypts.
pub fn run_aes(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    let arguments = call.arguments()?;
    arguments.allow_only(&["key", "key-object", "iv", "stripe."])?;
    let (mut key, mut counter) = (Zeroizing::new([0; 16]), [0; 16]);
    let objects = match arguments.get("key-object") {
        None => {
            arguments.hex("key", &mut *key)?;
            call.object_count()
        }
        Some(_) if arguments.get("key").is_some() => {
            return Err(FunctionFailure::invalid("arguments key and key-object exclude each other"));
        }
        Some(text) => match (text.parse(), call.object_count()) {
            (Ok(object), count) if count > 0 && object == count - 1 => {
                read_key(call, object, &mut key)?;
                object
            }
            (_, count) => {
                let message = format!("argument key-object: expected the last of {count} objects");
                return Err(FunctionFailure::invalid(message));
            }
        },
    };
    arguments.hex("iv", &mut counter)?;
    require_one_file(call, objects)?;
    let mut cipher = Ctr128BE::<Aes128>::new((&*key).into(), (&counter).into());
    transform(call, objects, |offset, data| {
        let failed = |_| FunctionFailure::new(FunctionErrno::TOO_LARGE, "file is too long for its counter");
        cipher.try_seek(offset).map_err(failed)?;
        cipher.try_apply_keystream(data).map_err(failed)
    })
}

/// Refuses inputs that would use the same key stream. The objects of one striped file have
/// different positions in it, and so different parts of the stream.
fn require_one_file(call: &FunctionCall<'_>, objects: u32) -> Result<(), FunctionFailure> {
    let arguments = call.arguments()?;
    let mut inputs: Vec<Option<StripeGeometry>> = Vec::new();
    for object in (0..objects).step_by(2) {
        let geometry = StripeGeometry::from_arguments(&arguments, object)?;
        let shares_stream = |other: &Option<StripeGeometry>| match (geometry, *other) {
            (Some(one), Some(other)) => {
                one.is_whole() || !one.has_same_stripes(&other) || one.index() == other.index()
            }
            _ => true,
        };
        if let Some(other) = inputs.iter().position(shares_stream) {
            let message = format!(
                "objects {} and {object} would be encrypted with the same key stream; call aes once for each \
                 file, with a new iv",
                2 * other
            );
            return Err(FunctionFailure::invalid(message));
        }
        inputs.push(geometry);
    }
    Ok(())
}

/// Refuses a pair whose output has another place in its file than the input.
fn require_same_geometry(call: &FunctionCall<'_>, object: u32) -> Result<(), FunctionFailure> {
    let arguments = call.arguments()?;
    let [input, output] = [object, object + 1].map(|object| {
        let geometry = StripeGeometry::from_arguments(&arguments, object)?;
        Ok::<_, FunctionFailure>(geometry.filter(|geometry| !geometry.is_whole()))
    });
    let (input, output) = (input?, output?);
    if input == output {
        return Ok(());
    }
    let text = |geometry: Option<StripeGeometry>| {
        geometry.map_or_else(|| "one object".to_owned(), |geometry| geometry.to_string())
    };
    let message = format!(
        "object {} ({}) has another geometry than its input, object {object} ({}); the output needs the stripes \
         and the length of the input",
        object + 1,
        text(output),
        text(input)
    );
    Err(FunctionFailure::invalid(message))
}

/// Reads each input of the first objects, changes its bytes by their offset in the file, and writes
/// the output.
fn transform(
    call: &mut FunctionCall<'_>,
    objects: u32,
    mut change: impl FnMut(u64, &mut [u8]) -> Result<(), FunctionFailure>,
) -> Result<(), FunctionFailure> {
    if !objects.is_multiple_of(2) {
        let message = format!("{objects} objects; expected pairs of an input and an output");
        return Err(FunctionFailure::invalid(message));
    }
    // All pairs are checked before the first byte is written.
    (0..objects).step_by(2).try_for_each(|object| require_same_geometry(call, object))?;
    let mut buffer = Zeroizing::new(vec![0; CHUNK_BYTES]);
    for object in (0..objects).step_by(2) {
        let geometry = call.geometry(object)?;
        let mut bytes = 0;
        for unit in geometry.units() {
            bytes += transform_unit(call, object, unit, &mut buffer, &mut change)?;
        }
        emit(call, &ResultLine::Output(OutputLine { object, bytes_in: bytes, bytes_out: bytes }))?;
        call.progress(u64::from(object) + 2, u64::from(objects));
    }
    Ok(())
}

fn transform_unit(
    call: &mut FunctionCall<'_>,
    object: u32,
    unit: StripeUnit,
    buffer: &mut [u8],
    change: &mut impl FnMut(u64, &mut [u8]) -> Result<(), FunctionFailure>,
) -> Result<u64, FunctionFailure> {
    let mut position = 0;
    call.read_ahead(object, unit.object_offset, unit.length);
    while position < unit.length {
        let count = (unit.length - position).min(buffer.len() as u64) as usize;
        let data = &mut buffer[..count];
        call.read_zero_filled(object, unit.object_offset + position, data)?;
        change(unit.file_offset + position, data)?;
        call.write(object + 1, unit.object_offset + position, data)?;
        position += count as u64;
    }
    Ok(position)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sealstone_function_host::{MemoryHost, encode_hex};

    use super::*;

    /// NIST SP 800-38A, F.5.1.
    #[test]
    fn aes_equals_nist_counter_vector() {
        let arguments = b"key=2b7e151628aed2a6abf7158809cf4f3c\0iv=f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff\0";
        let plain =
            [0x6b, 0xc1, 0xbe, 0xe2, 0x2e, 0x40, 0x9f, 0x96, 0xe9, 0x3d, 0x7e, 0x11, 0x73, 0x93, 0x17, 0x2a];
        let mut host = MemoryHost::new(vec![plain.to_vec(), vec![]]);
        FunctionCall::new(&mut host, "", arguments, 2).run(run_aes).unwrap();
        assert_eq!(encode_hex(&host.objects[1]), "874d6191b620e3261bef6864990db6ce");
    }

    #[test]
    fn odd_number_of_objects_is_refused() {
        let mut host = MemoryHost::new(vec![vec![]]);
        let failure = FunctionCall::new(&mut host, "", b"", 1).run(run_copy).unwrap_err();
        assert_eq!(failure.message, "1 objects; expected pairs of an input and an output");
    }

    #[test]
    fn aes_of_two_files_is_refused() {
        let stripes = "stripe.0=4,2,0,8\0stripe.1=4,2,0,8\0";
        let key = "key=000102030405060708090a0b0c0d0e0f\0iv=00000000000000000000000000000001\0";
        let run = |stripes: &str, objects: u32| {
            let mut host = MemoryHost::new(vec![b"text".to_vec(), vec![], b"text".to_vec(), vec![]]);
            let arguments = format!("{key}{stripes}");
            let done = FunctionCall::new(&mut host, "", arguments.as_bytes(), objects).run(run_aes);
            (done.map_err(|failure| failure.message), host.objects[1].is_empty())
        };
        let (refused, is_untouched) = run("", 4);
        assert_eq!(
            refused.unwrap_err(),
            "objects 0 and 2 would be encrypted with the same key stream; call aes once for each file, with a \
             new iv"
        );
        assert!(is_untouched, "nothing was written");
        let same_index = format!("{stripes}stripe.2=4,2,0,8\0stripe.3=4,2,0,8\0");
        let other_file = format!("{stripes}stripe.2=4,2,1,7\0stripe.3=4,2,1,7\0");
        assert!(run(&same_index, 4).0.is_err() && run(&other_file, 4).0.is_err());
        assert_eq!(run(&format!("{stripes}stripe.2=4,2,1,8\0stripe.3=4,2,1,8\0"), 4).0, Ok(()));
        assert_eq!(run("", 2).0, Ok(()));
    }

    #[test]
    fn output_of_other_geometry_is_refused() {
        let input = "stripe.0=4,2,1,8\0";
        for (output, is_refused) in [
            ("stripe.1=4,2,1,8\0", false),
            ("", true),
            ("stripe.1=4,2,0,8\0", true),
            ("stripe.1=4,3,1,8\0", true),
            ("stripe.1=8,2,1,8\0", true),
            ("stripe.1=4,2,1,4\0", true),
        ] {
            let mut host = MemoryHost::new(vec![b"text".to_vec(), b"kept".to_vec()]);
            let arguments = format!("{input}{output}");
            let done = FunctionCall::new(&mut host, "", arguments.as_bytes(), 2).run(run_copy);
            assert_eq!(done.is_err(), is_refused, "{output}");
            assert_eq!(host.objects[1] == b"kept", is_refused, "{output}");
        }
    }

    #[test]
    fn key_of_object_equals_key_of_argument() {
        let iv = "iv=00000000000000000000000000000001\0";
        let run = |arguments: &str, key: &[u8]| {
            let mut host = MemoryHost::new(vec![b"some text".to_vec(), vec![], key.to_vec()]);
            let objects = if key.is_empty() { 2 } else { 3 };
            let done = FunctionCall::new(&mut host, "", arguments.as_bytes(), objects).run(run_aes);
            assert!(!host.log.concat().contains("0a0b"), "a part of the key");
            done.map(|()| host.objects[1].clone()).map_err(|failure| failure.message)
        };
        let digits = "000102030405060708090a0b0c0d0e0f";
        let expected = run(&format!("{iv}key={digits}\0"), b"").unwrap();
        let by_handle = format!("{iv}key-object=2\0");
        let raw: [u8; 16] = core::array::from_fn(|at| at as u8);
        let line = format!("{digits}\n");
        for key in [&raw[..], digits.as_bytes(), line.as_bytes(), digits.to_uppercase().as_bytes()] {
            assert_eq!(run(&by_handle, key), Ok(expected.clone()));
        }
        let no_key = "object 2 is no key: expected 16 bytes, or 32 hexadecimal digits";
        let long = format!("{digits}\n\n");
        for key in [&raw[..15], &digits.as_bytes()[..31], long.as_bytes(), &[b'g'; 32], b"0a0b"] {
            assert_eq!(run(&by_handle, key).unwrap_err(), no_key);
        }
        for object in ["0", "1", "3", "-1", "", "x"] {
            let refused = run(&format!("{iv}key-object={object}\0"), &raw).unwrap_err();
            assert_eq!(refused, "argument key-object: expected the last of 3 objects", "{object}");
        }
        let both = run(&format!("{iv}key={digits}\0key-object=2\0"), &raw);
        assert_eq!(both.unwrap_err(), "arguments key and key-object exclude each other");
        assert_eq!(run(iv, b"").unwrap_err(), "argument key is missing");
    }

    #[test]
    fn key_is_not_in_error_or_log() {
        let mut host = MemoryHost::new(vec![]);
        let arguments = b"key=5ec4e75ec4e7\0iv=00\0";
        let failure = FunctionCall::new(&mut host, "", arguments, 0).run(run_aes).unwrap_err();
        assert_eq!(failure.message, "argument key: expected 32 hexadecimal digits");
        assert!(!host.log.concat().contains("5ec4e7"));
    }

    proptest! {
        /// Objects of a striped file are encrypted as the file is.
        #[test]
        fn striped_aes_equals_aes_of_file(
            file in proptest::collection::vec(any::<u8>(), 0..300),
            unit in 1usize..64,
            width in 2usize..4,
        ) {
            let key = "key=000102030405060708090a0b0c0d0e0f\0iv=ffffffffffffffffffffffffffffffff\0";
            let mut whole = MemoryHost::new(vec![file.clone(), vec![]]);
            FunctionCall::new(&mut whole, "", key.as_bytes(), 2).run(run_aes).unwrap();
            let mut objects = vec![vec![]; 2 * width];
            for (number, part) in file.chunks(unit).enumerate() {
                objects[number % width * 2].extend_from_slice(part);
            }
            let mut arguments = key.to_owned();
            for index in 0..width {
                for object in [2 * index, 2 * index + 1] {
                    arguments += &format!("stripe.{object}={unit},{width},{index},{}\0", file.len());
                }
            }
            let mut host = MemoryHost::new(objects);
            FunctionCall::new(&mut host, "", arguments.as_bytes(), 2 * width as u32).run(run_aes).unwrap();
            let mut joined = vec![];
            for number in 0..file.len().div_ceil(unit) {
                let output = &host.objects[number % width * 2 + 1];
                let start = number / width * unit;
                joined.extend_from_slice(&output[start..output.len().min(start + unit)]);
            }
            prop_assert_eq!(&joined, &whole.objects[1]);
        }
    }
}
