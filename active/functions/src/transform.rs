//! `copy` and the paper's `aes`: functions that write an output object for each input object.
//!
//! Objects of the call are pairs: object 0 is read and object 1 written, object 2 is read and
//! object 3 written. Input and output of a pair have the same geometry.

use aes::Aes128;
use ctr::Ctr128BE;
use ctr::cipher::{KeyIvInit as _, StreamCipher as _, StreamCipherSeek as _};
use sealstone_function_host::{CHUNK_BYTES, FunctionCall, FunctionErrno, FunctionFailure, StripeUnit};
use zeroize::Zeroizing;

use crate::result::{OutputLine, ResultLine, emit};

/// Runs `copy`.
pub fn run_copy(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    call.arguments()?.allow_only(&["stripe."])?;
    transform(call, |_, _| Ok(()))
}

/// Runs `aes`: AES-128 in counter mode, which encrypts and decrypts.
pub fn run_aes(call: &mut FunctionCall<'_>) -> Result<(), FunctionFailure> {
    let arguments = call.arguments()?;
    arguments.allow_only(&["key", "iv", "stripe."])?;
    let (mut key, mut counter) = (Zeroizing::new([0; 16]), [0; 16]);
    arguments.hex("key", &mut *key)?;
    arguments.hex("iv", &mut counter)?;
    let mut cipher = Ctr128BE::<Aes128>::new((&*key).into(), (&counter).into());
    transform(call, |offset, data| {
        let failed = |_| FunctionFailure::new(FunctionErrno::TOO_LARGE, "file is too long for its counter");
        cipher.try_seek(offset).map_err(failed)?;
        cipher.try_apply_keystream(data).map_err(failed)
    })
}

/// Reads each input, changes its bytes by their offset in the file, and writes the output.
fn transform(
    call: &mut FunctionCall<'_>,
    mut change: impl FnMut(u64, &mut [u8]) -> Result<(), FunctionFailure>,
) -> Result<(), FunctionFailure> {
    let objects = call.object_count();
    if !objects.is_multiple_of(2) {
        let message = format!("{objects} objects; expected pairs of an input and an output");
        return Err(FunctionFailure::invalid(message));
    }
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
                arguments += &format!("stripe.{}={unit},{width},{index},{}\0", 2 * index, file.len());
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
