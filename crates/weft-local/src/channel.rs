//! What the process outside (`weft up`) and the supervisor inside say to each other, over one socket pair.
//!
//! The socket is also the mesh's life line: when the outside process ends, however it ends, the supervisor reads end of file
//! and exits, and the kernel ends everything in its process namespace.

use crate::{external::External, network::Network, rights::Rights};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, sockopt,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::Duration,
};
use weft_fault::FaultRecord;

/// The largest message: the configuration, which may hold certificates.
const LARGEST: usize = 512 * 1024;

/// From the outside.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToSupervisor {
    /// The first message. With it come two file descriptors: the listener of the API, and a UDP socket of the outside
    /// through which names are resolved that are not the mesh's.
    Start(Box<SupervisorConfig>),
    /// The link to the outside was made (or could not be). `api`: where an external API is reached over it.
    HostLink { made: bool, api: Option<SocketAddr> },
    /// End the pods within `grace`, then exit.
    Stop { grace: Duration },
}

/// From the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromSupervisor {
    /// The namespaces are there; the outside may make the link.
    Namespaces,
    /// The API answers.
    Ready {
        kubeconfig: String,
    },
    Failed(Box<FaultRecord>),
    /// The kernel refuses what an ordinary user needs; the outside finds out why.
    Refused(Refusal),
}

/// A step that the kernel refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    pub step: String,
    pub error: String,
    /// It is not allowed.
    pub forbidden: bool,
    /// There are too many already.
    pub exhausted: bool,
}

impl Refusal {
    pub(crate) fn new(step: &str, error: &io::Error) -> Self {
        Refusal {
            step: step.to_string(),
            error: error.to_string(),
            forbidden: error.kind() == io::ErrorKind::PermissionDenied,
            // ENOSPC, which means a disk elsewhere.
            exhausted: error.kind() == io::ErrorKind::StorageFull,
        }
    }
}

/// How the supervisor is to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SupervisorConfig {
    pub name: String,
    pub rights: Rights,
    pub state_dir: PathBuf,
    pub network: Network,
    /// Where the API listens outside, as the kubeconfig names it.
    pub api_outside: SocketAddr,
    /// Instead of an API of the mesh's own.
    pub external: Option<External>,
    /// The outside's name servers.
    pub name_servers: Vec<SocketAddr>,
    /// Handed to the controller unread.
    pub controller: serde_json::Value,
}

/// One end.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        for end in [&a, &b] {
            sockopt::set_socket_send_buffer_size(end, LARGEST)?;
        }
        Ok((Channel(a), Channel(b)))
    }

    /// The end that was inherited.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Channel(fd)
    }

    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// How long a receive waits; for ever by default.
    pub fn set_deadline(&self, deadline: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, deadline)?)
    }

    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The next message, or `None` at the end.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut bytes = vec![0; LARGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut once = || {
            rustix::io::retry_on_intr(|| {
                recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
            })
        };
        let received = match once() {
            // The other end went without reading everything. That is told once, and before what it had said.
            Err(rustix::io::Errno::CONNRESET) => once(),
            received => received,
        }?;
        if received.bytes == 0 {
            return Ok(None);
        }
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, fds)))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that is refused something says so and ends, and may not have read what it was told meanwhile.
    #[test]
    fn last_words_are_heard_of_one_who_went_without_reading() {
        let (ours, theirs) = Channel::pair().unwrap();
        ours.send(&"not read", &[]).unwrap();
        theirs.send(&"last words", &[]).unwrap();
        drop(theirs);
        let (words, _) = ours.receive::<String>().unwrap().expect("a message");
        assert_eq!(words, "last words");
        assert!(ours.receive::<String>().unwrap().is_none());
    }
}
