//! The mesh's name server: names of services and pods, and everything else through a socket of the outside.

mod forward;
mod names;

use crate::{network::Network, services::Services};
use forward::Forwarder;
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use names::{Answer, Zone};
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{Semaphore, watch},
    time::timeout,
};

/// What a client that says nothing else takes by UDP.
const PLAIN_PAYLOAD: u16 = 512;
/// And the most that is sent to one that says it takes more.
const LARGEST_PAYLOAD: u16 = 4096;
/// Questions under way; more are dropped, and their clients ask again.
const QUESTIONS: usize = 512;
const TCP_CONNECTIONS: usize = 64;
const TCP_IDLE: Duration = Duration::from_secs(10);

/// The name server. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Dns {
    zone: Arc<Zone>,
    services: watch::Receiver<Arc<Services>>,
    forwarder: Option<Forwarder>,
}

impl Dns {
    /// `outside` is a socket of the outside's network and its name servers.
    pub(crate) fn new(
        network: Network,
        domain: &str,
        services: watch::Receiver<Arc<Services>>,
        outside: Option<(UdpSocket, Vec<SocketAddr>)>,
    ) -> Self {
        let forwarder = outside.filter(|(_, servers)| !servers.is_empty());
        let forwarder = forwarder.map(|(socket, servers)| Forwarder::start(socket, servers));
        Dns { zone: Arc::new(Zone::new(network, domain)), services, forwarder }
    }

    /// Serves for ever.
    pub(crate) async fn serve(self, udp: UdpSocket, tcp: TcpListener) {
        tokio::join!(self.clone().serve_udp(udp), self.serve_tcp(tcp));
    }

    async fn serve_udp(self, socket: UdpSocket) {
        let socket = Arc::new(socket);
        let room = Arc::new(Semaphore::new(QUESTIONS));
        let mut buffer = vec![0; usize::from(LARGEST_PAYLOAD)];
        loop {
            let (length, from) = match socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                // An earlier answer could not be delivered.
                Err(error) => {
                    tracing::debug!(%error, "DNS receive");
                    continue;
                }
            };
            let Ok(permit) = room.clone().try_acquire_owned() else { continue };
            let (dns, socket, question) = (self.clone(), socket.clone(), buffer[..length].to_vec());
            tokio::spawn(async move {
                let _permit = permit;
                if let Some(answer) = dns.answer(&question, true).await {
                    let _ = socket.send_to(&answer, from).await;
                }
            });
        }
    }

    async fn serve_tcp(self, listener: TcpListener) {
        let room = Arc::new(Semaphore::new(TCP_CONNECTIONS));
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "DNS accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let Ok(permit) = room.clone().try_acquire_owned() else { continue };
            let dns = self.clone();
            tokio::spawn(async move {
                let _permit = permit;
                // Clients close when they have what they want.
                let _ = dns.serve_stream(stream).await;
            });
        }
    }

    async fn serve_stream(self, mut stream: TcpStream) -> io::Result<()> {
        loop {
            let question = timeout(TCP_IDLE, async {
                let mut question = vec![0; usize::from(stream.read_u16().await?)];
                stream.read_exact(&mut question).await?;
                io::Result::Ok(question)
            })
            .await??;
            let Some(answer) = self.answer(&question, false).await else { return Ok(()) };
            let length = u16::try_from(answer.len()).map_err(|_| io::ErrorKind::InvalidData)?;
            let framed = [&length.to_be_bytes(), answer.as_slice()].concat();
            timeout(TCP_IDLE, stream.write_all(&framed)).await??;
        }
    }

    /// The answer to one message; `None` if it deserves none.
    async fn answer(&self, bytes: &[u8], datagram: bool) -> Option<Vec<u8>> {
        let query = Message::from_vec(bytes).ok()?;
        if query.metadata.message_type != MessageType::Query {
            return None;
        }
        let mut answer = Message::response(query.metadata.id, query.metadata.op_code);
        answer.metadata.recursion_desired = query.metadata.recursion_desired;
        answer.metadata.recursion_available = true;
        let [question] = query.queries.as_slice() else {
            answer.metadata.response_code = ResponseCode::FormErr;
            return answer.to_vec().ok();
        };
        answer.add_query(question.clone());
        if query.metadata.op_code != OpCode::Query {
            answer.metadata.response_code = ResponseCode::NotImp;
            return answer.to_vec().ok();
        }
        let services = self.services.borrow().clone();
        match self.zone.answer(&services, question.name(), question.query_type()) {
            Answer::Here { code, answers, additionals } => {
                answer.metadata.authoritative = true;
                answer.metadata.response_code = code;
                if answers.is_empty() {
                    answer.add_authorities(self.zone.authority());
                }
                answer.add_answers(answers);
                answer.add_additionals(additionals);
            }
            Answer::Elsewhere => match &self.forwarder {
                Some(forwarder) => match forwarder.ask(bytes, &query).await {
                    Some(forwarded) => return Some(forwarded),
                    None => answer.metadata.response_code = ResponseCode::ServFail,
                },
                // Nobody to ask. A refusal would make some resolvers wait; this lets them go on at once.
                None => answer.metadata.response_code = ResponseCode::NXDomain,
            },
        }
        let limit = if datagram { payload(&query) } else { u16::MAX };
        let bytes = answer.to_vec().ok()?;
        if bytes.len() <= usize::from(limit) {
            return Some(bytes);
        }
        answer.truncate().to_vec().ok()
    }
}

/// The longest datagram that the client takes.
fn payload(query: &Message) -> u16 {
    query.edns.as_ref().map_or(PLAIN_PAYLOAD, |e| e.max_payload().clamp(PLAIN_PAYLOAD, LARGEST_PAYLOAD))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::tests::{services, slice};
    use hickory_proto::{
        op::{Edns, Query},
        rr::{Name, RData, Record, RecordType, rdata::A},
    };
    use serde_json::{Value, json};
    use std::net::Ipv4Addr;

    fn dns(outside: Option<(UdpSocket, Vec<SocketAddr>)>) -> Dns {
        let many: Vec<Value> = (2..42).map(|n| json!({"addresses": [format!("10.77.0.{n}")]})).collect();
        let all = services(json!([
            {"kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"clusterIP": "10.78.0.20"}},
            {"kind": "Service", "metadata": {"name": "many", "namespace": "shop"}, "spec": {"clusterIP": "None"}},
            slice("many", json!(many), json!([])),
        ]));
        let (_, services) = watch::channel(Arc::new(all));
        Dns::new(Network::usual(), "cluster.local", services, outside)
    }

    fn question(name: &str) -> Message {
        let mut m = Message::query();
        m.metadata.id = 77;
        m.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
        m
    }

    async fn ask(dns: &Dns, m: &Message, datagram: bool) -> Message {
        Message::from_vec(&dns.answer(&m.to_vec().unwrap(), datagram).await.unwrap()).unwrap()
    }

    #[tokio::test]
    async fn answers_truncates_and_refuses_nonsense() {
        let dns = dns(None);
        let got = ask(&dns, &question("web.shop.svc.cluster.local."), true).await;
        assert_eq!((got.metadata.id, got.answers.len()), (77, 1));
        let no = ask(&dns, &question("no.shop.svc.cluster.local."), true).await;
        assert_eq!(no.metadata.response_code, ResponseCode::NXDomain);
        assert_eq!(no.authorities.len(), 1);
        let mut many = question("many.shop.svc.cluster.local.");
        assert!(ask(&dns, &many, true).await.metadata.truncation);
        assert_eq!(ask(&dns, &many, false).await.answers.len(), 40);
        let mut edns = Edns::new();
        edns.set_max_payload(4096);
        many.set_edns(edns);
        assert_eq!(ask(&dns, &many, true).await.answers.len(), 40);
        // Without resolvers outside, quickly no.
        let foreign = ask(&dns, &question("example.com."), true).await;
        assert_eq!(foreign.metadata.response_code, ResponseCode::NXDomain);
        assert!(dns.answer(&[1, 2, 3], true).await.is_none());
    }

    #[tokio::test]
    async fn other_names_are_asked_outside() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (n, from) = server.recv_from(&mut buffer).await.unwrap();
                let mut m = Message::from_vec(&buffer[..n]).unwrap();
                // A wrong number first: an answer to somebody else's question.
                let mut wrong = m.clone().into_response();
                wrong.metadata.id = wrong.metadata.id.wrapping_add(1);
                server.send_to(&wrong.to_vec().unwrap(), from).await.unwrap();
                let name = m.queries[0].name().clone();
                m = m.into_response();
                m.add_answer(Record::from_rdata(name, 60, RData::A(A(Ipv4Addr::new(192, 0, 2, 7)))));
                server.send_to(&m.to_vec().unwrap(), from).await.unwrap();
            }
        });
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let dns = dns(Some((socket, vec![address])));
        let (q1, q2) = (question("example.com."), question("example.org."));
        let (one, two) = tokio::join!(ask(&dns, &q1, true), ask(&dns, &q2, false));
        for (got, name) in [(one, "example.com."), (two, "example.org.")] {
            assert_eq!(got.metadata.id, 77);
            assert_eq!(got.queries[0].name().to_string(), name);
            assert_eq!(got.answers.len(), 1);
        }
    }
}
