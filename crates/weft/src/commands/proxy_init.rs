//! `weft proxy-init`: redirects a pod's traffic into its proxy, with linkerd-init's flags.

use anyhow::{Context as _, Result};
use weft_net::redirect::{self, PortRange, Redirect, Subnet};

/// Redirect this network namespace's TCP traffic into the proxy (needs NET_ADMIN)
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Runs as the first init container of an injected pod. Running it again replaces the rules.

Example:
  weft proxy-init --inbound-ports-to-ignore 4190,4191 --outbound-ports-to-ignore 443,8000-8099"
)]
pub(crate) struct ProxyInit {
    /// Port of the proxy's inbound listener.
    #[arg(short = 'p', long, default_value_t = 4143)]
    incoming_proxy_port: u16,
    /// Port of the proxy's outbound listener.
    #[arg(short = 'o', long, default_value_t = 4140)]
    outgoing_proxy_port: u16,
    /// User whose connections are the proxy's own.
    #[arg(short = 'u', long, default_value_t = 2102)]
    proxy_uid: u32,
    /// Group whose connections are the proxy's own.
    #[arg(short = 'g', long)]
    proxy_gid: Option<u32>,
    /// Redirect only these incoming ports; all without it.
    #[arg(short = 'r', long, value_delimiter = ',', value_name = "PORTS")]
    ports_to_redirect: Vec<PortRange>,
    /// Incoming ports that reach the application directly.
    #[arg(long, value_delimiter = ',', value_name = "PORTS")]
    inbound_ports_to_ignore: Vec<PortRange>,
    /// Ports that the application reaches directly.
    #[arg(long, value_delimiter = ',', value_name = "PORTS")]
    outbound_ports_to_ignore: Vec<PortRange>,
    /// Networks whose connections reach the application directly.
    #[arg(long, value_delimiter = ',', value_name = "CIDRS")]
    subnets_to_ignore: Vec<Subnet>,
}

impl ProxyInit {
    pub(crate) fn run(self) -> Result<()> {
        let redirect = Redirect {
            incoming_proxy_port: self.incoming_proxy_port,
            outgoing_proxy_port: self.outgoing_proxy_port,
            proxy_uid: Some(self.proxy_uid),
            proxy_gid: self.proxy_gid,
            proxy_mark: None,
            ports_to_redirect: self.ports_to_redirect,
            inbound_ports_to_ignore: self.inbound_ports_to_ignore,
            outbound_ports_to_ignore: self.outbound_ports_to_ignore,
            subnets_to_ignore: self.subnets_to_ignore,
        };
        redirect::apply(&redirect).context("setting the redirect rules (is NET_ADMIN granted?)")?;
        println!(
            "redirecting incoming TCP to port {} and outgoing TCP to port {}, except of uid {}",
            redirect.incoming_proxy_port, redirect.outgoing_proxy_port, self.proxy_uid
        );
        Ok(())
    }
}
