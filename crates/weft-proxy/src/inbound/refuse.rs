//! A denial, as a fault that says what was asked and what would have been needed; and one that was only audited.

use super::Connection;
use crate::metrics::{Count, Metrics, labels::Labels};
use std::net::SocketAddr;
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    identity::ClientTls,
    inbound::{Denied, DenyReason, Permit, Protocol, ServerPolicy},
    meta::Meta,
};

/// Who asks, and for which port.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub(crate) app: SocketAddr,
    pub(crate) client: SocketAddr,
    pub(crate) tls: &'a ClientTls,
}

impl Asker<'_> {
    /// Counts a request that is refused, and says why.
    pub(crate) fn request_denied(&self, metrics: &Metrics, policy: &ServerPolicy, denied: &Denied) -> Fault {
        let family = match denied.reason {
            DenyReason::NoRoute => Count::InboundHttpRouteNotFound,
            _ => Count::InboundHttpAuthzDeny,
        };
        let labels = Labels::new()
            .target(self.app)
            .server(&policy.meta, self.app.port())
            .client_tls(self.tls)
            .inbound_route(denied.route.as_deref());
        metrics.counter(family, &labels).add(1);
        self.denied(policy, denied)
    }

    /// What the requests by a permit are counted under.
    pub(crate) fn labels(&self, permit: &Permit) -> Labels {
        Labels::new()
            .target(self.app)
            .server(permit.server(), self.app.port())
            .policy("authz", permit.authorization())
            .client_tls(self.tls)
            .inbound_route(permit.route().map(|route| &**route))
    }

    fn denied(&self, policy: &ServerPolicy, denied: &Denied) -> Fault {
        let by_default = matches!(&*denied.server, Meta::Default(_)) && denied.tried.is_empty();
        let code = match denied.reason {
            DenyReason::NoRuleAllows if by_default => Code::DefaultDenied,
            DenyReason::NoRuleAllows => Code::NoRuleAllows,
            DenyReason::NoIdentity => Code::PlaintextRefused,
            DenyReason::NotHttp => Code::TcpNotHttpRoute,
            DenyReason::NoRoute => Code::NoRouteMatches,
            DenyReason::Unreadable => Code::PolicyInvalid,
        };
        let mut fault = Fault::new(code)
            .in_phase(Phase::Authorize)
            .about(self.app)
            .peer(self.client)
            .fact("client", self.who())
            .fact("server", &denied.server);
        if let Protocol::Unreadable(why) = &policy.protocol {
            fault = fault.fact("policy", why);
        }
        if let Some(route) = &denied.route {
            fault = fault.fact("route", route);
        }
        if !denied.tried.is_empty() {
            let tried: Vec<_> = denied.tried.iter().take(8).map(ToString::to_string).collect();
            fault = fault.fact("tried", tried.join(" "));
        }
        fault
    }

    /// The caller, in words.
    fn who(&self) -> String {
        match self.tls {
            ClientTls::Terminated(Some(id)) => id.to_string(),
            ClientTls::Terminated(None) => "mesh TLS without an identity".into(),
            ClientTls::Passthrough { sni } => format!("TLS for {sni}"),
            ClientTls::None(why) => format!("no TLS ({})", why.as_str()),
        }
    }
}

impl Connection {
    pub(super) fn asker(&self) -> Asker<'_> {
        Asker { app: self.app, client: self.client, tls: &self.tls }
    }

    pub(crate) fn denied(&self, policy: &ServerPolicy, denied: &Denied) -> Fault {
        self.asker().denied(policy, denied)
    }

    /// Logs a permit that exists only because the policy audits, in the form in which Linkerd's users look for it.
    pub(super) fn audited(&self, policy: &ServerPolicy, permit: &Permit) {
        let Some(would_deny) = permit.would_deny() else { return };
        let (server, authz) = (&policy.meta, permit.authorization());
        tracing::info!(
            server.group = server.group(),
            server.kind = server.kind(),
            server.name = server.name(),
            route = permit.route().map(ToString::to_string),
            client.tls = self.asker().who(),
            client.ip = %self.client.ip(),
            authz.group = authz.group(),
            authz.kind = authz.kind(),
            authz.name = authz.name(),
            would_deny = would_deny.as_str(),
            "Request allowed",
        );
        self.story.event(Phase::Authorize, format!("only audited: {}", would_deny.as_str()));
    }
}
