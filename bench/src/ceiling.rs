//! Limits of the machine: plain TCP on loopback with the same sizes and depths, two blocking
//! threads, no protocol.
//!
//! A read is a 16-byte request and an N-byte response; a write is the reverse. Depth counts the
//! requests in flight.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::workload::Direction;

/// Size of the small half of an exchange: about the minimum of a command.
const SMALL_BYTES: usize = 16;

/// Runs exchanges; returns their number and duration.
pub(crate) fn run(
    direction: Direction,
    bytes: usize,
    depth: usize,
    time: Duration,
) -> io::Result<(u64, Duration)> {
    let (request_bytes, reply_bytes) = match direction {
        Direction::Read => (SMALL_BYTES, bytes),
        Direction::Write => (bytes, SMALL_BYTES),
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || serve(&listener, request_bytes, reply_bytes));
    let outcome = drive(TcpStream::connect(address)?, request_bytes, reply_bytes, depth, time);
    server.join().expect("the server thread does not panic")?;
    outcome
}

fn serve(listener: &TcpListener, request_bytes: usize, reply_bytes: usize) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut request = vec![0; request_bytes];
    let reply = vec![0x5A; reply_bytes];
    loop {
        match stream.read_exact(&mut request) {
            Ok(()) => stream.write_all(&reply)?,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn drive(
    mut stream: TcpStream,
    request_bytes: usize,
    reply_bytes: usize,
    depth: usize,
    time: Duration,
) -> io::Result<(u64, Duration)> {
    stream.set_nodelay(true)?;
    let request = vec![0xA5; request_bytes];
    let mut reply = vec![0; reply_bytes];
    // Large requests could fill both directions; a separate writer keeps the pipeline moving.
    let (permits, waiting) = std::sync::mpsc::sync_channel::<()>(depth);
    let mut out = stream.try_clone()?;
    let writer = thread::spawn(move || -> io::Result<()> {
        while waiting.recv().is_ok() {
            out.write_all(&request)?;
        }
        out.shutdown(std::net::Shutdown::Write)
    });
    for _ in 0..depth {
        permits.send(()).expect("the writer waits");
    }
    let start = Instant::now();
    let mut done = 0;
    while done == 0 || start.elapsed() < time {
        stream.read_exact(&mut reply)?;
        done += 1;
        permits.send(()).expect("the writer waits");
    }
    let elapsed = start.elapsed();
    drop(permits);
    io::copy(&mut stream, &mut io::sink())?;
    writer.join().expect("the writer thread does not panic")?;
    Ok((done, elapsed))
}
