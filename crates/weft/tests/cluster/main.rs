//! Installing on a Kubernetes API: the commands as a person runs them, `kubectl` between them, no root.

#[path = "../../../weft-control/tests/support/cluster.rs"]
mod api;
mod bug_report;
mod check;
mod controller;
mod harness;
mod inject;
mod install;
mod machine;
mod rights;
