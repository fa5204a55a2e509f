//! Messages between the daemon, its zygotes and their engines.
//!
//! Does: encode and decode messages on sockets of the type SEQPACKET, with descriptors.
//! Contract: both ends are of the same version, which the first message checks; one packet is one
//! message.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::options::{DESCRIPTORS_MAX, EngineKind, EngineLimits, EngineUsers, ReadOnlyBind};
use crate::report::IsolationReport;
use crate::{SandboxError, system};

/// Version of these messages; a program of another version is refused.
pub(crate) const MESSAGE_VERSION: u32 = 1;
/// Maximum length of a message in bytes.
const MESSAGE_BYTES_MAX: usize = 128 << 10;
/// Descriptors of a start besides those of the caller: report socket, status socket, code.
const START_DESCRIPTORS: usize = 3;

/// First message to a zygote.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ZygoteSetup {
    pub(crate) version: u32,
    pub(crate) kind: EngineKind,
    pub(crate) binds: Vec<ReadOnlyBind>,
    pub(crate) users: EngineUsers,
}

/// Starts one engine. Descriptors: report socket, status socket, code if any, those of the caller.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StartCommand {
    pub(crate) code: Option<CodeFile>,
    pub(crate) parameters: Vec<u8>,
    pub(crate) limits: EngineLimits,
    /// Whether the engine ends after its last layer, without running its program.
    pub(crate) is_probe: bool,
}

/// Name and length of the code in the root of the engine.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CodeFile {
    pub(crate) name: String,
    pub(crate) length: u64,
}

/// Answers of a zygote.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ZygoteReply {
    /// The namespaces exist and engines can be started.
    Ready { version: u32 },
    /// The engine's init process runs; its pidfd is attached.
    Started,
    /// The command failed.
    Failed(StepFailure),
}

/// A step that failed on the other side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StepFailure {
    pub(crate) step: String,
    pub(crate) errno: i32,
}

impl StepFailure {
    pub(crate) fn new(step: &str, error: &io::Error) -> Self {
        // 0 is no error number; an error that did not come from the kernel keeps its text.
        match error.raw_os_error() {
            Some(errno) => Self { step: step.to_owned(), errno },
            None => Self { step: format!("{step}: {error}"), errno: libc::EINVAL },
        }
    }
}

impl From<StepFailure> for SandboxError {
    fn from(failure: StepFailure) -> Self {
        Self::Confinement { step: failure.step, source: io::Error::from_raw_os_error(failure.errno) }
    }
}

/// The report of an engine on its confinement. The socket closes when the last layer is applied.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum EngineReport {
    Confined(IsolationReport),
    Failed(StepFailure),
}

/// The end of an engine, as its init process saw it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EngineStatus {
    pub(crate) wait_status: i32,
    pub(crate) cpu_time: Duration,
    pub(crate) peak_memory: u64,
    /// Processes of the engine's memory cgroup that the kernel killed.
    pub(crate) memory_kills: u64,
}

/// A message as it was received.
#[derive(Debug)]
pub(crate) struct ReceivedMessage<T> {
    pub(crate) body: T,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// The process that sent it, if the socket asks for credentials.
    pub(crate) sender: Option<libc::pid_t>,
}

/// Creates a pair of sockets that keep the boundaries of messages.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let pair =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok(pair)
}

/// Sends one message.
pub(crate) fn send<T: Serialize>(
    socket: impl AsFd,
    body: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(body)?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX + START_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one message; `None` if the peer has closed its end.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<ReceivedMessage<T>>> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit();
        rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX + START_DESCRIPTORS), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(&mut bytes)];
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let received = match received {
        Ok(received) => received,
        Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let (mut descriptors, mut sender) = (Vec::new(), None);
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(received) => descriptors.extend(received),
            RecvAncillaryMessage::ScmCredentials(credentials) => {
                sender = Some(credentials.pid.as_raw_nonzero().get());
            }
            _ => {}
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let body = serde_json::from_slice(&bytes[..received.bytes])?;
    Ok(Some(ReceivedMessage { body, descriptors, sender }))
}

/// Receives one message within `timeout`, or fails with `TimedOut`.
pub(crate) fn receive_within<T: DeserializeOwned>(
    socket: impl AsFd,
    timeout: Duration,
) -> io::Result<Option<ReceivedMessage<T>>> {
    match system::wait_readable([socket.as_fd()], Some(timeout))? {
        [true] => receive(socket),
        [false] => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_carries_descriptors_and_sender() {
        let (left, right) = socket_pair().expect("socket pair");
        rustix::net::sockopt::set_socket_passcred(&right, true).expect("credentials");
        let null = std::fs::File::open("/dev/null").expect("open /dev/null");
        let failure = StepFailure { step: "mount".into(), errno: libc::EPERM };
        send(&left, &failure, &[null.as_fd(), null.as_fd()]).expect("send");
        let received = receive::<StepFailure>(&right).expect("receive").expect("a message");
        assert_eq!((received.body, received.descriptors.len()), (failure, 2));
        assert_eq!(received.sender, Some(std::process::id() as libc::pid_t));
        drop(left);
        assert!(receive::<StepFailure>(&right).expect("end").is_none());
    }

    #[test]
    fn long_or_malformed_message_is_refused() {
        let (left, right) = socket_pair().expect("socket pair");
        let long = "x".repeat(MESSAGE_BYTES_MAX);
        assert!(send(&left, &long, &[]).is_err());
        rustix::net::send(&left, b"{\"step\":", SendFlags::empty()).expect("send");
        assert!(receive::<StepFailure>(&right).is_err());
        let late = receive_within::<StepFailure>(&right, Duration::from_millis(5));
        assert_eq!(late.expect_err("no message").kind(), io::ErrorKind::TimedOut);
    }
}
