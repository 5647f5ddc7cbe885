//! Installing on a Kubernetes API: the commands as a person runs them, `kubectl` between them, no root.

mod controller;
mod harness;
mod inject;
mod install;
mod machine;
