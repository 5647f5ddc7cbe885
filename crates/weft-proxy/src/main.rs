//! The proxy alone: what a sidecar image runs. Configured by `LINKERD2_PROXY_*`.

use std::process::ExitCode;

fn main() -> ExitCode {
    weft_proxy::runtime::main()
}
