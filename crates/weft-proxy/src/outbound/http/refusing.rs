//! HTTP that leads nowhere: its destination is not known in time.

use crate::{
    detect::{self, Protocol},
    http::{
        body::Body,
        headers,
        respond::{Audience, Detail, refusal},
        server::{self, Closing, Service},
    },
    io::{Io, Transport},
    metrics::Metrics,
    outbound::Worker,
    record::Story,
    report::{self, Who},
};
use http::{HeaderValue, Request, Response, Version, header};
use std::{error::Error, net::SocketAddr, rc::Rc, time::Duration};
use tokio::net::TcpStream;
use weft_fault::Fault;
use weft_net::prefixed::Prefixed;
use weft_wire::record::Direction;

/// Answers every request with `fault`; a connection that is not HTTP is closed.
pub(in crate::outbound) async fn refuse_all(
    worker: Rc<Worker>,
    mut stream: Prefixed<TcpStream>,
    client: SocketAddr,
    dst: SocketAddr,
    story: Rc<Story>,
    fault: Fault,
) -> Result<(), Fault> {
    let mesh = worker.mesh.clone();
    let detail = if mesh.config.outbound.informational_headers { Detail::Full } else { Detail::Nothing };
    // What has not come by now did not wait for us.
    let (protocol, _) = detect::protocol(&mut stream, REFUSE_DETECT).await?;
    if protocol == Protocol::Opaque {
        // The application must not take an orderly end for an empty answer.
        let _best_effort = weft_net::socket::reset_on_close(stream.get_ref());
        return Err(fault);
    }
    story.protocol(protocol.as_str());
    let io = Io::new(stream.map(Transport::Plain));
    let refusing =
        Rc::new(Refusing { worker, story, client, dst, fault, detail, closing: Closing::default() });
    server::serve(io, protocol, mesh.config.outbound_server(), &mesh.drain, refusing).await
}

const REFUSE_DETECT: Duration = Duration::from_secs(1);

struct Refusing {
    worker: Rc<Worker>,
    story: Rc<Story>,
    client: SocketAddr,
    dst: SocketAddr,
    fault: Fault,
    detail: Detail,
    closing: Closing,
}

impl Service for Refusing {
    async fn call(
        self: Rc<Self>,
        request: Request<Body>,
    ) -> Result<Response<Body>, Box<dyn Error + Send + Sync>> {
        let audience =
            Audience { grpc: headers::is_grpc(&request), version: request.version(), detail: self.detail };
        let who = Who { client: self.client, target: &self.dst };
        let metrics = &self.worker.mesh.metrics;
        report::request_failed(metrics, &self.story, Direction::Outbound, who, &self.fault);
        self.closing.close();
        let mut response = refusal(&self.fault, audience);
        // The next connection may find the answer there: this one must not be kept.
        if audience.version != Version::HTTP_2 {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    fn refuse(&self, fault: &Fault) -> Response<Body> {
        let audience = Audience { grpc: false, version: Version::HTTP_11, detail: self.detail };
        refusal(fault, audience)
    }

    fn metrics(&self) -> &Metrics {
        &self.worker.mesh.metrics
    }

    /// Its answers have no bodies to take.
    fn abandoned(&self, _fault: &Fault) {}

    fn of_proxy(&self) -> bool {
        false
    }

    fn closing(&self) -> &Closing {
        &self.closing
    }
}
