//! gRPC to a controller, as proxies speak it: over TLS, the controller's identity verified.

use std::net::SocketAddr;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint, Uri};
use weft_model::identity::Identity;
use weft_tls::{
    bundle::TrustBundle,
    credentials,
    handshake::{self, Offer},
};

/// Connects without a client certificate to a server that must prove `server`, by certificates that lead to `roots` (PEM).
pub async fn tls(addr: SocketAddr, server: &str, roots: &str) -> Result<Channel, tonic::transport::Error> {
    let roots = TrustBundle::parse(roots).expect("trust roots in PEM");
    let name = Identity::parse(server).expect("an identity");
    let connector = tower::service_fn(move |_: Uri| {
        let name = name.clone();
        let own = credentials::Client::anonymous(&roots);
        async move {
            let tcp = TcpStream::connect(addr).await?;
            let connected = handshake::connect(&own, tcp, &name, &name, Offer::Nothing)
                .await
                .map_err(|fault| std::io::Error::other(format!("{fault:?}")))?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(connected.stream))
        }
    });
    Endpoint::from_static("http://controller").connect_with_connector(connector).await
}
