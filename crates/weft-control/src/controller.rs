//! The controller as a whole: its parts, started in order, ended together.

use crate::{
    admin::Admin,
    admission::{certificates as webhook_certificates, metrics::Injections, opt_in, webhook::Webhook},
    authority::{self, Authorities},
    config::ControllerConfig,
    events::Events,
    external_slices,
    index::{
        feed::{self, Feed},
        store::Store,
    },
    journal::{follow, keep},
    lease::{self, Claim, Timings},
    serve::{
        self, Protection,
        certificates::{self, Certificates},
    },
    service::{
        destination::DestinationService, identity::IdentityService, inbound::InboundService,
        mesh::MeshService, outbound::OutboundService,
    },
    status, trust_roots,
};
use kube::Client;
use linkerd2_proxy_api::{
    destination::destination_server::DestinationServer, identity::identity_server::IdentityServer,
    inbound::inbound_server_policies_server::InboundServerPoliciesServer,
    outbound::outbound_policies_server::OutboundPoliciesServer,
};
use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use weft_fault::Fault;
use weft_kube::meta::ObjectName;
use weft_wire::mesh::server::MeshServer;

/// How long calls may take to end when the controller stops. Streams last for ever, so it is what usually ends them.
const DRAIN: Duration = Duration::from_millis(500);

/// Runs the controller until `shutdown`. Fails only if it cannot listen.
pub async fn run(
    config: ControllerConfig,
    client: Client,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Fault> {
    let controller = Controller::bind(config, client).await?;
    shutdown.await;
    controller.stop().await;
    Ok(())
}

/// A running controller. Dropping it ends it at once.
pub struct Controller {
    pub addresses: Addresses,
    pub store: Arc<Store>,
    pub feed: Feed,
    pub authorities: Authorities,
    /// Whether the API server can call the webhooks.
    webhooks: watch::Receiver<bool>,
    stopping: CancellationToken,
    tasks: JoinSet<()>,
}

/// Where it listens; of interest when ports were left to the system (0).
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    pub destination: SocketAddr,
    pub policy: SocketAddr,
    pub identity: SocketAddr,
    pub webhook: SocketAddr,
    pub admin: SocketAddr,
}

struct Listeners {
    destination: TcpListener,
    policy: TcpListener,
    identity: TcpListener,
    webhook: TcpListener,
    admin: TcpListener,
}

impl Controller {
    /// Listens and starts everything. gRPC and the webhook are served once the index has heard of every kind: an answer
    /// from half an index would be a wrong one.
    pub async fn bind(config: ControllerConfig, client: Client) -> Result<Self, Fault> {
        let (listeners, addresses) = listen(&config).await?;
        let store = Store::new(config.clone());
        let mut tasks = JoinSet::new();
        let stopping = CancellationToken::new();
        let holder = lease::holder_name();
        let mut leadership = |name: &str| {
            let lease = ObjectName::new(&config.control_namespace, name);
            let claim = Claim { lease, holder: holder.clone(), timings: Timings::default() };
            lease::contend(client.clone(), claim, stopping.clone(), &mut tasks)
        };
        let status_leader = leadership(status::LEASE);
        let slices_leader = leadership(external_slices::LEASE);
        let journal_leader = leadership(keep::LEASE);
        let feed = feed::start(&client, &store, &mut tasks);
        let (events, written) = Events::start(client.clone());
        tasks.spawn(written);
        let authorities = authority::follow(&client, &store, &events, &feed.pulse, &mut tasks);
        follow::start(&client, &store, &feed.pulse, &mut tasks);
        tasks.spawn(keep::keep(client.clone(), store.clone(), journal_leader, stopping.clone()));
        let certificates = Certificates::default();
        tasks.spawn(certificates::renew(config.clone(), authorities.clone(), certificates.clone()));
        let webhook_serving = Certificates::default();
        let (webhooks_ready, webhooks) = watch::channel(false);
        tasks.spawn(webhook_certificates::keep(
            client.clone(),
            config.clone(),
            authorities.clone(),
            webhook_serving.clone(),
            webhooks_ready,
        ));
        tasks.spawn(opt_in::mark(client.clone(), store.clone()));
        tasks.spawn(external_slices::write(
            client.clone(),
            store.clone(),
            feed.synced.clone(),
            slices_leader,
        ));
        tasks.spawn(status::write(
            client.clone(),
            events.clone(),
            store.clone(),
            feed.synced.clone(),
            status_leader,
        ));
        let roots =
            trust_roots::publish(client.clone(), store.clone(), authorities.clone(), feed.synced.clone());
        tasks.spawn(roots);

        let injections = Arc::new(Injections::default());
        let admin = Admin {
            store: store.clone(),
            feed: feed.clone(),
            authorities: authorities.clone(),
            webhooks: webhooks.clone(),
            injections: injections.clone(),
        };
        tasks.spawn(serve::http::serve(listeners.admin, Protection::Plain, move |request, _| {
            let answer = admin.answer(&request);
            async move { answer }
        }));

        let protection = match config.plaintext && config.bind.is_loopback() {
            true => Protection::TlsOrPlain(certificates.clone()),
            false => Protection::Tls(certificates.clone()),
        };
        let serve_when_synced = |listener: TcpListener, routes: Routes| {
            let (protection, stopping, mut synced) =
                (protection.clone(), stopping.clone(), feed.synced.clone());
            async move {
                if synced.wait_for(|synced| *synced).await.is_ok() {
                    serve::grpc::serve(listener, protection, routes, stopping.cancelled_owned()).await;
                }
            }
        };
        let destination = Routes::new(DestinationServer::new(DestinationService::new(store.clone())))
            .add_service(MeshServer::new(MeshService::new(store.clone())));
        let policy = Routes::new(InboundServerPoliciesServer::new(InboundService::new(store.clone())))
            .add_service(OutboundPoliciesServer::new(OutboundService::new(store.clone())));
        let identity = Routes::new(IdentityServer::new(IdentityService::new(
            config,
            client.clone(),
            authorities.clone(),
            events.clone(),
        )));
        tasks.spawn(serve_when_synced(listeners.destination, destination));
        tasks.spawn(serve_when_synced(listeners.policy, policy));
        tasks.spawn(serve_when_synced(listeners.identity, identity));

        let webhook = Arc::new(Webhook::new(client, store.clone(), authorities.clone(), events, injections));
        let mut synced = feed.synced.clone();
        tasks.spawn(async move {
            if synced.wait_for(|synced| *synced).await.is_ok() {
                let handle = move |request, body| {
                    let webhook = webhook.clone();
                    async move { webhook.answer(request, body).await }
                };
                serve::http::serve(listeners.webhook, Protection::Tls(webhook_serving), handle).await;
            }
        });
        Ok(Controller { addresses, store, feed, authorities, webhooks, stopping, tasks })
    }

    /// Waits until it serves: every kind was heard of, there is an issuer, and webhooks have certificates.
    pub async fn ready(&self) {
        let mut synced = self.feed.synced.clone();
        if synced.wait_for(|synced| *synced).await.is_err() {
            return;
        }
        let mut authorities = self.authorities.clone();
        while authorities.current().is_none() {
            authorities.changed().await;
        }
        // An error means that it is ending.
        let _ = self.webhooks.clone().wait_for(|ready| *ready).await;
    }

    /// Lets open calls end, for a moment.
    pub async fn stop(mut self) {
        self.stopping.cancel();
        let _ = timeout(DRAIN, async { while self.tasks.join_next().await.is_some() {} }).await;
    }
}

async fn listen(config: &ControllerConfig) -> Result<(Listeners, Addresses), Fault> {
    let bind = |port: u16| serve::bind(SocketAddr::new(config.bind, port));
    let listeners = Listeners {
        destination: bind(config.ports.destination).await?,
        policy: bind(config.ports.policy).await?,
        identity: bind(config.ports.identity).await?,
        webhook: bind(config.ports.webhook).await?,
        admin: bind(config.ports.admin).await?,
    };
    let at = |listener: &TcpListener, port: u16| {
        listener.local_addr().unwrap_or(SocketAddr::new(config.bind, port))
    };
    let addresses = Addresses {
        destination: at(&listeners.destination, config.ports.destination),
        policy: at(&listeners.policy, config.ports.policy),
        identity: at(&listeners.identity, config.ports.identity),
        webhook: at(&listeners.webhook, config.ports.webhook),
        admin: at(&listeners.admin, config.ports.admin),
    };
    Ok((listeners, addresses))
}
