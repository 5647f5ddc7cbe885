//! SPDY/3.1 inside a WebSocket, as `kubectl` speaks it.
//!
//! For each connection the client opens two streams with one `requestid`: one for data, one on which this side says what
//! went wrong, or nothing. SPDY/3.1 clients of Kubernetes know no windows, so a stream that is not read holds up the others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, interval};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::forward::{self, Delivered, INPUT, Output, QUEUE, Target};
use super::spdy::{Decoder, Encoder, Frame, Malformed, Reason};
use crate::api::websocket::{PING_EVERY, Socket, SocketError};

/// How many connections one session may have at a time; further ones are refused.
const CONNECTIONS: usize = 256;

/// How long the second stream of a pair may take after the first.
const PAIRING: Duration = Duration::from_secs(30);

/// What waits to be sent.
#[derive(Debug)]
enum Outgoing {
    Reply(u32),
    Reset(u32, Reason),
    Pong(u32),
    Forward(Streams, Output),
}

/// The two streams of a connection.
#[derive(Debug, Clone, Copy)]
struct Streams {
    data: u32,
    error: u32,
}

/// A pair of which one stream is there.
struct Half {
    port: u16,
    since: Instant,
    data: Option<u32>,
    error: Option<u32>,
}

/// A data stream, from when it is opened.
struct Data {
    /// `None` after the client's last piece.
    input: Option<mpsc::Sender<Bytes>>,
    /// Until the pair is complete: what the client has sent already waits here.
    waiting: Option<mpsc::Receiver<Bytes>>,
    running: Option<Running>,
}

struct Running {
    error: u32,
    task: AbortHandle,
}

/// Serves a session until the client goes.
pub(super) async fn serve(socket: Socket, target: Arc<Target>) -> Result<(), SocketError> {
    let (mut sink, stream) = socket.split();
    let (output, queued) = mpsc::channel(QUEUE);
    let session =
        Session { target, output, halves: HashMap::new(), data: HashMap::new(), forwards: JoinSet::new() };
    // Apart from each other, so that a client which reads slowly is heard all the same.
    let ended = tokio::select! {
        written = write(&mut sink, queued) => return written,
        ended = session.read(stream) => ended?,
    };
    match ended {
        Ok(()) => forward::close(&mut sink, CloseCode::Normal, "").await,
        Err(Malformed(why)) => forward::close(&mut sink, CloseCode::Protocol, why).await,
    }
    Ok(())
}

async fn write(
    sink: &mut (impl Sink<Message, Error = SocketError> + Unpin),
    mut queued: mpsc::Receiver<Outgoing>,
) -> Result<(), SocketError> {
    let mut encoder = Encoder::new();
    let mut ping = interval(PING_EVERY);
    loop {
        let outgoing = tokio::select! {
            Some(outgoing) = queued.recv() => outgoing,
            _ = ping.tick() => {
                forward::send(sink, Message::Ping(Bytes::new())).await?;
                continue;
            }
        };
        let frame = match outgoing {
            Outgoing::Reply(stream) => encoder.reply(stream),
            Outgoing::Reset(stream, reason) => Encoder::reset(stream, reason),
            Outgoing::Pong(id) => Encoder::ping(id),
            Outgoing::Forward(of, Output::Data(data)) => Encoder::data(of.data, &data, false),
            Outgoing::Forward(of, Output::Failed(why)) => Encoder::data(of.error, why.as_bytes(), false),
            Outgoing::Forward(of, Output::Ended) => {
                // The error stream first: kubectl reads it to its end when the data has ended.
                forward::send(sink, Message::Binary(Encoder::data(of.error, b"", true))).await?;
                Encoder::data(of.data, b"", true)
            }
        };
        forward::send(sink, Message::Binary(frame)).await?;
    }
}

struct Session {
    target: Arc<Target>,
    output: mpsc::Sender<Outgoing>,
    /// By `requestid`.
    halves: HashMap<String, Half>,
    data: HashMap<u32, Data>,
    /// Each returns its data stream.
    forwards: JoinSet<u32>,
}

impl Session {
    /// Acts on the client's frames. All connections end with it.
    async fn read(
        mut self,
        mut stream: impl Stream<Item = Result<Message, SocketError>> + Unpin,
    ) -> Result<Result<(), Malformed>, SocketError> {
        let mut decoder = Decoder::new();
        let mut sweep = interval(PAIRING / 3);
        loop {
            let received = tokio::select! {
                received = stream.next() => received,
                Some(ended) = self.forwards.join_next() => {
                    if let Ok(data) = ended {
                        self.data.remove(&data);
                    }
                    continue;
                }
                _ = sweep.tick() => {
                    self.drop_halves().await;
                    continue;
                }
            };
            match received {
                Some(Ok(Message::Binary(bytes))) => decoder.push(&bytes),
                Some(Ok(Message::Close(_))) | None => return Ok(Ok(())),
                Some(Ok(_)) => continue,
                Some(Err(error)) => return Err(error),
            }
            loop {
                match decoder.next() {
                    Ok(Some(frame)) => self.act(frame).await,
                    Ok(None) => break,
                    Err(malformed) => return Ok(Err(malformed)),
                }
            }
        }
    }

    async fn act(&mut self, frame: Frame) {
        match frame {
            Frame::Open { stream, headers, end } => match self.open(stream, &headers, end) {
                Ok(()) => self.say(Outgoing::Reply(stream)).await,
                Err(reason) => self.say(Outgoing::Reset(stream, reason)).await,
            },
            Frame::Data { stream, data, end } => self.input(stream, data, end).await,
            Frame::Reset { stream } => self.end(stream).await,
            // Even numbers would be answers to this side's own, of which there are none.
            Frame::Ping { id } if id % 2 == 1 => self.say(Outgoing::Pong(id)).await,
            Frame::Ping { .. } => {}
        }
    }

    /// Takes a new stream; with the second of a pair the connection is made.
    fn open(&mut self, stream: u32, headers: &[(String, String)], end: bool) -> Result<(), Reason> {
        let header = |name: &str| {
            let found = headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.as_str()).ok_or(Reason::Protocol)
        };
        let port = header("port")?.parse().ok().filter(|port| *port != 0).ok_or(Reason::Protocol)?;
        let (kind, request) = (header("streamtype")?, header("requestid")?);
        if self.halves.len() + self.data.len() >= CONNECTIONS && !self.halves.contains_key(request) {
            return Err(Reason::Refused);
        }
        if !["data", "error"].contains(&kind) {
            return Err(Reason::Protocol);
        }
        let new = Half { port, since: Instant::now(), data: None, error: None };
        let half = self.halves.entry(request.to_owned()).or_insert(new);
        let place = if kind == "data" { &mut half.data } else { &mut half.error };
        if half.port != port || place.is_some() || self.data.contains_key(&stream) {
            return Err(Reason::Protocol);
        }
        *place = Some(stream);
        if kind == "data" {
            let (input, waiting) = mpsc::channel(INPUT);
            let input = (!end).then_some(input);
            self.data.insert(stream, Data { input, waiting: Some(waiting), running: None });
        }
        if let (Some(data), Some(error)) = (half.data, half.error) {
            self.halves.remove(request);
            self.start(Streams { data, error }, port);
        }
        Ok(())
    }

    fn start(&mut self, of: Streams, port: u16) {
        let Some(data) = self.data.get_mut(&of.data) else { return };
        let Some(input) = data.waiting.take() else { return };
        let (target, output) = (self.target.clone(), self.output.clone());
        let task = self.forwards.spawn(async move {
            forward::run(&target, port, input, output, move |what| Outgoing::Forward(of, what)).await;
            of.data
        });
        data.running = Some(Running { error: of.error, task });
    }

    async fn input(&mut self, stream: u32, bytes: Bytes, end: bool) {
        // Of an error stream, or of a connection that is over: nobody waits for it.
        let Some(data) = self.data.get_mut(&stream) else { return };
        let taken = match (&data.input, &data.running) {
            (None, _) => Delivered::Closed,
            (Some(input), Some(_)) => forward::deliver(input, &bytes).await,
            // What would complete the pair comes behind this on the same way: it cannot be waited for.
            (Some(input), None) if forward::keep(input, &bytes) => Delivered::Taken,
            (Some(_), None) => {
                self.say(Outgoing::Reset(stream, Reason::Refused)).await;
                return self.end(stream).await;
            }
        };
        if let Delivered::Stalled = taken {
            if let Some(running) = &data.running {
                let of = Streams { data: stream, error: running.error };
                self.say(Outgoing::Forward(of, Output::Failed(forward::stalled()))).await;
            }
            return self.end(stream).await;
        }
        if end {
            data.input = None;
        }
    }

    /// Ends a connection on the client's wish. It waits for the end of the error stream all the same.
    async fn end(&mut self, stream: u32) {
        self.halves.retain(|_, half| half.data != Some(stream) && half.error != Some(stream));
        let Some(data) = self.data.remove(&stream) else { return };
        if let Some(Running { error, task }) = data.running {
            task.abort();
            self.say(Outgoing::Forward(Streams { data: stream, error }, Output::Ended)).await;
        }
    }

    /// Refuses streams whose other half never came.
    async fn drop_halves(&mut self) {
        let old = self.halves.extract_if(|_, half| half.since.elapsed() >= PAIRING);
        let old: Vec<u32> = old.flat_map(|(_, half)| [half.data, half.error]).flatten().collect();
        for stream in old {
            self.data.remove(&stream);
            self.say(Outgoing::Reset(stream, Reason::Protocol)).await;
        }
    }

    async fn say(&self, what: Outgoing) {
        // The queue's other end is part of the same session: it is never closed before this one.
        let _ = self.output.send(what).await;
    }
}
