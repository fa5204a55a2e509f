//! A man in the middle between an initiator and a device: changes, repeats, reorders and leaves out
//! what it relays.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A change of what is relayed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum WireChange {
    /// Flips a bit of data that begin so.
    Data(Vec<u8>),
    /// Flips a bit in the middle of a piece of 4 KiB or more, such as encrypted data.
    Large,
    /// Flips a bit of the byte at this position, modulo the length of the piece.
    Byte(usize),
    /// Sends a piece twice.
    Repeat,
    /// Sends these bytes before a piece.
    Insert(Vec<u8>),
    /// Sends these bytes instead of a piece.
    Replace(Vec<u8>),
    /// Exchanges two PDUs of level S1-2.
    Swap,
    /// Leaves out the first of two PDUs of level S1-2.
    Omit,
}

/// The next change, its direction, and how often it is made.
struct ArmedChange {
    to_target: bool,
    change: WireChange,
    times: usize,
}

#[derive(Default)]
struct ProxyState {
    armed: Mutex<Option<ArmedChange>>,
    /// Texts that are replaced on the way to the target, and back on the way from it.
    replaced: Mutex<Option<(Vec<u8>, Vec<u8>)>>,
    /// The first pieces to the target since they were taken.
    sent: Mutex<Vec<Vec<u8>>>,
    /// The first pieces from the target since they were taken.
    received: Mutex<Vec<Vec<u8>>>,
    connections: AtomicUsize,
}

/// Pieces of a direction that are kept.
const KEPT_MAX: usize = 4096;

/// A proxy in front of a device.
pub(crate) struct WireProxy {
    pub(crate) address: String,
    state: Arc<ProxyState>,
}

impl WireProxy {
    pub(crate) fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let state = Arc::<ProxyState>::default();
        let (target, shared) = (target.to_owned(), Arc::clone(&state));
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(&target) else { continue };
                shared.connections.fetch_add(1, Ordering::SeqCst);
                for (from, to, to_target) in [(&near, &far, true), (&far, &near, false)] {
                    let (from, to) = (from.try_clone().expect("cloned"), to.try_clone().expect("cloned"));
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || shared.relay(from, to, to_target));
                }
            }
        });
        Self { address, state }
    }

    /// Makes a change of the next pieces of a direction, a number of times.
    pub(crate) fn arm(&self, to_target: bool, change: WireChange, times: usize) {
        *self.state.armed.lock().expect("not poisoned") = Some(ArmedChange { to_target, change, times });
    }

    /// Whether a change still waits for its piece.
    pub(crate) fn is_armed(&self) -> bool {
        self.state.armed.lock().expect("not poisoned").is_some()
    }

    /// Cancels a change that no piece has matched.
    pub(crate) fn disarm(&self) {
        *self.state.armed.lock().expect("not poisoned") = None;
    }

    /// Replaces a text by another one of the same length, in both directions.
    pub(crate) fn replace(&self, own: &str, other: &str) {
        assert_eq!(own.len(), other.len());
        let pair = (own.as_bytes().to_vec(), other.as_bytes().to_vec());
        *self.state.replaced.lock().expect("not poisoned") = Some(pair);
    }

    /// Takes the pieces that were sent to the target.
    pub(crate) fn take_sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.state.sent.lock().expect("not poisoned"))
    }

    /// Takes the pieces that the target sent.
    pub(crate) fn take_received(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.state.received.lock().expect("not poisoned"))
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

fn replace_all(piece: &mut [u8], from: &[u8], to: &[u8]) {
    while let Some(at) = piece.windows(from.len()).position(|bytes| bytes == from) {
        piece[at..at + to.len()].copy_from_slice(to);
    }
}

/// Returns the length of the first PDU of level S1-2, if it is complete.
pub(crate) fn lazy_pdu_len(bytes: &[u8]) -> Option<usize> {
    const MAC: usize = 16;
    let bhs = bytes.first_chunk::<48>()?;
    let (ahs, data) = (usize::from(bhs[4]) * 4, u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize);
    let macs = match bytes.get(48..48 + ahs)? {
        [_, _, 0x3F, _, _, _, high, low, ..] => usize::from(u16::from_be_bytes([*high, *low])),
        _ => usize::from(data > 0),
    };
    let length = 48 + ahs + MAC + data.next_multiple_of(4) + macs * MAC;
    (bytes.len() >= length).then_some(length)
}

/// Splits two complete PDUs from the start.
fn two_pdus(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (first, rest) = bytes.split_at(lazy_pdu_len(bytes)?);
    let (second, rest) = rest.split_at(lazy_pdu_len(rest)?);
    Some((first, second, rest))
}

impl ProxyState {
    fn relay(&self, mut from: TcpStream, mut to: TcpStream, to_target: bool) {
        let mut buffer = vec![0; 256 << 10];
        let mut held = Vec::new();
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            held.extend_from_slice(&buffer[..count]);
            let Some(piece) = self.pass(&mut held, to_target) else { continue };
            let kept = if to_target { &self.sent } else { &self.received };
            let mut kept = kept.lock().expect("not poisoned");
            if kept.len() < KEPT_MAX {
                kept.push(piece.clone());
            }
            drop(kept);
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }

    /// Returns what is sent instead of `held`; `None`: more bytes are awaited.
    fn pass(&self, held: &mut Vec<u8>, to_target: bool) -> Option<Vec<u8>> {
        let mut armed = self.armed.lock().expect("not poisoned");
        let mut is_done = false;
        if let Some(ArmedChange { change, times, .. }) =
            armed.as_mut().filter(|armed| armed.to_target == to_target)
        {
            match change {
                WireChange::Data(content) => {
                    if let Some(at) = held.windows(content.len()).position(|bytes| bytes == content) {
                        held[at] ^= 0x10;
                        is_done = true;
                    }
                }
                WireChange::Large => {
                    if held.len() >= 4096 {
                        let middle = held.len() / 2;
                        held[middle] ^= 0x10;
                        is_done = true;
                    }
                }
                WireChange::Byte(position) => {
                    let at = *position % held.len();
                    held[at] ^= 0x10;
                    is_done = true;
                }
                WireChange::Repeat => {
                    held.extend_from_within(..);
                    is_done = true;
                }
                WireChange::Insert(bytes) => {
                    held.splice(..0, bytes.iter().copied());
                    is_done = true;
                }
                WireChange::Replace(bytes) => {
                    held.clone_from(bytes);
                    is_done = true;
                }
                WireChange::Swap | WireChange::Omit => {
                    let (first, second, rest) = two_pdus(held)?;
                    let first = if *change == WireChange::Swap { first } else { &[] };
                    *held = [second, first, rest].concat();
                    is_done = true;
                }
            }
            *times -= usize::from(is_done);
            if *times == 0 {
                *armed = None;
            }
        }
        drop(armed);
        let mut piece = std::mem::take(held);
        if let Some((own, other)) = &*self.replaced.lock().expect("not poisoned") {
            if to_target { replace_all(&mut piece, own, other) } else { replace_all(&mut piece, other, own) }
        }
        Some(piece)
    }
}
