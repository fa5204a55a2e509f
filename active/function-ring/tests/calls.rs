//! Calls of an engine of ours.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sealstone_function_abi::layout::host as region_layout;
use sealstone_function_abi::limits::{ARGUMENT_BYTES_MAX, REQUEST_BYTES_MAX, STREAMS_MAX};
use sealstone_function_abi::{CallDescriptor, CallErrno, OwnedCallDescriptor, RequestBody};
use sealstone_function_ring::{BeginCallError, EngineRing, HostMemory, HostRing, RingOptions, StreamId};

use crate::support::{CALL_LIMIT, FIRST_NUMBER, MemoryDevice, small_ring};

/// Runs an engine for some calls in a thread, with `body` as its function.
fn start_engine<T: Send + 'static>(
    memory: &Arc<HostMemory>,
    calls: usize,
    mut body: impl FnMut(&mut EngineRing, OwnedCallDescriptor) -> (i64, T) + Send + 'static,
) -> thread::JoinHandle<Vec<T>> {
    let files = memory.descriptors().map(|file| file.try_clone_to_owned().expect("a descriptor"));
    thread::spawn(move || {
        let mut ring = EngineRing::attach(files).expect("attach");
        let mut results = Vec::new();
        while results.len() < calls {
            let Some(call) = ring.wait_call().expect("a valid call") else { break };
            let (status, result) = body(&mut ring, call);
            ring.finish_call(status);
            results.push(result);
        }
        results
    })
}

#[test]
fn each_call_reaches_its_object() {
    let (memory, mut host) = small_ring();
    let engine = start_engine(&memory, 1, |ring, call| {
        assert_eq!((&*call.method, &call.arguments[..]), ("all", &b"a=1"[..]));
        assert_eq!(call.objects[1].length(), 5);
        let mut buffer = [0; 16];
        assert_eq!(ring.read(1, 1, &mut buffer), Ok(4));
        assert_eq!(&buffer[..4], b"ello");
        assert_eq!(ring.write(0, 2, b"xyz"), Ok(3));
        assert_eq!(ring.append(0, b"!"), Ok(5));
        assert_eq!(ring.punch(0, 0, 1), Ok(()));
        assert_eq!(ring.length(0), Ok(5));
        assert_eq!(ring.set_attribute(0, 0x10000, 2, b"value"), Ok(()));
        assert_eq!(ring.get_attribute(0, 0x10000, 2, &mut buffer[..2]), Ok(5));
        assert_eq!(&buffer[..2], b"va");
        assert_eq!(ring.create(0), Ok((2, FIRST_NUMBER + 2)));
        let mut numbers = [0; 2];
        assert_eq!(ring.list(0, FIRST_NUMBER, &mut numbers), Ok(2));
        assert_eq!(numbers, [FIRST_NUMBER + 1, FIRST_NUMBER + 2]);
        assert_eq!(ring.remove(2), Ok(()));
        assert_eq!(ring.read(2, 0, &mut buffer), Err(CallErrno::NotFound));
        assert_eq!(ring.read(9, 0, &mut buffer), Err(CallErrno::BadHandle));
        assert_eq!(ring.flush(0), Ok(()));
        assert_eq!(ring.clear(0, u64::MAX, 1), Err(CallErrno::Invalid));
        assert_eq!(ring.clear(0, 4, 2), Ok(()));
        assert_eq!(ring.create_collection(0), Ok((3, FIRST_NUMBER + 3)));
        assert_eq!((ring.add_member(3, 1), ring.add_member(0, 1)), (Ok(()), Err(CallErrno::Invalid)));
        assert_eq!((ring.is_member(3, 1), ring.is_member(3, 0)), (Ok(true), Ok(false)));
        assert_eq!(ring.list(3, 0, &mut numbers), Ok(1));
        assert_eq!(ring.remove_collection(3, 0), Err(CallErrno::NotEmpty));
        assert_eq!(ring.remove_collection(3, 2), Err(CallErrno::Invalid));
        assert_eq!((ring.remove_member(3, 1), ring.add_member(3, 0)), (Ok(()), Ok(())));
        assert_eq!(ring.remove_member(3, 1), Err(CallErrno::NotFound));
        assert_eq!(ring.remove_collection(3, 1), Ok(()));
        assert_eq!(ring.is_member(3, 0), Err(CallErrno::NotFound));
        assert_eq!(ring.result(b"done"), Ok(()));
        assert_eq!(ring.log(2, "warn\u{e9}".as_bytes()), Ok(()));
        assert_eq!(ring.log(4, b"level"), Err(CallErrno::Invalid));
        assert_eq!(ring.progress(3, 10), Ok(()));
        assert_eq!(ring.read(1, u64::MAX, &mut buffer), Err(CallErrno::Invalid));
        assert!(ring.clock_ms() > 1_500_000_000_000 && !ring.is_cancelled());
        (7, ())
    });
    let mut device = MemoryDevice::new(&[b"", b"hello"]);
    assert_eq!(device.run(&mut host, "all", b"a=1"), Ok(7));
    engine.join().expect("no failed assertion");
    assert_eq!(device.objects[0].as_deref(), Some(&b"\0xyz\0\0"[..]));
    assert_eq!(device.attributes[&(0, 0x10000, 2)], b"value");
    assert_eq!((&device.result[..], device.progress, &device.flushed[..]), (&b"done"[..], (3, 10), &[0][..]));
    assert_eq!(device.log, [(2, "warn\u{e9}".to_owned())]);
}

#[test]
fn large_transfers_are_split() {
    let (memory, mut host) = small_ring();
    let bytes: Vec<u8> = (0..REQUEST_BYTES_MAX * 2 + 77).map(|n| (n % 251) as u8).collect();
    let expected = bytes.clone();
    let engine = start_engine(&memory, 1, move |ring, _| {
        let mut read = vec![0; expected.len() + 10];
        assert_eq!(ring.read(0, 0, &mut read), Ok(expected.len()));
        assert!(read[..expected.len()] == expected);
        assert_eq!(ring.write(1, 0, &expected), Ok(expected.len()));
        assert_eq!(ring.append(1, &expected), Err(CallErrno::TooLarge));
        (0, ())
    });
    let mut device = MemoryDevice::new(&[&bytes, b""]);
    assert_eq!(device.run(&mut host, "", b""), Ok(0));
    engine.join().expect("no failed assertion");
    assert!(device.objects[1] == device.objects[0]);
}

/// Reads of 1 MiB that continue one another, and what the host is asked for before the last one.
#[test]
fn continued_reads_are_requested_ahead() {
    let (memory, mut host) = small_ring();
    let bytes: Vec<u8> = (0..REQUEST_BYTES_MAX * 2 + 77).map(|n| (n % 251) as u8).collect();
    let expected = bytes.clone();
    let engine = start_engine(&memory, 2, move |ring, call| {
        // Sizes that are no multiple of a part.
        let length = if call.method.is_empty() { 1 << 20 } else { 700_001 };
        let (mut part, mut all) = (vec![0; length], Vec::new());
        loop {
            let count = ring.read(0, all.len() as u64, &mut part).expect("a read");
            all.extend_from_slice(&part[..count]);
            if count < length {
                break;
            }
        }
        assert!(all == expected, "{} bytes of {}", all.len(), expected.len());
        // Elsewhere, and at the end.
        assert_eq!(ring.read(0, 5, &mut part[..9]), Ok(9));
        assert_eq!(&part[..9], &expected[5..14]);
        assert_eq!(ring.read(0, expected.len() as u64, &mut part), Ok(0));
        // Streams have the same buffers.
        assert_eq!(ring.read(0, 0, &mut part), Ok(length));
        let readers: Vec<_> = (0..2).map(|_| ring.open_reader(0, 0, u64::MAX).expect("a stream")).collect();
        assert_eq!(ring.read(0, length as u64, &mut part), Ok(length));
        assert!(part == expected[length..2 * length]);
        readers.into_iter().for_each(|reader| ring.close_stream(reader, false).expect("closed"));
        assert_eq!(ring.read(0, 0, &mut part), Ok(length));
        (0, ())
    });
    let mut device = MemoryDevice::new(&[&bytes]);
    assert_eq!(device.run(&mut host, "", b""), Ok(0));
    assert_eq!(device.run(&mut host, "odd", b""), Ok(0));
    engine.join().expect("no failed assertion");
}

#[test]
fn change_discards_bytes_read_ahead() {
    let (memory, mut host) = small_ring();
    let engine = start_engine(&memory, 1, move |ring, _| {
        let mut part = vec![0; 1 << 20];
        for change in 0..4 {
            assert_eq!(ring.read(0, 0, &mut part), Ok(1 << 20), "{change}");
            let byte = change as u8 + 1;
            match change {
                0 => assert_eq!(ring.write(0, 1 << 20, &[byte]), Ok(1)),
                1 => assert_eq!(ring.punch(0, 0, 1).and_then(|()| ring.write(0, 1 << 20, &[byte])), Ok(1)),
                2 => {
                    let writer = ring.open_writer(0, 1 << 20).expect("a stream");
                    assert_eq!(ring.write_stream(writer, &[byte]), Ok(()));
                    ring.close_stream(writer, true).expect("closed");
                }
                _ => assert_eq!(ring.write(0, 1 << 20, &[byte]), Ok(1)),
            }
            assert_eq!(ring.read(0, 1 << 20, &mut part[..1 << 19]), Ok(1 << 19));
            assert_eq!(part[0], byte);
        }
        (0, ())
    });
    let mut device = MemoryDevice::new(&[&vec![0; 8 << 20]]);
    assert_eq!(device.run(&mut host, "", b""), Ok(0));
    engine.join().expect("no failed assertion");
}

/// The host fails a part that was requested ahead: the read that needs it fails, and no other.
#[test]
fn error_of_part_ahead_fails_its_read() {
    let (memory, mut host) = small_ring();
    let engine = start_engine(&memory, 1, |ring, _| {
        let mut part = vec![0; 1 << 20];
        assert_eq!(ring.read(0, 0, &mut part), Ok(1 << 20));
        assert_eq!(ring.read(0, 1 << 20, &mut part), Ok(1 << 20));
        assert_eq!(ring.read(0, 2 << 20, &mut part), Err(CallErrno::InputOutput));
        assert_eq!(ring.read(0, 0, &mut part), Ok(1 << 20));
        (0, ())
    });
    host.begin_call(&CallDescriptor::default()).expect("a valid call");
    loop {
        let request = host.next_request(CALL_LIMIT).expect("no violation").expect("a request");
        let result = match request.body {
            RequestBody::Read { offset, buffer, .. } if offset < 2 << 20 => buffer.length().into(),
            RequestBody::Read { .. } => CallErrno::InputOutput.result(),
            _ => break,
        };
        host.complete(request.cookie, result, 0);
    }
    engine.join().expect("no failed assertion");
}

#[test]
fn error_after_first_part_is_reported() {
    let (memory, mut host) = small_ring();
    let engine = start_engine(&memory, 1, |ring, _| {
        let mut buffer = vec![0; REQUEST_BYTES_MAX as usize + 1];
        assert_eq!(ring.read(0, 0, &mut buffer), Err(CallErrno::InputOutput));
        (0, ())
    });
    let call = CallDescriptor::default();
    host.begin_call(&call).expect("a valid call");
    loop {
        let request = host.next_request(CALL_LIMIT).expect("no violation").expect("a request");
        let result = match request.body {
            RequestBody::Read { offset, buffer, .. } if offset < REQUEST_BYTES_MAX.into() => {
                buffer.length().into()
            }
            RequestBody::Read { .. } => CallErrno::InputOutput.result(),
            _ => break,
        };
        host.complete(request.cookie, result, 0);
    }
    engine.join().expect("no failed assertion");
}

/// Copies bytes of the heap by reading the memory file, as a test has no pointer.
fn heap_bytes(file: &impl std::os::fd::AsFd, range: sealstone_function_abi::HeapRange) -> Vec<u8> {
    let mut bytes = vec![0; range.length() as usize];
    let offset = sealstone_function_abi::layout::engine::HEAP as u64 + range.offset();
    rustix::io::pread(file, &mut bytes, offset).expect("read the memory file");
    bytes
}

#[test]
fn streams_copy_an_object() {
    let (memory, mut host) = small_ring();
    let bytes: Vec<u8> = (0..5_000_000u32).map(|n| (n % 241) as u8).collect();
    let file = memory.descriptors()[0].try_clone_to_owned().expect("a descriptor");
    let engine = start_engine(&memory, 2, move |ring, _| {
        let reader = ring.open_reader(0, 3, u64::MAX).expect("reader");
        let writer = ring.open_writer(1, 0).expect("writer");
        let mut total = 0;
        loop {
            let range = ring.read_next(reader).expect("read");
            if range.length() == 0 {
                break;
            }
            let part = heap_bytes(&file, range);
            total += part.len();
            for piece in part.chunks(700_000) {
                let buffer = ring.write_buffer(writer).expect("buffer");
                assert_eq!(ring.write_buffer(writer), Ok(buffer));
                let offset = sealstone_function_abi::layout::engine::HEAP as u64 + buffer.offset();
                rustix::io::pwrite(&file, piece, offset).expect("write the memory file");
                ring.commit_buffer(writer, piece.len() as u64).expect("commit");
            }
        }
        assert_eq!(ring.read_next(reader).map(|range| range.length()), Ok(0));
        assert_eq!(ring.commit_buffer(writer, 1), Err(CallErrno::Invalid));
        assert_eq!(ring.close_stream(writer, false), Err(CallErrno::BadHandle));
        assert_eq!(ring.close_stream(writer, true), Ok(()));
        assert_eq!(ring.close_stream(writer, true), Err(CallErrno::BadHandle));
        assert_eq!(ring.read_next(StreamId::from_number(-1)), Err(CallErrno::BadHandle));
        (total as i64, ())
    });
    for _ in 0..2 {
        let mut device = MemoryDevice::new(&[&bytes, b""]);
        // The reader stays open; the next call has all buffers again.
        assert_eq!(device.run(&mut host, "", b""), Ok(bytes.len() as i64 - 3));
        assert!(device.objects[1].as_deref() == Some(&bytes[3..]));
    }
    engine.join().expect("no failed assertion");
}

#[test]
fn stream_errors_are_reported_once_known() {
    let (memory, mut host) = small_ring();
    let engine = start_engine(&memory, 1, |ring, _| {
        let reader = ring.open_reader(5, 0, 10).expect("open");
        assert_eq!(ring.read_next(reader), Err(CallErrno::BadHandle));
        assert_eq!(ring.read_next(reader), Err(CallErrno::BadHandle));
        assert_eq!(ring.close_stream(reader, false), Ok(()));
        let writer = ring.open_writer(5, 0).expect("open");
        ring.write_buffer(writer).expect("buffer");
        assert_eq!(ring.commit_buffer(writer, 10), Ok(()));
        assert_eq!(ring.close_stream(writer, true), Err(CallErrno::BadHandle));
        let reader = ring.open_reader(0, 1, u64::MAX).expect("a range to the end of the object");
        assert_eq!(ring.read_next(reader).map(|range| range.length()), Ok(0));
        assert_eq!(ring.close_stream(reader, false), Ok(()));
        // The smallest heap has four buffers besides the transfer area.
        let open: Vec<_> = (0..2).map(|_| ring.open_writer(0, 0).expect("open")).collect();
        assert_eq!(ring.open_writer(0, 0), Err(CallErrno::NoMemory));
        assert!(open.len() < STREAMS_MAX);
        (0, ())
    });
    assert_eq!(MemoryDevice::new(&[b"x"]).run(&mut host, "", b""), Ok(0));
    engine.join().expect("no failed assertion");
}

#[test]
fn requests_beyond_slots_are_busy() {
    let (memory, mut host) = small_ring();
    let engine = start_engine(&memory, 3, |ring, _| {
        let body = RequestBody::Length { object: 0 };
        let tickets: Vec<_> = (0..64).map(|_| ring.submit(&body).expect("a free slot")).collect();
        assert_eq!(ring.submit(&body).unwrap_err(), CallErrno::Busy);
        // Completions are found in any order.
        for ticket in tickets.into_iter().rev() {
            assert_eq!(ring.wait(ticket).value, 5);
        }
        for _ in 0..200 {
            assert_eq!(ring.length(0), Ok(5));
        }
        (0, ())
    });
    for _ in 0..3 {
        assert_eq!(MemoryDevice::new(&[b"hello"]).run(&mut host, "", b""), Ok(0));
    }
    engine.join().expect("no failed assertion");
}

#[test]
fn cancel_flag_reaches_running_function() {
    let (memory, mut host) = small_ring();
    let engine = start_engine(&memory, 2, |ring, call| {
        if &*call.method == "wait" {
            while !ring.is_cancelled() {
                thread::yield_now();
            }
        }
        (i64::from(ring.is_cancelled()), ())
    });
    let control = host.control();
    let canceller = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        control.set_cancelled();
    });
    let mut device = MemoryDevice::default();
    assert_eq!(device.run(&mut host, "wait", b""), Ok(1));
    canceller.join().expect("cancel");
    assert_eq!(device.run(&mut host, "next", b""), Ok(0));
    engine.join().expect("no failed assertion");
}

#[test]
fn interrupt_ends_wait_at_once() {
    let (_memory, mut host) = small_ring();
    let control = host.control();
    for _ in 0..100 {
        let control = control.clone();
        let interrupter = thread::spawn(move || control.interrupt());
        let start = Instant::now();
        assert_eq!(host.next_request(Duration::from_secs(600)), Ok(None));
        assert!(start.elapsed() < Duration::from_secs(60));
        interrupter.join().expect("interrupt");
    }
}

#[test]
fn stop_ends_waiting_engine() {
    let (memory, host) = small_ring();
    let engine = start_engine(&memory, 1, |_, _| (0, ()));
    host.control().stop_engine();
    assert!(engine.join().expect("no failed assertion").is_empty());
}

#[test]
fn arguments_are_cleared_after_call() {
    let (memory, mut host) = small_ring();
    let engine = start_engine(&memory, 1, |_, call| (call.arguments.len() as i64, ()));
    assert_eq!(MemoryDevice::default().run(&mut host, "secret", b"key=hunter2"), Ok(11));
    engine.join().expect("no failed assertion");
    let mut region = vec![0; region_layout::REGION_BYTES];
    rustix::io::pread(memory.descriptors()[1], &mut region, 0).expect("read the memory file");
    assert!(!region.windows(7).any(|window| window == b"hunter2" || window == b"secret\0"));
}

#[test]
fn clearing_touches_used_bytes_only() {
    let (memory, mut host) = small_ring();
    let engine = start_engine(&memory, 3, |_, call| (call.arguments.len() as i64, ()));
    let mut run = |arguments: &[u8]| {
        let result = MemoryDevice::default().run(&mut host, "", arguments);
        assert_eq!(result, Ok(arguments.len() as i64));
        let mut region = vec![0; region_layout::REGION_BYTES];
        rustix::io::pread(memory.descriptors()[1], &mut region, 0).expect("read the memory file");
        assert!(region[region_layout::ARGUMENTS..].iter().all(|byte| *byte == 0));
        let file = rustix::fs::fstat(memory.descriptors()[1]).expect("a memory file");
        file.st_blocks as usize * 512
    };
    assert!(run(b"x") < ARGUMENT_BYTES_MAX, "pages of the argument area that no call used");
    run(&[0xFF; ARGUMENT_BYTES_MAX]);
    run(b"x");
    engine.join().expect("no failed assertion");
}

#[test]
fn second_call_needs_end_of_first() {
    let (_memory, mut host) = small_ring();
    let call = CallDescriptor::default();
    host.begin_call(&call).expect("first call");
    assert_eq!(host.begin_call(&call), Err(BeginCallError::CallRuns));
    let (_memory, mut host) = small_ring();
    let arguments = vec![0; 65537];
    let long = CallDescriptor { arguments: &arguments, ..call };
    assert!(matches!(host.begin_call(&long), Err(BeginCallError::Descriptor(_))));
    assert!(!host.is_in_call());
}

#[test]
fn wrong_heap_sizes_are_refused() {
    for heap_bytes in [0, (8 << 20) - 4096, (8 << 20) + 1, (1 << 30) + (1 << 20)] {
        let created = HostMemory::create(RingOptions { heap_bytes, ..RingOptions::default() });
        assert_eq!(created.expect_err("refused").kind(), std::io::ErrorKind::InvalidInput);
    }
}

#[test]
fn polling_sides_exchange_requests() {
    let options = RingOptions { heap_bytes: 8 << 20, spin: Duration::from_micros(20) };
    let memory = Arc::new(HostMemory::create(options).expect("memory files"));
    let mut host = HostRing::new(Arc::clone(&memory));
    let engine = start_engine(&memory, 20, |ring, _| {
        (0..50).for_each(|_| assert_eq!(ring.length(0), Ok(5)));
        (0, ())
    });
    for _ in 0..20 {
        assert_eq!(MemoryDevice::new(&[b"hello"]).run(&mut host, "", b""), Ok(0));
    }
    engine.join().expect("no failed assertion");
}

/// A step of the model.
#[derive(Clone, Debug)]
enum ModelStep {
    Read(u32, u64, usize),
    Write(u32, u64, Vec<u8>),
    Append(u32, Vec<u8>),
    Punch(u32, u64, u64),
    Clear(u32, u64, u64),
    Attribute(u32, u32, Vec<u8>),
    Create,
    Remove(u32),
    Result(Vec<u8>),
}

fn any_step() -> impl Strategy<Value = ModelStep> {
    let object = 0..4u32;
    let bytes = prop::collection::vec(any::<u8>(), 0..5000);
    prop_oneof![
        (object.clone(), 0..9000u64, 0..9000usize).prop_map(|(o, at, n)| ModelStep::Read(o, at, n)),
        (object.clone(), 0..9000u64, bytes.clone()).prop_map(|(o, at, b)| ModelStep::Write(o, at, b)),
        (object.clone(), bytes.clone()).prop_map(|(o, b)| ModelStep::Append(o, b)),
        (object.clone(), 0..9000u64, 0..3000u64).prop_map(|(o, at, n)| ModelStep::Punch(o, at, n)),
        (object.clone(), 0..9000u64, 0..3000u64).prop_map(|(o, at, n)| ModelStep::Clear(o, at, n)),
        (object.clone(), 1..4u32, bytes.clone()).prop_map(|(o, n, b)| ModelStep::Attribute(o, n, b)),
        Just(ModelStep::Create),
        object.prop_map(ModelStep::Remove),
        bytes.prop_map(ModelStep::Result),
    ]
}

/// Applies a step to the model directly; returns what the engine must see.
fn apply(model: &mut MemoryDevice, step: &ModelStep) -> Result<Vec<u8>, CallErrno> {
    fn object(model: &mut MemoryDevice, handle: u32) -> Result<&mut Vec<u8>, CallErrno> {
        match model.objects.get_mut(handle as usize) {
            None => Err(CallErrno::BadHandle),
            Some(object) => object.as_mut().ok_or(CallErrno::NotFound),
        }
    }
    match step {
        ModelStep::Read(handle, offset, length) => {
            if *length == 0 {
                return Ok(Vec::new());
            }
            let bytes = object(model, *handle)?;
            Ok(bytes.iter().skip(*offset as usize).take(*length).copied().collect())
        }
        ModelStep::Write(handle, offset, data) => {
            if !data.is_empty() {
                let bytes = object(model, *handle)?;
                let end = *offset as usize + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*offset as usize..end].copy_from_slice(data);
            }
            Ok(Vec::new())
        }
        ModelStep::Append(handle, data) => {
            object(model, *handle)?.extend_from_slice(data);
            Ok(Vec::new())
        }
        ModelStep::Punch(handle, offset, length) => {
            let bytes = object(model, *handle)?;
            let start = bytes.len().min(*offset as usize);
            let end = bytes.len().min(start + *length as usize);
            bytes.drain(start..end);
            Ok(Vec::new())
        }
        ModelStep::Clear(handle, offset, length) => {
            let bytes = object(model, *handle)?;
            if *length > 0 {
                let (start, end) = (*offset as usize, (offset + length) as usize);
                bytes.resize(bytes.len().max(end), 0);
                bytes[start..end].fill(0);
            }
            Ok(Vec::new())
        }
        ModelStep::Attribute(handle, number, value) => {
            object(model, *handle)?;
            if value.is_empty() {
                model.attributes.remove(&(*handle, 1, *number));
            } else {
                model.attributes.insert((*handle, 1, *number), value.clone());
            }
            Ok(Vec::new())
        }
        ModelStep::Create => {
            model.objects.push(Some(Vec::new()));
            Ok(vec![model.objects.len() as u8 - 1])
        }
        ModelStep::Remove(handle) => {
            object(model, *handle)?;
            model.objects[*handle as usize] = None;
            Ok(Vec::new())
        }
        ModelStep::Result(data) => {
            model.result.extend_from_slice(data);
            Ok(Vec::new())
        }
    }
}

/// Runs a step through the ring.
fn run_step(ring: &mut EngineRing, step: &ModelStep) -> Result<Vec<u8>, CallErrno> {
    let nothing = Vec::new;
    match step {
        ModelStep::Read(object, offset, length) => {
            let mut bytes = vec![0; *length];
            ring.read(*object, *offset, &mut bytes).map(|count| bytes[..count].to_vec())
        }
        ModelStep::Write(object, offset, data) => ring.write(*object, *offset, data).map(|_| nothing()),
        ModelStep::Append(object, data) => ring.append(*object, data).map(|_| nothing()),
        ModelStep::Punch(object, offset, length) => ring.punch(*object, *offset, *length).map(|()| nothing()),
        ModelStep::Clear(object, offset, length) => ring.clear(*object, *offset, *length).map(|()| nothing()),
        ModelStep::Attribute(object, number, value) => {
            ring.set_attribute(*object, 1, *number, value).map(|()| nothing())
        }
        ModelStep::Create => ring.create(0).map(|(handle, _)| vec![handle as u8]),
        ModelStep::Remove(object) => ring.remove(*object).map(|()| nothing()),
        ModelStep::Result(data) => ring.result(data).map(|()| nothing()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn ring_agrees_with_model(steps in prop::collection::vec(any_step(), 1..120)) {
        let (memory, mut host) = small_ring();
        let of_engine = steps.clone();
        let engine = start_engine(&memory, 1, move |ring, _| {
            (0, of_engine.iter().map(|step| run_step(ring, step)).collect::<Vec<_>>())
        });
        let mut device = MemoryDevice::new(&[b"first", b"second"]);
        let mut model = device.clone();
        prop_assert_eq!(device.run(&mut host, "", b""), Ok(0));
        let seen = engine.join().expect("engine").pop().expect("one call");
        let expected: Vec<_> = steps.iter().map(|step| apply(&mut model, step)).collect();
        prop_assert_eq!(seen, expected);
        prop_assert_eq!(device, model);
    }
}
