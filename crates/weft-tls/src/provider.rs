//! The cryptography in use: one provider, one protocol version.

use rustls::{
    SupportedProtocolVersion,
    crypto::{CryptoProvider, aws_lc_rs},
};
use std::sync::{Arc, LazyLock};

/// The protocol versions offered and accepted.
pub const VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// The application protocol of connections that start with a transport header.
/// Between two weft proxies: HTTP/1 goes as it is.
pub const WEFT_ALPN: &[u8] = b"weft.dev/v1";
/// The same on the proxy's own port, where a transport header comes first.
pub const WEFT_TRANSPORT_ALPN: &[u8] = b"weft.dev/transport/v1";
pub const TRANSPORT_ALPN: &[u8] = b"transport.l5d.io/v1";

static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    use aws_lc_rs::{cipher_suite, kx_group};
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![kx_group::X25519MLKEM768, kx_group::X25519, kx_group::SECP256R1, kx_group::SECP384R1],
        ..aws_lc_rs::default_provider()
    })
});

/// The names of the cipher suites and of the key exchange groups, in the order of preference.
pub fn offers() -> (Vec<&'static str>, Vec<&'static str>) {
    let suites = PROVIDER.cipher_suites.iter().filter_map(|suite| suite.suite().as_str()).collect();
    let groups = PROVIDER.kx_groups.iter().filter_map(|group| group.name().as_str()).collect();
    (suites, groups)
}

/// The provider of every configuration in weft.
pub fn provider() -> Arc<CryptoProvider> {
    PROVIDER.clone()
}
