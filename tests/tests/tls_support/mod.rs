//! A man in the middle between a client and its device.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sealstone_channel::{ALPN_ISCSI, Pin, TOKEN_LABEL, TlsIdentity, TlsServer, connect};
use sealstone_tests::Daemon;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// Behaviour of the man in the middle.
pub(crate) enum RelayBehaviour {
    /// Forwards and records bytes.
    Bytes,
    /// Answers in plain text.
    Strip,
    /// Ends TLS with its own certificate, and starts TLS with the device.
    Tls(TlsIdentity),
}

/// A man in the middle, in front of a device.
pub(crate) struct TlsRelay {
    device: Daemon,
    pin: String,
    address: String,
    seen: Arc<Mutex<Vec<u8>>>,
    cut_after: Arc<AtomicUsize>,
    _runtime: Runtime,
}

impl TlsRelay {
    /// Starts it in front of this device with this pin.
    pub(crate) fn start(device: Daemon, pin: Pin, relay: RelayBehaviour) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let cut_after = Arc::new(AtomicUsize::new(usize::MAX));
        let server = match &relay {
            RelayBehaviour::Tls(identity) => {
                Some(TlsServer::new(identity, ALPN_ISCSI, TOKEN_LABEL).expect("an identity"))
            }
            RelayBehaviour::Bytes | RelayBehaviour::Strip => None,
        };
        let one = One {
            behind: device.field("address").to_owned(),
            pin,
            strip: matches!(relay, RelayBehaviour::Strip),
            server,
            seen: Arc::clone(&seen),
            cut_after: Arc::clone(&cut_after),
        };
        runtime.spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let one = one.clone();
                tokio::spawn(async move { one.serve(near).await });
            }
        });
        Self { device, pin: pin.to_string(), address, seen, cut_after, _runtime: runtime }
    }

    /// Returns the device's URL with the relay's address.
    pub(crate) fn url(&self) -> String {
        self.device.field("url").replace(self.device.field("address"), &self.address)
    }

    /// Returns the device's pin.
    pub(crate) fn pin(&self) -> &str {
        &self.pin
    }

    /// Returns the recorded bytes of both directions.
    pub(crate) fn seen(&self) -> Vec<u8> {
        self.seen.lock().expect("nobody panicked").clone()
    }

    /// Cuts each connection after this many bytes from the client.
    pub(crate) fn cut_after(&self, bytes: usize) {
        self.cut_after.store(bytes, Ordering::SeqCst);
    }
}

#[derive(Clone)]
struct One {
    behind: String,
    pin: Pin,
    strip: bool,
    server: Option<TlsServer>,
    seen: Arc<Mutex<Vec<u8>>>,
    cut_after: Arc<AtomicUsize>,
}

impl One {
    async fn serve(self, mut near: TcpStream) {
        if self.strip {
            // A login response that accepts everything.
            let mut answer = [0; 48];
            (answer[0], answer[1]) = (0x23, 0x87);
            let mut received = [0; 4096];
            while let Ok(count @ 1..) = near.read(&mut received).await {
                self.remember(&received[..count]);
                let _ = near.write_all(&answer).await;
            }
            return;
        }
        let Ok(far) = TcpStream::connect(&self.behind).await else { return };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        match &self.server {
            None => self.relay(near, far).await,
            Some(server) => {
                let Ok(near) = server.accept(near).await else { return };
                let name = "whatever.example";
                let Ok((far, _)) = connect(far, self.pin, name, ALPN_ISCSI, TOKEN_LABEL).await else {
                    return;
                };
                self.relay(near.stream, far).await;
            }
        }
    }

    async fn relay(&self, near: impl AsyncRead + AsyncWrite, far: impl AsyncRead + AsyncWrite) {
        let ((near_in, near_out), (far_in, far_out)) = (tokio::io::split(near), tokio::io::split(far));
        // The first end to close ends both.
        tokio::select! {
            () = self.copy(near_in, far_out, true) => {}
            () = self.copy(far_in, near_out, false) => {}
        }
    }

    async fn copy(&self, from: impl AsyncRead, to: impl AsyncWrite, counted: bool) {
        let (mut from, mut to) = (Box::pin(from), Box::pin(to));
        let mut piece = vec![0; 64 * 1024];
        let mut sum = 0;
        while let Ok(count @ 1..) = from.read(&mut piece).await {
            self.remember(&piece[..count]);
            sum += count;
            if counted && sum > self.cut_after.load(Ordering::SeqCst) {
                return;
            }
            if to.write_all(&piece[..count]).await.is_err() || to.flush().await.is_err() {
                return;
            }
        }
    }

    fn remember(&self, bytes: &[u8]) {
        self.seen.lock().expect("nobody panicked").extend_from_slice(bytes);
    }
}
