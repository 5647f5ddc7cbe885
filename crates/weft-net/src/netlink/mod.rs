//! A small netlink sender: just enough rtnetlink ([`route`]) and nf_tables ([`nft`]) for a mesh on one machine.
//!
//! A socket stays bound to the network namespace in which it was opened, whatever its thread does later.

mod chains;
pub mod nft;
pub mod route;

use rustix::{
    io::Errno,
    net::{
        AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink,
        sockopt::{Timeout, set_socket_timeout},
    },
};
use std::{fmt, io, os::fd::OwnedFd, time::Duration};
use weft_fault::{Code, Fault, Phase};

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLA_F_NESTED: u16 = 0x8000;
const HEADER: usize = 16;

/// More acknowledged messages than this in one send overflow the socket's receive buffer, and acks are lost.
const CHUNK: usize = 200;
/// The kernel answers at once; this only keeps a bug from blocking a thread for ever.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// One request: what it is for, its type, flags, and the bytes after the netlink header.
#[derive(Clone, Debug)]
pub struct Message {
    step: &'static str,
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Message {
    /// `fixed` is the family's own header (`ifinfomsg`, `rtmsg`, `nfgenmsg` …).
    fn new(step: &'static str, kind: u16, flags: u16, fixed: &[u8]) -> Self {
        Message { step, kind, flags, body: fixed.to_vec() }
    }

    fn attr(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        put_attr(&mut self.body, kind, value);
        self
    }

    fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attrs)) -> &mut Self {
        let mut attrs = Attrs::default();
        fill(&mut attrs);
        self.attr(kind | NLA_F_NESTED, &attrs.0)
    }

    fn write(&self, seq: u32, flags: u16, out: &mut Vec<u8>) {
        let length = u32::try_from(HEADER + self.body.len()).expect("requests are a few kilobytes");
        out.extend_from_slice(&length.to_ne_bytes());
        out.extend_from_slice(&self.kind.to_ne_bytes());
        out.extend_from_slice(&(self.flags | flags | NLM_F_REQUEST).to_ne_bytes());
        out.extend_from_slice(&seq.to_ne_bytes());
        out.extend_from_slice(&0u32.to_ne_bytes());
        out.extend_from_slice(&self.body);
        out.resize(out.len().next_multiple_of(4), 0);
    }
}

/// The attributes inside a nested attribute.
#[derive(Clone, Debug, Default)]
struct Attrs(Vec<u8>);

impl Attrs {
    fn attr(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        put_attr(&mut self.0, kind, value);
        self
    }
    fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attrs)) -> &mut Self {
        let mut inner = Attrs::default();
        fill(&mut inner);
        self.attr(kind | NLA_F_NESTED, &inner.0)
    }
}

fn put_attr(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).expect("attributes are split before they reach 64 kB");
    out.extend_from_slice(&length.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// A name as an attribute carries it: ended by a zero byte.
fn zero_ended(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// The kernel refused a request.
#[derive(Debug)]
pub struct NetlinkError {
    /// What the request was for.
    pub step: &'static str,
    pub error: io::Error,
}

impl NetlinkError {
    fn new(step: &'static str, error: impl Into<io::Error>) -> Self {
        NetlinkError { step, error: error.into() }
    }

    /// Whether the kernel answered that the thing is already there.
    pub fn exists(&self) -> bool {
        self.error.raw_os_error() == Some(libc::EEXIST)
    }

    /// Whether the kernel answered that the thing (or its link) is not there.
    pub fn absent(&self) -> bool {
        matches!(self.error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ESRCH))
    }
}

impl fmt::Display for NetlinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.error)
    }
}

impl std::error::Error for NetlinkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<NetlinkError> for Fault {
    fn from(e: NetlinkError) -> Self {
        Fault::new(Code::HostUnable).in_phase(Phase::Start).fact("step", e.step).because(e.error)
    }
}

/// A netlink socket, bound to the namespace of its birth.
#[derive(Debug)]
struct Socket {
    fd: OwnedFd,
    seq: u32,
}

impl Socket {
    fn open(protocol: Option<Protocol>) -> Result<Self, NetlinkError> {
        let open = || -> rustix::io::Result<OwnedFd> {
            let fd = rustix::net::socket_with(
                AddressFamily::NETLINK,
                SocketType::RAW,
                SocketFlags::CLOEXEC,
                protocol,
            )?;
            rustix::net::bind(&fd, &netlink::SocketAddrNetlink::new(0, 0))?;
            set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER_DEADLINE))?;
            Ok(fd)
        };
        open().map(|fd| Socket { fd, seq: 0 }).map_err(|e| NetlinkError::new("open a netlink socket", e))
    }

    /// Sends the messages and returns the first refusal. Each is applied or refused on its own.
    fn send_each(&mut self, messages: &[Message]) -> Result<(), NetlinkError> {
        for chunk in messages.chunks(CHUNK) {
            let first = self.seq.wrapping_add(1);
            let mut bytes = Vec::new();
            for message in chunk {
                self.seq = self.seq.wrapping_add(1);
                message.write(self.seq, NLM_F_ACK, &mut bytes);
            }
            self.send(&bytes, chunk[0].step)?;
            self.await_acks(first, chunk)?;
        }
        Ok(())
    }

    /// Sends the messages as one nf_tables transaction: all are applied or none.
    ///
    /// Only the last message asks for an acknowledgement (refused ones are reported in any case), so that a large
    /// batch does not overflow the receive buffer.
    fn send_batch(&mut self, messages: &[Message]) -> Result<(), NetlinkError> {
        const BATCH_BEGIN: u16 = 16;
        const BATCH_END: u16 = 17;
        let Some(last) = messages.len().checked_sub(1) else { return Ok(()) };
        let frame = |kind| Message::new("nf_tables batch", kind, 0, &[0, 0, 0, 10]);
        let mut bytes = Vec::new();
        frame(BATCH_BEGIN).write(self.seq, 0, &mut bytes);
        let first = self.seq.wrapping_add(1);
        for (i, message) in messages.iter().enumerate() {
            self.seq = self.seq.wrapping_add(1);
            message.write(self.seq, if i == last { NLM_F_ACK } else { 0 }, &mut bytes);
        }
        frame(BATCH_END).write(self.seq, 0, &mut bytes);
        self.send(&bytes, messages[0].step)?;
        loop {
            for answer in self.receive(messages[0].step)? {
                let Some((seq, errno)) = answer.error() else { continue };
                let index = seq.wrapping_sub(first) as usize;
                if errno != 0 {
                    // The first refusal is the cause, later ones follow from it. An error of the batch itself
                    // (no permission) carries the number of the frame.
                    let step = messages.get(index).map_or("nf_tables batch", |m| m.step);
                    self.drain();
                    return Err(NetlinkError::new(step, io::Error::from_raw_os_error(errno)));
                }
                if index == last {
                    return Ok(());
                }
            }
        }
    }

    /// Asks for a list.
    fn dump(&mut self, message: &Message) -> Result<Vec<Answer>, NetlinkError> {
        self.seq = self.seq.wrapping_add(1);
        let mut bytes = Vec::new();
        message.write(self.seq, NLM_F_DUMP, &mut bytes);
        self.send(&bytes, message.step)?;
        let mut found = Vec::new();
        loop {
            for answer in self.receive(message.step)? {
                if answer.seq != self.seq {
                    continue;
                }
                if answer.kind == NLMSG_DONE {
                    return Ok(found);
                }
                match answer.error() {
                    Some((_, errno)) if errno != 0 => {
                        return Err(NetlinkError::new(message.step, io::Error::from_raw_os_error(errno)));
                    }
                    _ => found.push(answer),
                }
            }
        }
    }

    fn send(&self, bytes: &[u8], step: &'static str) -> Result<(), NetlinkError> {
        // The default send buffer (208 kB) bounds one message; batches of thousands of rules need more.
        if bytes.len() > 100_000 {
            let wanted = bytes.len() * 2 + 65_536;
            let raised = rustix::net::sockopt::set_socket_send_buffer_size_force(&self.fd, wanted)
                .or_else(|_| rustix::net::sockopt::set_socket_send_buffer_size(&self.fd, wanted));
            raised.map_err(|e| NetlinkError::new(step, e))?;
        }
        rustix::io::retry_on_intr(|| rustix::net::send(&self.fd, bytes, SendFlags::empty()))
            .map_err(|e| NetlinkError::new(step, e))?;
        Ok(())
    }

    fn await_acks(&mut self, first: u32, sent: &[Message]) -> Result<(), NetlinkError> {
        let mut refused = None;
        let mut missing = sent.len();
        while missing > 0 {
            for answer in self.receive(sent[0].step)? {
                let Some((seq, errno)) = answer.error() else { continue };
                let Some(message) = sent.get(seq.wrapping_sub(first) as usize) else { continue };
                missing -= 1;
                if errno != 0 && refused.is_none() {
                    refused = Some(NetlinkError::new(message.step, io::Error::from_raw_os_error(errno)));
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }

    fn receive(&self, step: &'static str) -> Result<Vec<Answer>, NetlinkError> {
        let mut buffer = vec![0u8; 65_536];
        let (length, _) =
            rustix::io::retry_on_intr(|| rustix::net::recv(&self.fd, &mut buffer[..], RecvFlags::empty()))
                .map_err(|e| NetlinkError::new(step, e))?;
        Ok(parse_answers(&buffer[..length]))
    }

    /// Throws away what is still queued after a refusal, so that it is not read as the next request's answer.
    fn drain(&self) {
        let mut buffer = vec![0u8; 65_536];
        loop {
            match rustix::net::recv(&self.fd, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// One message of the kernel, without its header.
#[derive(Debug)]
struct Answer {
    kind: u16,
    seq: u32,
    body: Vec<u8>,
}

impl Answer {
    /// The request's number and the errno (0: acknowledged), if this is an answer of that kind.
    fn error(&self) -> Option<(u32, i32)> {
        if self.kind != NLMSG_ERROR || self.body.len() < 4 {
            return None;
        }
        let code = i32::from_ne_bytes(self.body[..4].try_into().expect("length was checked"));
        Some((self.seq, -code))
    }
}

fn parse_answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while bytes.len() >= HEADER {
        let field = |at: usize, n: usize| &bytes[at..at + n];
        let length = u32::from_ne_bytes(field(0, 4).try_into().expect("four bytes")) as usize;
        if length < HEADER || length > bytes.len() {
            break;
        }
        answers.push(Answer {
            kind: u16::from_ne_bytes(field(4, 2).try_into().expect("two bytes")),
            seq: u32::from_ne_bytes(field(8, 4).try_into().expect("four bytes")),
            body: bytes[HEADER..length].to_vec(),
        });
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    answers
}

/// The attributes of an answer after `skip` bytes of fixed header.
fn attributes(body: &[u8], skip: usize) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    let mut rest = body.get(skip..).unwrap_or_default();
    while rest.len() >= 4 {
        let length = u16::from_ne_bytes([rest[0], rest[1]]) as usize;
        let kind = u16::from_ne_bytes([rest[2], rest[3]]) & 0x3fff;
        if length < 4 || length > rest.len() {
            break;
        }
        found.push((kind, &rest[4..length]));
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_padded_and_answers_are_read_back() {
        let mut m = Message::new("test", 16, NLM_F_CREATE, &[1, 2, 3, 4]);
        m.attr(3, b"eth0\0").nest(18, |n| {
            n.attr(1, b"veth");
        });
        let mut bytes = Vec::new();
        m.write(7, NLM_F_ACK, &mut bytes);
        m.write(8, 0, &mut bytes);
        assert_eq!(bytes.len() % 4, 0);
        let read = parse_answers(&bytes);
        assert_eq!(read.iter().map(|a| (a.kind, a.seq)).collect::<Vec<_>>(), [(16, 7), (16, 8)]);
        let attrs = attributes(&read[0].body, 4);
        assert_eq!(attrs[0], (3, &b"eth0\0"[..]));
        assert_eq!(attrs[1].0, 18);
        assert_eq!(attributes(attrs[1].1, 0), [(1, &b"veth"[..])]);
    }

    #[test]
    fn truncated_answers_end_the_list() {
        assert!(parse_answers(&[40, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]).is_empty());
        assert!(attributes(&[9, 0, 1, 0, 5], 0).is_empty());
        assert!(attributes(&[1, 0], 20).is_empty());
    }
}
