//! Linkerd's spans for a connection, as text: made when a line about it is written, from what its story knows.

use super::Story;
use std::fmt::Write;
use weft_fault::Phase;
use weft_wire::record::{ConnectionRecord, Direction};

impl Story {
    /// `inbound:accept{client.addr=… target.addr=…}:server{port=…}:http{v=1.x}`, or what `outbound` has.
    pub(crate) fn spans(&self) -> String {
        let record = self.live.record.lock();
        let mut spans = match (self.live.behind.get(), record.direction) {
            (Some(behind), _) => Spans(behind.clone()),
            (None, Direction::Inbound) => inbound(&record),
            (None, Direction::Outbound) => outbound(&record),
        };
        let version = match record.protocol.as_deref() {
            Some("http/1") => Some("1.x"),
            Some("http/2") => Some("h2"),
            _ => None,
        };
        if let Some(version) = version {
            spans.add("http", &[("v", version)]);
        }
        if record.direction == Direction::Outbound {
            if let Some(service) = &record.service {
                spans.add("logical", &[("dst", service)]);
            }
            if let Some(concrete) = &*self.live.concrete.lock() {
                spans.add("concrete", &[("addr", concrete)]);
            }
            if let Some(endpoint) = record.endpoint {
                spans.add("endpoint", &[("peer.addr", &endpoint.to_string())]);
            }
        }
        spans.0
    }

    /// Goes on with what came in by another connection, for `name`: a gateway's lines are about both.
    pub(crate) fn behind(&self, came: &Story, name: &str) {
        let came = came.live.record.lock();
        let mut spans = inbound(&came);
        spans.add("gateway", &[("dst", name)]);
        let protocol = came.protocol.clone();
        drop(came);
        // It is set here only, once for each story.
        let _once = self.live.behind.set(spans.0);
        self.live.record.lock().protocol = protocol;
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

/// Spans, from the outermost inwards.
struct Spans(String);

impl Spans {
    fn add(&mut self, name: &str, fields: &[(&str, &str)]) {
        let text = &mut self.0;
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
    }
}

fn inbound(record: &ConnectionRecord) -> Spans {
    let mut spans = Spans(Direction::Inbound.as_str().into());
    let client = record.client.to_string();
    let Some(server) = record.server else {
        spans.add("accept", &[("client.addr", &client)]);
        return spans;
    };
    spans.add("accept", &[("client.addr", &client), ("target.addr", &server.to_string())]);
    // A port of its own is the only one on which clients send a transport header.
    if record.events.iter().any(|event| event.phase == Phase::TransportHeader) {
        spans.add("direct", &[]);
    } else {
        spans.add("server", &[("port", &server.port().to_string())]);
    }
    spans
}

fn outbound(record: &ConnectionRecord) -> Spans {
    let mut spans = Spans(Direction::Outbound.as_str().into());
    spans.add("accept", &[("client.addr", &record.client.to_string())]);
    if let Some(server) = record.server {
        spans.add("proxy", &[("addr", &server.to_string())]);
    }
    spans
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
        story.tls("mutual");
        story.client_identity(&id);
        assert_eq!(story.spans(), format!("{accept}:direct:http{{v=h2}}"));
        assert_eq!(story.client_tls(), "Some(Established { client_id: web.shop })");

        let onward = recorder.story(Direction::Outbound, client, None);
        onward.service("service/shop/api:80");
        onward.behind(&story, "api.shop.svc.cluster.local");
        let gateway = format!("{accept}:direct:gateway{{dst=api.shop.svc.cluster.local}}:http{{v=h2}}");
        assert_eq!(onward.spans(), format!("{gateway}:logical{{dst=service/shop/api:80}}"));
        onward.concrete("api.shop.svc.cluster.local:80");
        onward.endpoint(addr("10.1.1.2:8080"));
        assert_eq!(
            onward.spans(),
            format!(
                "{gateway}:logical{{dst=service/shop/api:80}}:concrete{{addr=api.shop.svc.cluster.local:80}}\
                 :endpoint{{peer.addr=10.1.1.2:8080}}"
            )
        );

        let story = recorder.story(Direction::Outbound, client, Some(server));
        story.service("a {b}");
        story.protocol("http/1");
        story.concrete("web.shop:80");
        story.endpoint(addr("10.1.1.2:8080"));
        assert_eq!(
            story.spans(),
            "outbound:accept{client.addr=10.1.1.9:4321}:proxy{addr=10.1.1.1:80}:http{v=1.x}\
             :logical{dst=a__b_}:concrete{addr=web.shop:80}:endpoint{peer.addr=10.1.1.2:8080}"
        );
    }
}
