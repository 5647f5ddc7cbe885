use super::*;

impl Abort for tokio::io::DuplexStream {
    fn abort(&mut self) {}
}

const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

fn head(kind: u8, flags: u8, stream: u32, length: usize) -> FrameHead {
    FrameHead { length, kind, flags, stream }
}

/// How many of these frames are taken in a row.
fn taken(budget: &mut Budget, now: Instant, mut frame: impl FnMut(u32) -> Vec<FrameHead>) -> Option<u32> {
    (0..100_000).find(|i| frame(*i).into_iter().any(|frame| budget.received(frame, now).is_err()))
}

#[test]
fn every_frame_that_only_costs_has_an_end() {
    let now = Instant::now();
    let floods: [(&str, u8, u8, usize); 6] = [
        ("PING", PING, 0, 8),
        ("SETTINGS", SETTINGS, 0, 0),
        ("PRIORITY", 2, 0, 5),
        ("WINDOW_UPDATE", WINDOW_UPDATE, 0, 4),
        ("empty DATA", DATA, 0, 0),
        ("unknown", 0xbb, 0, 0),
    ];
    for (name, kind, flags, length) in floods {
        let stopped = taken(&mut Budget::new(now, false), now, |_| vec![head(kind, flags, 1, length)]);
        assert_eq!(stopped, Some(BURST), "{name}");
    }
    assert_eq!(taken(&mut Budget::new(now, false), now, |_| vec![head(DATA, 0, 1, 1)]), None, "a body");
}

#[test]
fn time_gives_some_back() {
    let mut now = Instant::now();
    let mut budget = Budget::new(now, false);
    for _ in 0..600 {
        now += Duration::from_secs(1);
        for _ in 0..PER_SECOND - 1 {
            budget.received(head(PING, 0, 0, 8), now).unwrap();
        }
    }
    assert_eq!(taken(&mut budget, now, |_| vec![head(PING, 0, 0, 8)]).map(|n| n > 0), Some(true));
}

#[test]
fn rapid_resets_have_an_end_and_late_ones_do_not() {
    let mut now = Instant::now();
    let open_and_reset = |i: u32| {
        let stream = 2 * i + 1;
        vec![head(HEADERS, 5, stream, 20), head(RST_STREAM, 0, stream, 4)]
    };
    assert_eq!(taken(&mut Budget::new(now, false), now, open_and_reset), Some(BURST / PER_RESET));
    assert_eq!(taken(&mut Budget::new(now, true), now, open_and_reset), None, "a proxy's clients");
    // A thousand requests a second, each of which times out after two: an outage, not an attack.
    let mut budget = Budget::new(now, false);
    for i in 0..60_000 {
        now += Duration::from_millis(1);
        budget.received(head(HEADERS, 5, 2 * i + 1, 20), now).unwrap();
        if let Some(late) = i.checked_sub(2_000) {
            budget.received(head(RST_STREAM, 0, 2 * late + 1, 4), now).unwrap();
        }
    }
    assert_eq!(budget.counts.resets, 58_000);
}

#[test]
fn hedged_requests_pay_for_what_they_cancel() {
    let now = Instant::now();
    let mut budget = Budget::new(now, false);
    for i in 0..50_000 {
        let (wanted, other) = (4 * i + 1, 4 * i + 3);
        budget.received(head(HEADERS, 5, wanted, 20), now).unwrap();
        budget.received(head(HEADERS, 5, other, 20), now).unwrap();
        budget.sent(head(HEADERS, 5, wanted, 20), now).unwrap();
        budget.received(head(RST_STREAM, 0, other, 4), now).unwrap();
    }
}

#[test]
fn a_large_response_pays_for_its_window_updates() {
    let now = Instant::now();
    let mut budget = Budget::new(now, false);
    for _ in 0..10_000 {
        // 16 KiB, read in pieces of 4 KiB, each of which is told for the stream and for the connection.
        budget.sent(head(DATA, 0, 1, 16_384), now).unwrap();
        for _ in 0..8 {
            budget.received(head(WINDOW_UPDATE, 0, 1, 4), now).unwrap();
        }
    }
}

#[test]
fn resets_that_a_client_provokes_are_counted_as_its_own() {
    let now = Instant::now();
    let mut budget = Budget::new(now, false);
    let provoked = (0..10_000).find(|i| budget.sent(head(RST_STREAM, 0, 2 * i + 1, 4), now).is_err());
    assert_eq!(provoked, Some(BURST / PER_RESET));
    assert_eq!(budget.counts.resets_sent, BURST / PER_RESET + 1);
}

/// The bytes of a frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0, 0, u8::try_from(payload.len()).unwrap(), kind, flags];
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What the server side of a guard reads until its end, and the verdict.
async fn read(guard: &mut Guard<tokio::io::DuplexStream>) -> (Vec<u8>, io::ErrorKind) {
    use tokio::io::AsyncReadExt;
    let mut all = Vec::new();
    let error = guard.read_to_end(&mut all).await.map_or_else(|error| error.kind(), |_| io::ErrorKind::Other);
    (all, error)
}

#[tokio::test(start_paused = true)]
async fn a_block_that_does_not_end_is_ended() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut client, server) = tokio::io::duplex(1 << 16);
    let (mut guard, verdict) = Guard::new(server, false, None);
    let settings = frame(SETTINGS, 0, 0, &[]);
    let sent = [PREFACE, &settings, &frame(HEADERS, 0, 1, b"x")].concat();
    client.write_all(&sent).await.unwrap();
    let (seen, ended) = read(&mut guard).await;
    assert_eq!((seen, ended), (sent, io::ErrorKind::ConnectionAborted));
    let fault = verdict.fault().unwrap();
    assert_eq!(fault.code(), Code::HeaderTimeout);
    drop(guard);
    let mut told = Vec::new();
    client.read_to_end(&mut told).await.unwrap();
    assert_eq!(told, frames::goaway(1, ENHANCE_YOUR_CALM));
}

#[tokio::test(flavor = "local", start_paused = true)]
async fn idle_connections_and_slow_bodies_are_left_alone() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (mut client, server) = tokio::io::duplex(1 << 16);
    let (mut guard, verdict) = Guard::new(server, false, None);
    let serving = tokio::task::spawn_local(async move { guard.read_to_end(&mut Vec::new()).await.is_ok() });
    client.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
    tokio::time::sleep(FRAME_LIMIT * 10).await;
    client.write_all(&frame(HEADERS, frames::END_HEADERS, 1, b"x")).await.unwrap();
    client.write_all(&frame(DATA, 0, 1, b"abcdef")[..11]).await.unwrap();
    tokio::time::sleep(FRAME_LIMIT * 10).await;
    client.write_all(b"cdef").await.unwrap();
    drop(client);
    assert!(serving.await.unwrap());
    assert!(verdict.fault().is_none());
}

#[tokio::test(start_paused = true)]
async fn goaway_follows_a_whole_frame_or_is_not_sent() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    for cut in [9 + 6, 12] {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let (mut guard, verdict) = Guard::new(server, false, None);
        let mut sent = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
        let answer = frame(DATA, 0, 1, b"answer");
        guard.write_all(&answer[..cut]).await.unwrap();
        for _ in 0..=BURST + PER_RESPONSE {
            sent.extend(frame(PING, 0, 0, b"12345678"));
        }
        client.write_all(&sent).await.unwrap();
        let (_, ended) = read(&mut guard).await;
        assert_eq!(ended, io::ErrorKind::ConnectionAborted);
        assert_eq!(verdict.fault().unwrap().code(), Code::FrameFlood);
        drop(guard);
        let mut told = Vec::new();
        client.read_to_end(&mut told).await.unwrap();
        let farewell = frames::goaway(0, ENHANCE_YOUR_CALM);
        let whole =
            if cut == answer.len() { [&answer[..], &farewell].concat() } else { answer[..cut].to_vec() };
        assert_eq!(told, whole);
    }
}
