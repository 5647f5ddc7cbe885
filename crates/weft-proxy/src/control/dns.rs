//! Where the control plane is: SRV records first, then addresses, from the machine's own resolvers.
//!
//! The answer is used for as long as it says, within the configured bounds. Answers are read from whoever can send a
//! datagram to us: they are bounded in size, number and time, and have to repeat the question.

use hickory_proto::{
    op::{Edns, Message, Query, ResponseCode},
    rr::{Name, RData, RecordType},
};
use rand::seq::SliceRandom;
use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UdpSocket,
    time::timeout,
};
use weft_fault::{Code, Fault, Phase};
use weft_net::socket;

/// The whole of it.
const RESOLVE: Duration = Duration::from_secs(5);
/// One question to one server.
const ATTEMPT: Duration = Duration::from_millis(1_200);
const ROUNDS: usize = 2;
const SERVERS: usize = 3;
/// Replicas that are told apart; more are left out at random.
pub(super) const ADDRESSES: usize = 16;
/// What arrives in one datagram without being cut into pieces on the way.
const DATAGRAM: u16 = 1_232;
/// An answer without a life of its own: from the system's library, or one that is empty.
const UNTOLD: Duration = Duration::from_secs(5);
/// Names are not asked for more often than this, whatever an answer says.
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(3_600);

/// Resolves names of the control plane.
#[derive(Clone, Debug)]
pub struct Resolver {
    servers: Servers,
    least: Duration,
    most: Duration,
}

#[derive(Clone, Debug)]
enum Servers {
    /// What resolv.conf(5) names, read anew each time.
    System,
    #[cfg_attr(not(test), expect(dead_code))]
    Fixed(Vec<SocketAddr>),
}

/// What a name leads to, and for how long.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) addrs: BTreeSet<SocketAddr>,
    pub(super) valid: Duration,
    /// Found by the records of its replicas.
    pub(super) by_srv: bool,
}

/// The parts of an answer that are of use.
struct Answer {
    data: Vec<RData>,
    ttl: Option<Duration>,
}

impl Resolver {
    /// The machine's resolvers; answers are used no shorter and no longer than configured.
    #[must_use]
    pub fn system(min_ttl: Option<Duration>, max_ttl: Option<Duration>) -> Resolver {
        let most = max_ttl.unwrap_or(MOST).max(LEAST);
        Resolver { servers: Servers::System, least: min_ttl.unwrap_or(LEAST).clamp(LEAST, most), most }
    }

    #[cfg(test)]
    pub(super) fn asking(server: SocketAddr) -> Resolver {
        Resolver { servers: Servers::Fixed(vec![server]), ..Resolver::system(None, None) }
    }

    /// `loopback`: other addresses would not be plaintext's to reach.
    pub(super) async fn resolve(&self, host: &str, port: u16, loopback: bool) -> Result<Resolved, Fault> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(Resolved {
                addrs: BTreeSet::from([SocketAddr::new(ip, port)]),
                valid: MOST,
                by_srv: false,
            });
        }
        let fault = || {
            let fault = Fault::new(Code::ControllerUnreachable).in_phase(Phase::Control).about(host);
            fault.fact("step", "name")
        };
        let mut found = match timeout(RESOLVE, self.look_up(host, port, loopback)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return Err(fault().because(error)),
            Err(_) => return Err(fault().fact("waited_ms", RESOLVE.as_millis())),
        };
        if loopback {
            found.addrs.retain(|addr| addr.ip().is_loopback());
        }
        if found.addrs.is_empty() {
            return Err(fault().fact("addresses", 0));
        }
        if found.addrs.len() > ADDRESSES {
            let mut all: Vec<SocketAddr> = found.addrs.into_iter().collect();
            all.shuffle(&mut rand::rng());
            found.addrs = all.into_iter().take(ADDRESSES).collect();
        }
        found.valid = found.valid.clamp(self.least, self.most);
        Ok(found)
    }

    async fn look_up(&self, host: &str, port: u16, loopback: bool) -> io::Result<Resolved> {
        let servers = match &self.servers {
            _ if loopback => Vec::new(),
            Servers::System => match tokio::fs::read_to_string("/etc/resolv.conf").await {
                Ok(text) => nameservers(&text),
                Err(_) => Vec::new(),
            },
            Servers::Fixed(servers) => servers.clone(),
        };
        // Names that only /etc/hosts or a search list knows, and machines without resolvers, are the library's matter.
        let by_library = async || {
            let addrs = tokio::net::lookup_host((host, port)).await?.take(ADDRESSES).collect();
            Ok(Resolved { addrs, valid: UNTOLD, by_srv: false })
        };
        let Some(name) = name_of(host).filter(|_| !servers.is_empty()) else { return by_library().await };

        // 1. Each replica by itself.
        let by_srv = match ask(&servers, &name, RecordType::SRV).await {
            Ok(answer) => services(&servers, answer, port).await,
            Err(error) => return by_library().await.map_err(|_| error),
        };
        if !by_srv.addrs.is_empty() {
            return Ok(by_srv);
        }
        // 2. The name's own addresses.
        let by_addr = addresses(&servers, &name, port).await;
        if !by_addr.addrs.is_empty() {
            return Ok(by_addr);
        }
        by_library().await
    }
}

/// The addresses that SRV records lead to. A target whose first label is an address with dashes is read as that address:
/// it is how a cluster's DNS names the pods of a service.
async fn services(servers: &[SocketAddr], answer: Answer, port: u16) -> Resolved {
    let mut targets: Vec<(Name, u16)> = answer
        .data
        .into_iter()
        .filter_map(|data| match data {
            RData::SRV(srv) => Some((srv.target.clone(), srv.port)),
            _ => None,
        })
        .collect();
    // A service with several ports has a record for each.
    if targets.iter().any(|(_, p)| *p == port) {
        targets.retain(|(_, p)| *p == port);
    }
    let mut found = Resolved { addrs: BTreeSet::new(), valid: answer.ttl.unwrap_or(UNTOLD), by_srv: true };
    for (target, port) in targets.into_iter().take(ADDRESSES * 4) {
        match dashed(&target) {
            Some(ip) => drop(found.addrs.insert(SocketAddr::new(ip, port))),
            None if found.addrs.len() < ADDRESSES => {
                let more = addresses(servers, &target, port).await;
                found.addrs.extend(more.addrs);
                found.valid = found.valid.min(more.valid);
            }
            None => {}
        }
    }
    found
}

async fn addresses(servers: &[SocketAddr], name: &Name, port: u16) -> Resolved {
    let (four, six) = tokio::join!(ask(servers, name, RecordType::A), ask(servers, name, RecordType::AAAA));
    let mut found = Resolved { addrs: BTreeSet::new(), valid: UNTOLD, by_srv: false };
    let answers: Vec<Answer> = [four, six].into_iter().flatten().collect();
    if let Some(ttl) = answers.iter().filter_map(|answer| answer.ttl).min() {
        found.valid = ttl;
    }
    for data in answers.into_iter().flat_map(|answer| answer.data).take(ADDRESSES * 4) {
        let ip = match data {
            RData::A(a) => IpAddr::V4(a.0),
            RData::AAAA(aaaa) => IpAddr::V6(aaaa.0),
            _ => continue,
        };
        found.addrs.insert(SocketAddr::new(ip, port));
    }
    found
}

/// `10-0-0-1.…` is 10.0.0.1, and `fd00--1.…` is fd00::1.
fn dashed(target: &Name) -> Option<IpAddr> {
    let label = std::str::from_utf8(target.iter().next()?).ok()?;
    let four = label.replace('-', ".").parse().map(IpAddr::V4);
    four.or_else(|_| label.replace('-', ":").parse().map(IpAddr::V6)).ok()
}

fn name_of(host: &str) -> Option<Name> {
    Name::from_str(&format!("{host}.")).ok()
}

/// `nameserver ADDRESS` lines.
fn nameservers(text: &str) -> Vec<SocketAddr> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    // A scope, as in fe80::1%eth0, names a link that only the library knows.
    lines
        .filter_map(|rest| rest.trim().parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, 53)))
        .take(SERVERS)
        .collect()
}

/// The first usable answer of any server. That there is no such name, or nothing of this kind, is an answer.
async fn ask(servers: &[SocketAddr], name: &Name, kind: RecordType) -> io::Result<Answer> {
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    for server in std::iter::repeat_n(servers, ROUNDS).flatten() {
        let answered = match timeout(ATTEMPT, question(*server, name, kind)).await {
            Ok(answered) => answered,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("{server} does not answer"))),
        };
        match answered {
            Ok(message) => match message.metadata.response_code {
                ResponseCode::NoError | ResponseCode::NXDomain => {
                    let ttl = message.answers.iter().map(|record| record.ttl).min();
                    let ttl = ttl.map(|seconds| Duration::from_secs(seconds.into()));
                    let data = message.answers.into_iter().map(|record| record.data).collect();
                    return Ok(Answer { data, ttl });
                }
                code => last = io::Error::other(format!("{server} answers {code} for {name} {kind}")),
            },
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Over UDP, and over TCP if the answer does not fit.
async fn question(server: SocketAddr, name: &Name, kind: RecordType) -> io::Result<Message> {
    let query = Query::query(name.clone(), kind);
    let mut message = Message::query();
    message.metadata.id = rand::random();
    message.metadata.recursion_desired = true;
    message.add_query(query.clone());
    let mut edns = Edns::new();
    edns.set_max_payload(DATAGRAM);
    message.set_edns(edns);
    let bytes = message.to_vec().map_err(io::Error::other)?;
    let is_answer =
        |answer: &Message| answer.metadata.id == message.metadata.id && answer.queries == [query.clone()];

    let local: IpAddr = if server.is_ipv4() { [0u8; 4].into() } else { [0u8; 16].into() };
    let socket = UdpSocket::bind((local, 0)).await?;
    socket.connect(server).await?;
    socket.send(&bytes).await?;
    let mut buffer = vec![0; DATAGRAM.into()];
    let answer = loop {
        let length = socket.recv(&mut buffer).await?;
        // What does not repeat the question is somebody else's answer, or nobody's.
        if let Ok(answer) = Message::from_vec(&buffer[..length])
            && is_answer(&answer)
        {
            break answer;
        }
    };
    if !answer.metadata.truncation {
        return Ok(answer);
    }
    let mut stream = socket::connect(server, socket::Options::default()).await?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &bytes].concat()).await?;
    let mut buffer = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut buffer).await?;
    let answer = Message::from_vec(&buffer).map_err(io::Error::other)?;
    if is_answer(&answer) { Ok(answer) } else { Err(io::Error::from(io::ErrorKind::InvalidData)) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hickory_proto::rr::{Record, rdata};
    use std::sync::{Arc, Mutex};

    /// What a scripted server says: name, kind, data.
    type Script = Arc<Mutex<Vec<(String, RData)>>>;

    /// A name server on loopback. Answers to UDP questions that `cut` chooses are truncated.
    pub(in crate::control) async fn server(script: Script, ttl: u32, cut: bool) -> SocketAddr {
        let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(addr).await.unwrap();
        let answer = move |bytes: &[u8]| {
            let asked = Message::from_vec(bytes).unwrap();
            let query = asked.queries[0].clone();
            let mut answer = asked.into_response();
            let script = script.lock().unwrap();
            if !script.iter().any(|(name, _)| *name == query.name().to_string()) {
                answer.metadata.response_code = ResponseCode::NXDomain;
            }
            for (name, data) in script.iter() {
                if *name == query.name().to_string() && data.record_type() == query.query_type() {
                    answer.add_answer(Record::from_rdata(query.name().clone(), ttl, data.clone()));
                }
            }
            answer
        };
        let by_tcp = answer.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 2_048];
            while let Ok((length, from)) = udp.recv_from(&mut buffer).await {
                let mut said = answer(&buffer[..length]);
                // Somebody else's answer comes first.
                let mut wrong = said.clone();
                wrong.metadata.id = wrong.metadata.id.wrapping_add(1);
                udp.send_to(&wrong.to_vec().unwrap(), from).await.unwrap();
                if cut {
                    said.answers.clear();
                    said.metadata.truncation = true;
                }
                udp.send_to(&said.to_vec().unwrap(), from).await.unwrap();
            }
        });
        tokio::spawn(async move {
            while let Ok((mut io, _)) = tcp.accept().await {
                let length = io.read_u16().await.unwrap();
                let mut buffer = vec![0; length.into()];
                io.read_exact(&mut buffer).await.unwrap();
                let said = by_tcp(&buffer).to_vec().unwrap();
                io.write_all(&[&u16::try_from(said.len()).unwrap().to_be_bytes()[..], &said].concat())
                    .await
                    .unwrap();
            }
        });
        addr
    }

    pub(in crate::control) fn srv(name: &str, target: &str, port: u16) -> (String, RData) {
        let srv = rdata::SRV::new(0, 100, port, Name::from_str(target).unwrap());
        (name.to_owned(), RData::SRV(srv))
    }

    pub(in crate::control) fn a(name: &str, ip: [u8; 4]) -> (String, RData) {
        (name.to_owned(), RData::A(rdata::A(ip.into())))
    }

    fn addrs(all: &[&str]) -> BTreeSet<SocketAddr> {
        all.iter().map(|addr| addr.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn replicas_are_found_by_srv_and_others_by_address() {
        let script: Script = Arc::new(Mutex::new(vec![
            srv("dst.linkerd.", "10-0-0-1.dst.linkerd.", 8086),
            srv("dst.linkerd.", "fd00--2.dst.linkerd.", 8086),
            srv("dst.linkerd.", "named.linkerd.", 8086),
            // Another port of the same service.
            srv("dst.linkerd.", "10-0-0-1.dst.linkerd.", 9990),
            a("named.linkerd.", [10, 0, 0, 3]),
            a("plain.linkerd.", [10, 0, 0, 4]),
        ]));
        for cut in [false, true] {
            let resolver = Resolver::asking(server(script.clone(), 30, cut).await);
            let found = resolver.resolve("dst.linkerd", 8086, false).await.unwrap();
            assert_eq!(found.addrs, addrs(&["10.0.0.1:8086", "[fd00::2]:8086", "10.0.0.3:8086"]));
            assert_eq!(found.valid, Duration::from_secs(30));
            let found = resolver.resolve("plain.linkerd", 8086, false).await.unwrap();
            assert_eq!(found.addrs, addrs(&["10.0.0.4:8086"]));
        }
    }

    #[tokio::test]
    async fn the_life_of_an_answer_is_kept_within_bounds() {
        let script: Script = Arc::new(Mutex::new(vec![a("plain.linkerd.", [10, 0, 0, 4])]));
        let secs = Duration::from_secs;
        for (ttl, least, most, expected) in [
            (0, None, None, secs(1)),
            (5, Some(secs(60)), None, secs(60)),
            (600, None, Some(secs(30)), secs(30)),
            (20, Some(secs(10)), Some(secs(30)), secs(20)),
        ] {
            let server = server(script.clone(), ttl, false).await;
            let resolver =
                Resolver { servers: Servers::Fixed(vec![server]), ..Resolver::system(least, most) };
            assert_eq!(resolver.resolve("plain.linkerd", 1, false).await.unwrap().valid, expected);
        }
    }

    #[tokio::test]
    async fn a_name_that_nobody_knows_is_a_fault_that_says_so() {
        let resolver = Resolver::asking(server(Script::default(), 5, false).await);
        let fault = resolver.resolve("nobody.invalid", 1, false).await.unwrap_err();
        assert_eq!(fault.code(), Code::ControllerUnreachable);
        assert_eq!(fault.record().fact("step"), Some("name"));
    }

    #[tokio::test]
    async fn plaintext_stays_on_loopback() {
        let script: Script = Arc::new(Mutex::new(vec![a("localhost.", [192, 0, 2, 1])]));
        let resolver = Resolver::asking(server(script, 5, false).await);
        let found = resolver.resolve("localhost", 1, true).await.unwrap();
        assert!(found.addrs.iter().all(|addr| addr.ip().is_loopback()), "{found:?}");
    }

    #[test]
    fn resolvers_are_read_from_the_systems_file() {
        let text = "search a.b\n# nameserver 1.1.1.1\nnameserver 10.0.0.10\n nameserver fd00::a \nnameserver fe80::1%eth0\n";
        let expected = ["10.0.0.10:53", "[fd00::a]:53"].map(|addr| addr.parse().unwrap());
        assert_eq!(nameservers(text), expected);
    }
}
