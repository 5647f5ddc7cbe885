//! The replicas of the control plane, asked one by one and in the protocol that proxies speak, whoever made them.

use crate::{
    cluster,
    reach::{self, title},
};
use anyhow::{Context as _, Result, bail};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use linkerd2_proxy_api::{
    destination::{DestinationProfile, GetDestination, Update, destination_client::DestinationClient},
    inbound::{PortSpec, Server, inbound_server_policies_client::InboundServerPoliciesClient},
    outbound::{OutboundPolicy, TrafficSpec, outbound_policies_client::OutboundPoliciesClient},
};
use std::{io, time::Duration};
use tokio::time::timeout;
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint},
};
use weft_control::{
    authority::{ROOTS_CONFIG_MAP, ROOTS_KEY},
    config::Ports,
    install::objects::COMPONENT,
};
use weft_fault::{Code, Fault, Phase};
use weft_model::identity::Identity;
use weft_tls::{
    bundle::TrustBundle,
    credentials,
    handshake::{self, Offer},
};

/// To connect, and to a first answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Endpoints of a large service come in one message.
const MESSAGE_BYTES: usize = 64 << 20;

/// The control plane of a cluster, as far as asking it goes.
pub(crate) struct ControlPlane {
    client: Client,
    pub(crate) cluster_domain: String,
    pub(crate) replicas: Vec<Replica>,
}

/// One pod that answers proxies.
pub(crate) struct Replica {
    pub(crate) pod: Pod,
    /// weft's controllers want TLS. Stock ones leave that to a proxy of their own, and a port-forward comes out behind it.
    tls: Option<Tls>,
}

#[derive(Clone)]
struct Tls {
    client: credentials::Client,
    name: Identity,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
enum Part {
    Destination,
    Policy,
}

impl ControlPlane {
    /// Finds the replicas that run; only the one called `pod`, if that is given.
    pub(crate) async fn find(client: &Client, namespace: &str, pod: Option<&str>) -> Result<ControlPlane> {
        let settings = cluster::settings(client, namespace).await?;
        let setting = |name: &str| settings[name].as_str().unwrap_or("cluster.local").to_owned();
        let (cluster_domain, trust_domain) = (setting("clusterDomain"), setting("identityTrustDomain"));
        let selector = format!("{COMPONENT} in (destination,controller)");
        let pods = Api::<Pod>::namespaced(client.clone(), namespace)
            .list(&ListParams::default().labels(&selector))
            .await
            .with_context(|| format!("looking for the control plane's pods in namespace {namespace}"))?;
        let mut replicas = Vec::new();
        let mut tls = None;
        for found in pods.items.into_iter().filter(reach::is_running) {
            if pod.is_some_and(|pod| pod != found.name_any()) {
                continue;
            }
            let is_weft = found.labels().get(COMPONENT).is_some_and(|component| component == "controller");
            if is_weft && tls.is_none() {
                tls = Some(Tls {
                    client: anonymous(client, namespace).await?,
                    name: Identity::parse(&format!(
                        "linkerd-destination.{namespace}.serviceaccount.identity.{namespace}.{trust_domain}"
                    ))?,
                });
            }
            replicas.push(Replica { pod: found, tls: tls.clone().filter(|_| is_weft) });
        }
        match (replicas.is_empty(), pod) {
            (false, _) => {}
            (true, Some(pod)) => bail!("no pod {pod} of the control plane runs in namespace {namespace}"),
            (true, None) => {
                bail!(Fault::new(Code::ControllerUnreachable).about(format!("namespace {namespace}")).fact(
                    "pods",
                    format!("none that is labelled {COMPONENT}=destination or controller runs")
                ))
            }
        }
        Ok(ControlPlane { client: client.clone(), cluster_domain, replicas })
    }
}

/// Verifies the controller by the mesh's trust roots, and presents nothing.
async fn anonymous(client: &Client, namespace: &str) -> Result<credentials::Client> {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{ROOTS_CONFIG_MAP}");
    let roots = cluster::get(client, &path).await?.unwrap_or_default();
    let pem = roots["data"][ROOTS_KEY].as_str().unwrap_or_default();
    let roots =
        TrustBundle::parse(pem).with_context(|| format!("ConfigMap {namespace}/{ROOTS_CONFIG_MAP}"))?;
    Ok(credentials::Client::anonymous(&roots))
}

impl Replica {
    pub(crate) fn title(&self) -> String {
        title(&self.pod)
    }

    async fn channel(&self, plane: &ControlPlane, part: Part) -> Result<Channel> {
        let ports = Ports::default();
        let port = match part {
            Part::Destination => ports.destination,
            Part::Policy => ports.policy,
        };
        let io = reach::forward(&plane.client, &self.pod, port).await?;
        match &self.tls {
            None => over(io).await,
            Some(tls) => {
                let shaking = handshake::connect(&tls.client, io, &tls.name, &tls.name, Offer::Nothing);
                let late =
                    || Fault::new(Code::HandshakeTimeout).in_phase(Phase::TlsConnect).about(self.title());
                over(timeout(PATIENCE, shaking).await.map_err(|_| late())??.stream).await
            }
        }
        .with_context(|| format!("connecting to {} on port {port}", self.title()))
    }

    /// The endpoints of an authority, as updates; the first may never come if there are none.
    pub(crate) async fn endpoints(
        &self,
        plane: &ControlPlane,
        authority: &str,
        token: &str,
    ) -> Result<Streaming<Update>> {
        let channel = self.channel(plane, Part::Destination).await?;
        let mut client = DestinationClient::new(channel).max_decoding_message_size(MESSAGE_BYTES);
        self.answer(client.get(destination(authority, token))).await
    }

    /// The profile of an authority or an address.
    pub(crate) async fn profile(
        &self,
        plane: &ControlPlane,
        authority: &str,
        token: &str,
    ) -> Result<DestinationProfile> {
        let channel = self.channel(plane, Part::Destination).await?;
        let mut client = DestinationClient::new(channel).max_decoding_message_size(MESSAGE_BYTES);
        let mut profiles = self.answer(client.get_profile(destination(authority, token))).await?;
        let first = timeout(PATIENCE, profiles.message()).await;
        let first = first.map_err(|_| self.silent())?.map_err(|status| self.refused(status))?;
        first.with_context(|| format!("{} closed the stream without an answer", self.title()))
    }

    /// What a pod's port accepts.
    pub(crate) async fn inbound(&self, plane: &ControlPlane, workload: &str, port: u16) -> Result<Server> {
        let channel = self.channel(plane, Part::Policy).await?;
        let mut client = InboundServerPoliciesClient::new(channel).max_decoding_message_size(MESSAGE_BYTES);
        self.answer(client.get_port(PortSpec { workload: workload.to_owned(), port: port.into() })).await
    }

    /// How traffic to a destination goes.
    pub(crate) async fn outbound(&self, plane: &ControlPlane, spec: TrafficSpec) -> Result<OutboundPolicy> {
        let channel = self.channel(plane, Part::Policy).await?;
        let mut client = OutboundPoliciesClient::new(channel).max_decoding_message_size(MESSAGE_BYTES);
        self.answer(client.get(spec)).await
    }

    async fn answer<T>(&self, asked: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T> {
        let answer = timeout(PATIENCE, asked).await.map_err(|_| self.silent())?;
        Ok(answer.map_err(|status| self.refused(status))?.into_inner())
    }

    fn silent(&self) -> Fault {
        let waited = format!("{} s", PATIENCE.as_secs());
        Fault::new(Code::ControllerSilent).about(self.title()).fact("waited", waited)
    }

    pub(crate) fn refused(&self, status: Status) -> Fault {
        Fault::new(Code::ControllerRefused)
            .about(self.title())
            .fact("status", format!("{:?}", status.code()))
            .fact("message", status.message())
    }
}

fn destination(authority: &str, token: &str) -> GetDestination {
    GetDestination { scheme: "k8s".to_owned(), path: authority.to_owned(), context_token: token.to_owned() }
}

/// A channel over a connection that is there. It is not made anew when it ends.
async fn over<IO>(io: IO) -> Result<Channel>
where
    IO: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let mut io = Some(TokioIo::new(io));
    let connector = tower::service_fn(move |_: http::Uri| {
        let io = io.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
        async move { io }
    });
    let endpoint = Endpoint::from_static("http://controller").connect_timeout(PATIENCE);
    Ok(timeout(PATIENCE, endpoint.connect_with_connector(connector)).await.context("no HTTP/2 in time")??)
}
