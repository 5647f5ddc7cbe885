//! This proxy's own identity: its name, and the certificate it holds now.

use weft_model::identity::Identity;

/// What the data path sees of the proxy's identity. (`current()` and `changed()` follow with `weft_tls::Credentials`.)
#[derive(Clone, Debug)]
pub struct Handle {
    local_name: Identity,
}

impl Handle {
    /// A handle that never gets a certificate: for tests of what does not need one.
    pub fn without_certificate(local_name: Identity) -> Self {
        Handle { local_name }
    }

    pub fn local_name(&self) -> &Identity {
        &self.local_name
    }
}
