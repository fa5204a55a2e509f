//! A proxy between store and server that fails while a commit is in flight.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;

/// Fault that hits the next commit, or the next write of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutPoint {
    /// The request is lost.
    Request,
    /// The request arrives, its response is lost.
    Answer,
    /// The request is delayed until [`CutProxy::deliver`].
    Late,
    /// The write of records is delayed.
    LateRecord,
}

#[derive(Default)]
struct ProxyState {
    cut: Option<CutPoint>,
    late: Option<(TcpStream, Vec<u8>)>,
}

pub(super) struct CutProxy {
    pub(super) port: u16,
    state: Arc<Mutex<ProxyState>>,
    /// Reports each lost response.
    swallowed: Receiver<usize>,
}

impl CutProxy {
    pub(super) fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::<Mutex<ProxyState>>::default();
        let shared = Arc::clone(&state);
        let (reported, swallowed) = channel();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let state = Arc::clone(&shared);
                let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let swallow = Arc::<AtomicBool>::default();
                std::thread::spawn({
                    let (swallow, reported) = (Arc::clone(&swallow), reported.clone());
                    move || answer(back.0, back.1, &swallow, &reported)
                });
                std::thread::spawn(move || forward(client, server, &state, &swallow));
            }
        });
        Self { port, state, swallowed }
    }

    pub(super) fn cut(&self, cut: CutPoint) {
        self.state.lock().cut = Some(cut);
    }

    /// Whether a delayed request is pending.
    pub(super) fn is_late(&self) -> bool {
        self.state.lock().late.is_some()
    }

    /// Waits for a lost response and returns its bytes.
    pub(super) fn swallowed(&self) -> usize {
        self.swallowed.recv().unwrap()
    }

    /// Delivers the delayed request, and returns after the server has answered it.
    pub(super) fn deliver(&self) {
        let (mut server, bytes) = self.state.lock().late.take().expect("something was late");
        server.write_all(&bytes).unwrap();
        assert!(self.swallowed() > 0, "the server has answered");
    }
}

/// Whether the fault applies to these bytes.
fn is_meant(cut: CutPoint, bytes: &[u8]) -> bool {
    let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    match cut {
        CutPoint::LateRecord => has(b",ou=records,"),
        _ => has(b",ou=journal,") && has(b"commit "),
    }
}

fn answer(mut server: TcpStream, mut client: TcpStream, swallow: &AtomicBool, reported: &Sender<usize>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = server.read(&mut bytes) {
        if swallow.load(Ordering::Acquire) {
            let _ = reported.send(count);
            let _ = server.shutdown(Shutdown::Both);
            break;
        }
        if client.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}

fn forward(mut client: TcpStream, mut server: TcpStream, state: &Mutex<ProxyState>, swallow: &AtomicBool) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = client.read(&mut bytes) {
        let bytes = &bytes[..count];
        let cut = state.lock().cut.take_if(|cut| is_meant(*cut, bytes));
        match cut {
            None => {
                if server.write_all(bytes).is_err() {
                    break;
                }
            }
            Some(CutPoint::Request) => break,
            Some(CutPoint::Answer) => {
                // The client's connection ends when the response arrives.
                swallow.store(true, Ordering::Release);
                let _ = server.write_all(bytes);
                return;
            }
            Some(CutPoint::Late | CutPoint::LateRecord) => {
                swallow.store(true, Ordering::Release);
                state.lock().late = Some((server, bytes.to_vec()));
                let _ = client.shutdown(Shutdown::Both);
                return;
            }
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}
