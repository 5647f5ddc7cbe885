//! What a client offers in its hello decides which of our configurations answers it: it must be read as the TLS library reads
//! it afterwards.

use rustls::server::Acceptor;
use weft_tls::{
    handshake::Offer,
    hello::{self, Hello},
    provider::{WEFT_ALPN, WEFT_TRANSPORT_ALPN},
};

/// A hello that the library accepts says the same to us.
pub fn offer(bytes: &[u8]) {
    let (mut acceptor, mut rest) = (Acceptor::default(), bytes);
    let accepted = loop {
        match acceptor.read_tls(&mut rest) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => break accepted,
            Ok(None) => {}
            Err(_) => return,
        }
    };
    let read = accepted.client_hello();
    let Hello::Client { sni, weft } = hello::peek(bytes) else {
        panic!("the library reads it as a hello, and we as {:?}", hello::peek(bytes));
    };
    assert_eq!(sni.as_deref(), read.server_name().map(str::to_ascii_lowercase).as_deref());
    let offers = |name: &[u8]| read.alpn().is_some_and(|mut names| names.any(|offered| offered == name));
    match weft {
        Offer::Weft => assert!(offers(WEFT_ALPN)),
        Offer::Transport => assert!(offers(WEFT_TRANSPORT_ALPN)),
        Offer::Nothing => assert!(!offers(WEFT_ALPN) && !offers(WEFT_TRANSPORT_ALPN)),
    }
}
