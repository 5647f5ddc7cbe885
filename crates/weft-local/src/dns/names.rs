//! What a name means: pure answers from the services known now.

use crate::{
    network::Network,
    services::{Endpoint, Key, Services, cluster_ip},
};
use hickory_proto::{
    op::ResponseCode,
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, CNAME, PTR, SOA, SRV},
    },
};
use std::net::Ipv4Addr;

/// Seconds: answers change with every pod.
const TTL: u32 = 5;

/// What to do with a question.
#[derive(Debug)]
pub(crate) enum Answer {
    Here {
        code: ResponseCode,
        answers: Vec<Record>,
        additionals: Vec<Record>,
    },
    /// Not a name of the mesh: the outside's resolvers know.
    Elsewhere,
}

/// The mesh's own names.
#[derive(Clone, Debug)]
pub(crate) struct Zone {
    network: Network,
    /// Labels of the cluster domain, lower case.
    domain: Vec<String>,
}

impl Zone {
    pub(crate) fn new(network: Network, domain: &str) -> Self {
        Zone { network, domain: domain.split('.').map(str::to_string).collect() }
    }

    /// Answers for one question. Every type of an existing name gets an answer, an empty one where there is none; unknown
    /// names below the domain are NXDOMAIN: other codes make some resolvers give up or wait.
    pub(crate) fn answer(&self, services: &Services, name: &Name, kind: RecordType) -> Answer {
        let labels: Vec<String> =
            name.iter().map(|l| String::from_utf8_lossy(l).to_ascii_lowercase()).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let found = match labels.as_slice() {
            ["host", "weft", "internal"] => Some(vec![self.a(name, self.network.host_ip())]),
            [.., "weft", "internal"] => None,
            [rest @ .., "in-addr", "arpa"] => match self.pointer(services, name, rest) {
                Pointer::Foreign => return Answer::Elsewhere,
                Pointer::Here(found) => found,
            },
            _ => match labels.split_at_checked(labels.len().wrapping_sub(self.domain.len())) {
                Some((rest, domain)) if domain == self.domain => self.cluster_name(services, name, rest),
                _ => return Answer::Elsewhere,
            },
        };
        let Some(records) = found else {
            return Answer::Here {
                code: ResponseCode::NXDomain,
                answers: Vec::new(),
                additionals: Vec::new(),
            };
        };
        let wanted = |r: &Record| {
            r.record_type() == kind || kind == RecordType::ANY || r.record_type() == RecordType::CNAME
        };
        let answers: Vec<Record> = records.into_iter().filter(wanted).collect();
        // The addresses of the hosts that service records name.
        let additionals = answers
            .iter()
            .filter_map(|r| match &r.data {
                RData::SRV(srv) => match self.answer(services, &srv.target, RecordType::A) {
                    Answer::Here { answers, .. } => Some(answers),
                    Answer::Elsewhere => None,
                },
                _ => None,
            })
            .flatten()
            .collect();
        Answer::Here { code: ResponseCode::NoError, answers, additionals }
    }

    /// The record that says for how long "there is no such name" holds.
    pub(crate) fn authority(&self) -> Option<Record> {
        let zone = self.name(&[])?;
        let (ns, admin) = (self.name(&["ns", "dns"])?, self.name(&["hostmaster"])?);
        let soa = SOA::new(ns, admin, 1, 7200, 1800, 86400, TTL);
        Some(Record::from_rdata(zone, TTL, RData::SOA(soa)))
    }

    /// All records of a name below the domain; `None` if there is no such name.
    fn cluster_name(&self, services: &Services, name: &Name, rest: &[&str]) -> Option<Vec<Record>> {
        match rest {
            [] | ["svc" | "pod"] => Some(Vec::new()),
            [namespace, "svc" | "pod"] => services.has_namespace(namespace).then(Vec::new),
            [address, _namespace, "pod"] => Some(vec![self.a(name, dashed(address)?)]),
            [service, namespace, "svc"] => {
                let key = (namespace.to_string(), service.to_string());
                self.service(services, name, &key)
            }
            [port, protocol, service, namespace, "svc"] if port.starts_with('_') => {
                let key = (namespace.to_string(), service.to_string());
                let (port, protocol) = (port.strip_prefix('_')?, protocol.strip_prefix('_')?);
                let ports = self.service_ports(services, name, &key);
                let named: Vec<Record> = ports
                    .into_iter()
                    .filter(|(n, p, _)| n == port && p.eq_ignore_ascii_case(protocol))
                    .map(|(.., record)| record)
                    .collect();
                (!named.is_empty()).then_some(named)
            }
            [host, service, namespace, "svc"] => {
                let key = (namespace.to_string(), service.to_string());
                let spec = services.services.get(&key)?;
                if cluster_ip(spec).is_some() {
                    return None;
                }
                let matching = services.endpoints(&key).into_iter().filter(|e| host_label(e) == *host);
                let found: Vec<Record> = matching.map(|e| self.a(name, e.ip)).collect();
                (!found.is_empty()).then_some(found)
            }
            _ => None,
        }
    }

    fn service(&self, services: &Services, name: &Name, key: &Key) -> Option<Vec<Record>> {
        let service = services.services.get(key)?;
        let spec = service.spec.as_ref()?;
        if spec.type_.as_deref() == Some("ExternalName") {
            let target = format!("{}.", spec.external_name.as_deref()?.trim_end_matches('.'));
            let target = Name::from_ascii(target).ok()?;
            return Some(vec![Record::from_rdata(name.clone(), TTL, RData::CNAME(CNAME(target)))]);
        }
        let mut records: Vec<Record> = match cluster_ip(service) {
            Some(ip) => vec![self.a(name, ip)],
            None => {
                let mut ips: Vec<Ipv4Addr> = services.endpoints(key).iter().map(|e| e.ip).collect();
                ips.dedup();
                ips.into_iter().map(|ip| self.a(name, ip)).collect()
            }
        };
        records.extend(self.service_ports(services, name, key).into_iter().map(|(.., record)| record));
        Some(records)
    }

    /// Port name, protocol and SRV record for every port of a service: of the service itself, or of each pod behind a
    /// headless one.
    fn service_ports(&self, services: &Services, name: &Name, key: &Key) -> Vec<(String, String, Record)> {
        let Some(service) = services.services.get(key) else { return Vec::new() };
        let (namespace, own) = (key.0.as_str(), key.1.as_str());
        let record = |port: u16, target: Name| {
            Record::from_rdata(name.clone(), TTL, RData::SRV(SRV::new(0, 100, port, target)))
        };
        let mut found = Vec::new();
        if cluster_ip(service).is_some() {
            let Some(target) = self.name(&[own, namespace, "svc"]) else { return found };
            for port in service.spec.iter().flat_map(|s| s.ports.iter().flatten()) {
                let Ok(number) = u16::try_from(port.port) else { continue };
                let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
                found.push((port.name.clone().unwrap_or_default(), protocol, record(number, target.clone())));
            }
            return found;
        }
        for endpoint in services.endpoints(key) {
            let Some(target) = self.name(&[&host_label(&endpoint), own, namespace, "svc"]) else { continue };
            for (port, protocol, number) in &endpoint.ports {
                found.push((port.clone(), protocol.clone(), record(*number, target.clone())));
            }
        }
        found
    }

    fn pointer(&self, services: &Services, name: &Name, reversed: &[&str]) -> Pointer {
        let octets: Option<Vec<u8>> = reversed.iter().rev().map(|l| l.parse().ok()).collect();
        let Some(octets) = octets.filter(|o| !o.is_empty()) else { return Pointer::Foreign };
        let mut padded = [0; 4];
        padded.iter_mut().zip(&octets).for_each(|(p, o)| *p = *o);
        let ip = Ipv4Addr::from(padded);
        if !self.network.pods.contains(&ip) && !self.network.services.contains(&ip) {
            return Pointer::Foreign;
        }
        if octets.len() < 4 {
            return Pointer::Here(Some(Vec::new()));
        }
        let target = services.services.iter().find_map(|(key, service)| {
            if cluster_ip(service) == Some(ip) {
                return self.name(&[&key.1, &key.0, "svc"]);
            }
            let endpoint = services.endpoints(key).into_iter().find(|e| e.ip == ip)?;
            self.name(&[&host_label(&endpoint), &key.1, &key.0, "svc"])
        });
        Pointer::Here(target.map(|t| vec![Record::from_rdata(name.clone(), TTL, RData::PTR(PTR(t)))]))
    }

    fn a(&self, name: &Name, ip: Ipv4Addr) -> Record {
        Record::from_rdata(name.clone(), TTL, RData::A(A(ip)))
    }

    fn name(&self, labels: &[&str]) -> Option<Name> {
        let all = labels.iter().copied().chain(self.domain.iter().map(String::as_str));
        let mut name = Name::from_labels(all.map(str::as_bytes)).ok()?;
        name.set_fqdn(true);
        Some(name)
    }
}

enum Pointer {
    Foreign,
    Here(Option<Vec<Record>>),
}

/// The label of a pod behind a headless service.
fn host_label(endpoint: &Endpoint) -> String {
    endpoint.hostname.clone().unwrap_or_else(|| endpoint.ip.to_string().replace('.', "-"))
}

/// `10-77-0-2`.
fn dashed(label: &str) -> Option<Ipv4Addr> {
    label.replace('-', ".").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::tests::{services, slice};
    use serde_json::json;

    fn shop() -> Services {
        services(json!([
            {"kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"clusterIP": "10.78.0.20",
                "ports": [{"name": "http", "port": 80}]}},
            {"kind": "Service", "metadata": {"name": "db", "namespace": "shop"}, "spec": {"clusterIP": "None",
                "ports": [{"name": "sql", "port": 5432}]}},
            {"kind": "Service", "metadata": {"name": "empty", "namespace": "shop"}, "spec": {"clusterIP": "None"}},
            {"kind": "Service", "metadata": {"name": "out", "namespace": "shop"}, "spec": {"type": "ExternalName",
                "externalName": "example.com"}},
            slice("db", json!([{"addresses": ["10.77.0.5"], "hostname": "db-0"}, {"addresses": ["10.77.0.6"]}]),
                json!([{"name": "sql", "port": 5432, "protocol": "TCP"}])),
        ]))
    }

    fn ask(name: &str, kind: RecordType) -> String {
        let zone = Zone::new(Network::usual(), "cluster.local");
        match zone.answer(&shop(), &Name::from_ascii(name).unwrap(), kind) {
            Answer::Elsewhere => "elsewhere".into(),
            Answer::Here { code, answers, additionals } => {
                let all: Vec<String> = answers.iter().map(|r| r.data.to_string()).collect();
                let more =
                    if additionals.is_empty() { String::new() } else { format!(" +{}", additionals.len()) };
                format!("{code:?} {}{more}", all.join(", "))
            }
        }
    }

    #[test]
    fn services_pods_and_hosts() {
        let check = |name: &str, kind, want: &str| assert_eq!(ask(name, kind), want, "{name} {kind}");
        let (a, aaaa, srv, ptr) = (RecordType::A, RecordType::AAAA, RecordType::SRV, RecordType::PTR);
        check("web.shop.svc.cluster.local.", a, "NoError 10.78.0.20");
        check("WEB.Shop.svc.cluster.LOCAL.", a, "NoError 10.78.0.20");
        check("web.shop.svc.cluster.local.", aaaa, "NoError ");
        check("web.shop.svc.cluster.local.", RecordType::TXT, "NoError ");
        check("db.shop.svc.cluster.local.", a, "NoError 10.77.0.5, 10.77.0.6");
        check("db-0.db.shop.svc.cluster.local.", a, "NoError 10.77.0.5");
        check("10-77-0-6.db.shop.svc.cluster.local.", a, "NoError 10.77.0.6");
        check("db-1.db.shop.svc.cluster.local.", a, "NXDomain ");
        check("db-0.web.shop.svc.cluster.local.", a, "NXDomain ");
        check("empty.shop.svc.cluster.local.", a, "NoError ");
        check("out.shop.svc.cluster.local.", a, "NoError example.com.");
        check("10-77-0-9.shop.pod.cluster.local.", a, "NoError 10.77.0.9");
        check("x.shop.pod.cluster.local.", a, "NXDomain ");
        check(
            "_http._tcp.web.shop.svc.cluster.local.",
            srv,
            "NoError 0 100 80 web.shop.svc.cluster.local. +1",
        );
        check("_nope._tcp.web.shop.svc.cluster.local.", srv, "NXDomain ");
        check(
            "_sql._tcp.db.shop.svc.cluster.local.",
            srv,
            "NoError 0 100 5432 db-0.db.shop.svc.cluster.local., 0 100 5432 10-77-0-6.db.shop.svc.cluster.local. +2",
        );
        check("20.0.78.10.in-addr.arpa.", ptr, "NoError web.shop.svc.cluster.local.");
        check("5.0.77.10.in-addr.arpa.", ptr, "NoError db-0.db.shop.svc.cluster.local.");
        check("9.0.77.10.in-addr.arpa.", ptr, "NXDomain ");
        check("1.1.1.1.in-addr.arpa.", ptr, "elsewhere");
        check("host.weft.internal.", a, "NoError 10.77.255.254");
        check("other.weft.internal.", a, "NXDomain ");
    }

    #[test]
    fn search_domains_get_quick_noes() {
        let check = |name: &str, want: &str| assert_eq!(ask(name, RecordType::A), want, "{name}");
        check("example.com.shop.svc.cluster.local.", "NXDomain ");
        check("example.com.svc.cluster.local.", "NXDomain ");
        check("example.com.cluster.local.", "NXDomain ");
        check("example.com.", "elsewhere");
        check("local.", "elsewhere");
        check(".", "elsewhere");
        check("cluster.local.", "NoError ");
        check("svc.cluster.local.", "NoError ");
        check("shop.svc.cluster.local.", "NoError ");
        check("other.svc.cluster.local.", "NXDomain ");
    }
}
