//! Fuzz targets: each takes any bytes, must not panic, and checks what has to hold whatever they are.
//!
//! `cargo test -p weft-fuzz` runs each on its corpus and a fixed number of mutations of it; `cargo run --release -p weft-fuzz`
//! runs one for longer; `fuzz/libfuzzer` lets coverage guide it. See `fuzz/README.md`.

pub mod http1;
pub mod mutate;
pub mod offer;
pub mod targets;

/// Something that reads foreign bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Also the name of its folder in `fuzz/corpus`.
    pub name: &'static str,
    pub run: fn(&[u8]),
}

pub const TARGETS: &[Target] = &[
    Target { name: "client_hello", run: targets::client_hello },
    Target { name: "transport_header", run: targets::transport_header },
    Target { name: "server_policy", run: targets::server_policy },
    Target { name: "outbound_policy", run: targets::outbound_policy },
    Target { name: "profile", run: targets::profile },
    Target { name: "endpoints", run: targets::endpoints },
    Target { name: "route_match", run: targets::route_match },
    Target { name: "environment", run: targets::environment },
    Target { name: "durations", run: targets::durations },
    Target { name: "http1_request", run: http1::http1_request },
    Target { name: "http1_response", run: http1::http1_response },
    Target { name: "http1_chunked", run: http1::http1_chunked },
    Target { name: "offer", run: offer::offer },
];

/// Finds a target by its name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}
