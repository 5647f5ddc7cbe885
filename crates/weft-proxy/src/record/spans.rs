//! Linkerd's spans for a connection, as text: made when a line about it is written, from what its story knows.

use super::Story;
use std::fmt::Write;
use weft_fault::Phase;
use weft_wire::record::{ConnectionRecord, Direction};

impl Story {
    /// `inbound:accept{client.addr=… target.addr=…}:server{port=…}:http{v=1.x}`, or what `outbound` has.
    pub(crate) fn spans(&self) -> String {
        spans(&self.live.record.lock())
    }

    /// The client's TLS, as Linkerd's lines say it: `None(NoClientHello)`.
    pub(crate) fn client_tls(&self) -> String {
        let record = self.live.record.lock();
        match record.tls.as_deref() {
            Some("mutual") => match &record.client_identity {
                Some(id) => format!("Some(Established {{ client_id: {id} }})"),
                None => "Some(Established { client_id: None })".into(),
            },
            Some("passthrough") => "Some(Passthru)".into(),
            Some("loopback") => "None(Loopback)".into(),
            Some("port_skipped") => "None(PortSkipped)".into(),
            _ => "None(NoClientHello)".into(),
        }
    }
}

fn spans(record: &ConnectionRecord) -> String {
    let mut text = String::from(record.direction.as_str());
    let mut span = |name: &str, fields: &[(&str, &str)]| {
        // Writing to a String cannot fail.
        let _infallible = write!(text, ":{name}");
        for (at, (key, value)) in fields.iter().enumerate() {
            // What separates spans and fields must not stand in a value.
            let value = value.replace([' ', '{', '}'], "_");
            let _infallible = write!(text, "{}{key}={value}", if at == 0 { '{' } else { ' ' });
        }
        if !fields.is_empty() {
            text.push('}');
        }
    };
    let client = record.client.to_string();
    let server = record.server.map(|addr| addr.to_string());
    let service = record.service.as_deref();
    let version = match record.protocol.as_deref() {
        Some("http/1") => Some("1.x"),
        Some("http/2") => Some("h2"),
        _ => None,
    };
    match (record.direction, &server) {
        (Direction::Inbound, server) => {
            match server {
                Some(server) => span("accept", &[("client.addr", &client), ("target.addr", server)]),
                None => span("accept", &[("client.addr", &client)]),
            }
            // A port of its own is the only one on which clients send a transport header.
            if record.events.iter().any(|event| event.phase == Phase::TransportHeader) {
                span("direct", &[]);
            } else if let Some(server) = record.server {
                span("server", &[("port", &server.port().to_string())]);
            }
            if let Some(service) = service {
                span("gateway", &[("dst", service)]);
            }
        }
        (Direction::Outbound, server) => {
            span("accept", &[("client.addr", &client)]);
            if let Some(server) = server {
                span("proxy", &[("addr", server)]);
            }
        }
    }
    if let Some(version) = version {
        span("http", &[("v", version)]);
    }
    if record.direction == Direction::Outbound {
        if let Some(service) = service {
            span("logical", &[("dst", service)]);
        }
        if let Some(endpoint) = record.endpoint {
            span("endpoint", &[("peer.addr", &endpoint.to_string())]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::{metrics::Metrics, record::Recorder};
    use std::{net::SocketAddr, time::Duration};
    use weft_fault::Phase;
    use weft_model::identity::Identity;
    use weft_wire::record::Direction;

    #[test]
    fn what_a_story_knows_is_said_in_linkerds_spans() {
        let id = Identity::parse("web.shop").unwrap();
        let (recorder, _journal) =
            Recorder::new(Metrics::new(Duration::from_secs(1)), "shop/web".into(), &id);
        let addr = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (client, server) = (addr("10.1.1.9:4321"), addr("10.1.1.1:80"));

        let story = recorder.story(Direction::Inbound, client, Some(server));
        let accept = "inbound:accept{client.addr=10.1.1.9:4321 target.addr=10.1.1.1:80}";
        assert_eq!(story.spans(), format!("{accept}:server{{port=80}}"));
        assert_eq!(story.client_tls(), "None(NoClientHello)");
        story.protocol("http/2");
        assert_eq!(story.spans(), format!("{accept}:server{{port=80}}:http{{v=h2}}"));
        story.event(Phase::TransportHeader, "for port 80");
        story.service("api.shop.svc.cluster.local:80");
        story.tls("mutual");
        story.client_identity(&id);
        assert_eq!(
            story.spans(),
            format!("{accept}:direct:gateway{{dst=api.shop.svc.cluster.local:80}}:http{{v=h2}}")
        );
        assert_eq!(story.client_tls(), "Some(Established { client_id: web.shop })");

        let story = recorder.story(Direction::Outbound, client, Some(server));
        story.service("a {b}");
        story.protocol("http/1");
        story.endpoint(addr("10.1.1.2:8080"));
        assert_eq!(
            story.spans(),
            "outbound:accept{client.addr=10.1.1.9:4321}:proxy{addr=10.1.1.1:80}:http{v=1.x}\
             :logical{dst=a__b_}:endpoint{peer.addr=10.1.1.2:8080}"
        );
    }
}
