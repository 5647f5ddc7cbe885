//! `weft install-cni`: the manifests of the CNI plugin.

use super::install::{Form, print};
use anyhow::Result;
use serde_json::json;
use std::process::ExitCode;
use weft_control::install::cni::{Cni, NAMESPACE, objects};
use weft_net::redirect::{PortRange, Subnet, set_up::Mode};

/// Print the manifests of the CNI plugin, for `kubectl apply -f -`
#[derive(clap::Args, Debug)]
#[command(
    after_help = "With the plugin, pods need no NET_ADMIN: install the control plane with --set cniEnabled=true.

Examples:
  weft install-cni | kubectl apply -f -
  weft install-cni --repair-controller=false --dest-cni-net-dir /var/lib/rancher/k3s/agent/etc/cni/net.d \\
      --dest-cni-bin-dir /var/lib/rancher/k3s/data/cni | kubectl apply -f -

Docs: docs/kubernetes.md"
)]
pub(crate) struct InstallCni {
    /// Namespace of the plugin.
    #[arg(long, default_value = NAMESPACE, value_name = "NAME")]
    cni_namespace: String,
    /// Image of the plugin and its installer, without the tag.
    #[arg(long, default_value = "weft.dev/weft-cni", value_name = "IMAGE")]
    cni_image: String,
    /// Tag of the image.
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"), value_name = "TAG")]
    cni_image_version: String,
    /// When nodes fetch the image.
    #[arg(long, default_value = "IfNotPresent", value_name = "POLICY")]
    image_pull_policy: String,
    /// Port of the proxy's inbound listener.
    #[arg(long, default_value_t = 4143, value_name = "PORT")]
    inbound_port: u16,
    /// Port of the proxy's outbound listener.
    #[arg(long, default_value_t = 4140, value_name = "PORT")]
    outbound_port: u16,
    /// User whose connections are the proxy's own.
    #[arg(long, default_value_t = 2102, value_name = "UID")]
    proxy_uid: u32,
    /// Group whose connections are the proxy's own; none if negative.
    #[arg(long, default_value_t = -1, allow_negative_numbers = true, value_name = "GID")]
    proxy_gid: i64,
    /// Redirect only these incoming ports; all without it.
    #[arg(long, value_delimiter = ',', value_name = "PORTS")]
    redirect_ports: Vec<PortRange>,
    /// Incoming ports that reach applications directly, beside the proxy's own.
    #[arg(long, value_delimiter = ',', value_name = "PORTS", default_value = "4190,4191,4567,4568")]
    skip_inbound_ports: Vec<PortRange>,
    /// Ports that applications reach directly.
    #[arg(long, value_delimiter = ',', value_name = "PORTS", default_value = "4567,4568")]
    skip_outbound_ports: Vec<PortRange>,
    /// Networks whose connections reach applications directly.
    #[arg(long, value_delimiter = ',', value_name = "CIDRS")]
    skip_subnets: Vec<Subnet>,
    /// What is tried first: nft, plain or legacy.
    #[arg(long, default_value = "nft", value_name = "MODE")]
    iptables_mode: Mode,
    /// Leave IPv6 alone.
    #[arg(long)]
    disable_ipv6: bool,
    /// The runtime's directory of configurations, on the nodes.
    #[arg(long, default_value = "/etc/cni/net.d", value_name = "DIR")]
    dest_cni_net_dir: String,
    /// The runtime's directory of plugins, on the nodes.
    #[arg(long, default_value = "/opt/cni/bin", value_name = "DIR")]
    dest_cni_bin_dir: String,
    /// Priority class of the DaemonSet's pods.
    #[arg(long, value_name = "NAME")]
    priority_class_name: Option<String>,
    /// Whether pods that started without their redirect are deleted, so that they are made anew.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    repair_controller: bool,
    /// YAML or JSON.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

impl InstallCni {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let ports = |ranges: &[PortRange]| ranges.iter().map(PortRange::to_string).collect::<Vec<_>>();
        let settings = json!({
            "incoming-proxy-port": self.inbound_port,
            "outgoing-proxy-port": self.outbound_port,
            "proxy-uid": self.proxy_uid,
            "proxy-gid": self.proxy_gid,
            "ports-to-redirect": ports(&self.redirect_ports),
            "inbound-ports-to-ignore": ports(&self.skip_inbound_ports),
            "outbound-ports-to-ignore": ports(&self.skip_outbound_ports),
            "subnets-to-ignore": self.skip_subnets.iter().map(Subnet::to_string).collect::<Vec<_>>(),
            "iptables-mode": self.iptables_mode.to_string(),
            "ipv6": !self.disable_ipv6,
        });
        let cni = Cni {
            namespace: self.cni_namespace,
            image: format!("{}:{}", self.cni_image, self.cni_image_version),
            pull_policy: self.image_pull_policy,
            settings,
            bin_dir: self.dest_cni_bin_dir,
            net_dir: self.dest_cni_net_dir,
            priority_class: self.priority_class_name,
            repair: self.repair_controller,
        };
        print(&objects(&cni), self.output)
    }
}
