//! The data path over real sockets: scripted applications, real TLS between proxies, a discovery that a test fills.

mod codes;
mod counts;
mod disagreements;
mod field_reports;
mod floods;
mod gateway;
mod h2_rules;
mod h2_server_rules;
mod harness;
mod http1_battery;
mod inbound;
mod ingress;
mod observers;
mod outbound;
mod outcomes;
mod pair;
mod permits;
mod process;
mod profiles;
mod redirects;
mod resets;
mod retries;
mod routes;
mod stalled_readers;
mod telemetry;
mod vanished;
