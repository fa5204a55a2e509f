//! Round trips of the demo: a user stores a tree and a large file, and reads them back.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use sealstone_client::{Client, FilePath, GetOptions, Method, PutOptions};
use sealstone_cluster::Cluster;
use sealstone_daemon::machine::random;
use sealstone_failure::text::{ShownPath as _, human_bytes};
use sealstone_failure::{Failure, Outcome};
use sealstone_transfer::{EntryKind, TreeEntry, join, list_readable};
use sealstone_units::utc;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWrite;
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use crate::observer::{DemoObserver, DemoProgress};

/// User of the files.
const USER: &str = "alice";
/// Number of parallel files.
const FILES_AT_ONCE: usize = 16;
/// Stored path of the large file.
const LARGE: &str = "/large";

/// Result of a round trip.
#[derive(Clone, Debug, Serialize)]
pub struct RoundTrip {
    /// Number of files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Number of devices that have a file.
    pub width: u16,
    /// Time in which they were stored.
    pub put_seconds: f64,
    /// Time in which they were read back.
    pub get_seconds: f64,
}

impl RoundTrip {
    /// Returns the times and rates on one line.
    #[must_use]
    pub fn rates(&self) -> String {
        let rate = |seconds: f64| human_bytes((self.bytes as f64 / seconds.max(1e-9)) as u64);
        format!(
            "put {:.2} s ({}/s, {:.0} files/s), get {:.2} s ({}/s)",
            self.put_seconds,
            rate(self.put_seconds),
            self.files as f64 / self.put_seconds.max(1e-9),
            self.get_seconds,
            rate(self.get_seconds),
        )
    }
}

/// Adds the user and logs in; also returns a description of the session.
pub(crate) async fn enrol(running: &Cluster) -> Outcome<(Arc<Client>, String)> {
    let admin = running.admin_client().await?;
    let secret =
        Zeroizing::new(random::<16>().map(|byte| char::from(b'a' + byte % 26)).iter().collect::<String>());
    admin.add_user(USER, secret.as_bytes(), sealstone_client::Role::User).await?;
    admin.mkdir("/home", true, 0o777).await?;
    admin.set_mode("/", 0o777).await?;
    admin.logout().await?;
    let pin = running.metadata_server().pin().parse().expect("our own fingerprint parses");
    let client =
        Client::connect(&running.metadata_server().address().to_string(), pin, USER, secret.as_bytes())
            .await?;
    let who = client.whoami().await?;
    let session = format!("{}, until {} UTC", who.user.as_str(), utc(who.expires_ms));
    Ok((Arc::new(client), session))
}

/// Sink that hashes its input.
#[derive(Default)]
struct HashSink(Sha256);

impl AsyncWrite for HashSink {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.0.update(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn hash_file(path: &Path) -> Outcome<[u8; 32]> {
    let mut hash = Sha256::new();
    let at = |error: std::io::Error| Failure::from(error).at(path.shown());
    let mut file = fs::File::open(path).map_err(at)?;
    let mut block = vec![0; 256 << 10];
    loop {
        let count = file.read(&mut block).map_err(at)?;
        if count == 0 {
            break;
        }
        hash.update(&block[..count]);
    }
    Ok(hash.finalize().into())
}

async fn hash_stored(client: &Client, path: &FilePath) -> Outcome<[u8; 32]> {
    let mut sink = HashSink::default();
    let options = GetOptions { method: Method::AllData, ..GetOptions::default() };
    client.get(path, &mut sink, options).await.map_err(|error| Failure::from(error).at(path))?;
    Ok(sink.0.finalize().into())
}

/// Runs all tasks, several in parallel.
async fn each<T, F>(items: Vec<T>, mut start: impl FnMut(T) -> F) -> Outcome
where
    F: Future<Output = Outcome> + Send + 'static,
{
    let mut waiting = items.into_iter();
    let mut running = JoinSet::new();
    loop {
        while running.len() < FILES_AT_ONCE {
            let Some(item) = waiting.next() else { break };
            running.spawn(start(item));
        }
        match running.join_next().await {
            None => return Ok(()),
            Some(done) => done.map_err(Failure::operation)??,
        }
    }
}

/// Stores a tree and reads it back.
pub(crate) async fn tree(
    client: &Arc<Client>,
    entries: Vec<TreeEntry>,
    observer: &Arc<dyn DemoObserver>,
) -> Outcome<RoundTrip> {
    let top = FilePath::new("/home/tree").map_err(Failure::operation)?;
    let mut files: Vec<(PathBuf, FilePath)> = Vec::new();
    let mut bytes = 0;
    let started = Instant::now();
    for entry in entries {
        let stored = join(&top, &entry.below)?;
        match entry.kind {
            EntryKind::Directory => drop(client.mkdir(&stored, true, 0o755).await?),
            EntryKind::File { bytes: size } => {
                bytes += size;
                files.push((entry.path, stored));
            }
            EntryKind::Symlink | EntryKind::Special(_) => {}
        }
    }
    let progress = DemoProgress::begin(observer, bytes, "storing the tree");
    let put = |(local, stored): (PathBuf, FilePath)| {
        let (client, progress) = (Arc::clone(client), progress.clone());
        async move {
            let stat = client
                .put_file(&stored, &local, PutOptions::default())
                .await
                .map_err(|error| Failure::from(error).at(local.shown()))?;
            progress.add(stat.size);
            Ok(())
        }
    };
    each(files.clone(), put).await?;
    observer.end();
    let put_seconds = started.elapsed().as_secs_f64();

    let mut expected = BTreeMap::new();
    for (local, stored) in &files {
        expected.insert(stored.clone(), hash_file(local)?);
    }
    let (listed, failed) = list_readable(client, &top, true).await;
    if let Some((_, failure)) = failed.into_iter().next() {
        return Err(failure);
    }
    let listed = listed.iter().filter(|listed| listed.kind == sealstone_client::FileKind::File).count();
    if listed != files.len() {
        return Err(Failure::operation(format!("{} files were stored and {listed} are listed", files.len())));
    }
    let count = files.len() as u64;
    let started = Instant::now();
    let get = |(_, stored): (PathBuf, FilePath)| {
        let (client, expected) = (Arc::clone(client), expected[&stored]);
        async move {
            if hash_stored(&client, &stored).await? == expected {
                Ok(())
            } else {
                Err(Failure::operation("SHA-256 differs after reading it back").at(stored))
            }
        }
    };
    each(files, get).await?;
    Ok(RoundTrip { files: count, bytes, width: 1, put_seconds, get_seconds: started.elapsed().as_secs_f64() })
}

/// Stores a large file and reads it back.
pub(crate) async fn large(
    client: &Arc<Client>,
    folder: &Path,
    bytes: u64,
    observer: &Arc<dyn DemoObserver>,
) -> Outcome<RoundTrip> {
    let source = folder.join("large");
    let expected = make(&source, bytes)?;
    observer.begin(bytes, "storing the large file");
    let progress = Arc::clone(observer);
    let options =
        PutOptions { progress: Some(Box::new(move |done| progress.position(done))), ..PutOptions::default() };
    let started = Instant::now();
    let stat = client.put_file(LARGE, &source, options).await?;
    let put_seconds = started.elapsed().as_secs_f64();
    observer.end();
    fs::remove_file(&source)?;
    let started = Instant::now();
    if hash_stored(client, &FilePath::new(LARGE).map_err(Failure::operation)?).await? != expected {
        return Err(Failure::operation("SHA-256 differs after reading it back").at(LARGE));
    }
    let get_seconds = started.elapsed().as_secs_f64();
    Ok(RoundTrip { files: 1, bytes: stat.size, width: stat.width, put_seconds, get_seconds })
}

/// Creates a file of incompressible bytes; returns its SHA-256.
fn make(path: &Path, bytes: u64) -> Outcome<[u8; 32]> {
    let mut file = std::io::BufWriter::with_capacity(1 << 20, fs::File::create(path)?);
    let mut hash = Sha256::new();
    let mut state = u64::from_le_bytes(random()) | 1;
    let mut block = vec![0; 64 << 10];
    let mut left = bytes;
    while left > 0 {
        for word in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_ne_bytes());
        }
        let piece = &block[..usize::try_from(left).unwrap_or(usize::MAX).min(block.len())];
        file.write_all(piece)?;
        hash.update(piece);
        left -= piece.len() as u64;
    }
    file.flush()?;
    Ok(hash.finalize().into())
}
