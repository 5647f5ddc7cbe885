//! What the node agent asks of the runtime and what it is answered, and how both lie on their socket: frames of JSON, each
//! behind its length.

use super::launch::Launch;
use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{io, net::Ipv4Addr};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// No frame is longer. A container's environment may hold what ConfigMaps and Secrets do, a megabyte each.
const LARGEST: u32 = 64 * 1024 * 1024;

/// From the agent.
#[derive(Serialize, Deserialize)]
pub(super) enum ToRuntime {
    Ask {
        call: u64,
        ask: Ask,
    },
    /// The answer is no longer waited for. A command that it would have been about is killed.
    Forget {
        call: u64,
    },
}

/// To the agent: an answer, or what went wrong and what to do about it.
#[derive(Serialize, Deserialize)]
pub(super) struct FromRuntime {
    pub(super) call: u64,
    pub(super) answer: Result<Answer, String>,
}

#[derive(Serialize, Deserialize)]
pub(super) enum Ask {
    List,
    Create { name: PodName, hostname: String },
    Remove { pod: String },
    Start { run: RunName, launch: Box<Launch> },
    Signal { run: RunName, signal: i32 },
    Wait { run: RunName },
    Exec { run: RunName, command: Vec<String> },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    Pods(Vec<HeldPod>),
    Address(Ipv4Addr),
    Run(RunState),
    Exit(Exit),
    Output(Output),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodName {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// One run of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunName {
    /// The pod's uid.
    pub(crate) pod: String,
    pub(crate) container: String,
    /// How many runs there were before.
    pub(crate) number: i32,
}

/// A pod as the runtime holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldPod {
    pub(crate) name: PodName,
    pub(crate) ip: Ipv4Addr,
    pub(crate) since: Timestamp,
    /// Those that were ever started.
    pub(crate) containers: Vec<HeldContainer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldContainer {
    pub(crate) name: String,
    pub(crate) now: RunState,
    pub(crate) before: Option<RunState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunState {
    pub(crate) number: i32,
    /// `None` if it could not be started.
    pub(crate) started: Option<Timestamp>,
    /// `None` while it runs.
    pub(crate) exit: Option<Exit>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exit {
    /// As shells count it: the code, or 128 + the signal.
    pub(crate) code: i32,
    /// Why it could not be started.
    pub(crate) message: String,
    pub(crate) finished: Timestamp,
}

/// How a command in a container ended, and the beginning of what it wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) text: String,
}

pub(super) async fn write(to: &mut (impl AsyncWrite + Unpin), frame: &impl Serialize) -> io::Result<()> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, frame)?;
    let length = u32::try_from(bytes.len() - 4).ok().filter(|length| *length <= LARGEST);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"))?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    to.write_all(&bytes).await
}

/// The next frame; `None` at the end.
pub(super) async fn read<T: DeserializeOwned>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<T>> {
    let length = match from.read_u32_le().await {
        Ok(length) if length <= LARGEST => length,
        Ok(length) => {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes")));
        }
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    from.read_exact(&mut bytes).await?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_are_read_as_they_were_written_and_lengths_have_a_bound() {
        let mut socket = Vec::new();
        for text in ["one", "", "three"] {
            write(&mut socket, &text).await.unwrap();
        }
        let mut from = socket.as_slice();
        let mut found = Vec::new();
        while let Some(text) = read::<String>(&mut from).await.unwrap() {
            found.push(text);
        }
        assert_eq!(found, ["one", "", "three"]);
        // Cut off in the middle, and far too long.
        assert!(read::<String>(&mut &socket[..6]).await.is_err());
        assert!(read::<String>(&mut [0xff; 8].as_slice()).await.is_err());
    }
}
