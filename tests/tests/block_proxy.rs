//! A man in the middle between an initiator and a device, which changes what it relays.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A change of one piece of what is relayed.
#[derive(Clone)]
pub(crate) enum WireChange {
    /// Flips a bit of data that begin so.
    Data(Vec<u8>),
    /// Flips a bit in the middle of a piece of 4 KiB or more, such as encrypted data.
    Large,
    /// Flips a bit of the byte at this position, modulo the length of the piece.
    Byte(usize),
}

/// The next change, and whether it is one of bytes to the target.
type ArmedChange = Arc<Mutex<Option<(bool, WireChange)>>>;

/// A proxy in front of a device.
pub(crate) struct WireProxy {
    pub(crate) address: String,
    armed: ArmedChange,
}

impl WireProxy {
    pub(crate) fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let armed = ArmedChange::default();
        let (target, shared) = (target.to_owned(), Arc::clone(&armed));
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(&target) else { continue };
                for (from, to, to_target) in [(&near, &far, true), (&far, &near, false)] {
                    let (from, to) = (from.try_clone().expect("cloned"), to.try_clone().expect("cloned"));
                    let armed = Arc::clone(&shared);
                    thread::spawn(move || relay(from, to, to_target, &armed));
                }
            }
        });
        Self { address, armed }
    }

    /// Makes a change of the next matching piece of a direction, once.
    pub(crate) fn arm(&self, to_target: bool, change: WireChange) {
        *self.armed.lock().expect("not poisoned") = Some((to_target, change));
    }

    /// Cancels a change that no piece has matched.
    pub(crate) fn disarm(&self) {
        *self.armed.lock().expect("not poisoned") = None;
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, to_target: bool, armed: &ArmedChange) {
    let mut buffer = vec![0; 256 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let piece = &mut buffer[..count];
        let mut armed = armed.lock().expect("not poisoned");
        let changed = match &*armed {
            Some((direction, change)) if *direction == to_target => match change {
                WireChange::Data(start) => piece.windows(start.len()).position(|bytes| bytes == &start[..]),
                WireChange::Large => (count >= 4096).then_some(count / 2),
                WireChange::Byte(at) => Some(*at % count),
            },
            _ => None,
        };
        if let Some(at) = changed {
            piece[at] ^= 0x10;
            *armed = None;
        }
        drop(armed);
        if to.write_all(piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
