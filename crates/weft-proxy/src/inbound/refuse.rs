//! A denial, as a fault that says what was asked and what would have been needed.

use super::Connection;
use crate::discovery::ports::UNREADABLE;
use weft_fault::{Code, Fault, Phase};
use weft_model::{
    identity::ClientTls,
    inbound::{Denied, DenyReason},
    meta::Meta,
};

impl Connection {
    pub(crate) fn denied(&self, denied: &Denied) -> Fault {
        let by_default = matches!(&*denied.server, Meta::Default(_)) && denied.tried.is_empty();
        let unreadable = matches!(&*denied.server, Meta::Default(name) if name == UNREADABLE);
        let code = match denied.reason {
            _ if unreadable => Code::PolicyInvalid,
            DenyReason::NoRuleAllows if by_default => Code::DefaultDenied,
            DenyReason::NoRuleAllows => Code::NoRuleAllows,
            DenyReason::NoIdentity => Code::PlaintextRefused,
            DenyReason::NotHttp => Code::TcpNotHttpRoute,
            DenyReason::NoRoute => Code::NoRouteMatches,
        };
        let client = match &self.tls {
            ClientTls::Terminated(Some(id)) => id.to_string(),
            ClientTls::Terminated(None) => "mesh TLS without an identity".into(),
            ClientTls::Passthrough { sni } => format!("TLS for {sni}"),
            ClientTls::None(why) => format!("no TLS ({})", why.as_str()),
        };
        let mut fault = Fault::new(code)
            .in_phase(Phase::Authorize)
            .about(self.app)
            .peer(self.client)
            .fact("client", client)
            .fact("server", &denied.server);
        if let Some(route) = &denied.route {
            fault = fault.fact("route", route);
        }
        if !denied.tried.is_empty() {
            let tried: Vec<_> = denied.tried.iter().take(8).map(ToString::to_string).collect();
            fault = fault.fact("tried", tried.join(" "));
        }
        fault
    }
}
