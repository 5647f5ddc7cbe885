//! A certificate authority for one test.

use std::time::{Duration, SystemTime};
use weft_model::identity::Identity;
use weft_tls::{authority::Ca, bundle::TrustBundle, credentials::Credentials, keys::Key, named::NamedServer};

const LIFETIME: Duration = Duration::from_secs(86_400);

pub struct Pki {
    root: Ca,
}

impl Pki {
    /// # Panics
    /// When no key can be made: a test cannot go on without.
    pub fn new() -> Self {
        Pki { root: Ca::root("root.weft-testkit", LIFETIME).expect("a root certificate") }
    }

    pub fn root(&self) -> &Ca {
        &self.root
    }

    pub fn anchors_pem(&self) -> String {
        self.root.certificate_pem()
    }

    pub fn anchors(&self) -> TrustBundle {
        TrustBundle::parse(&self.anchors_pem()).expect("the root's own certificate")
    }

    /// What a workload with this identity proves itself with.
    pub fn credentials(&self, identity: &Identity) -> Credentials {
        let key = Key::generate().expect("a key");
        let issued =
            self.root.issue(&key, &[identity.as_str()], LIFETIME, SystemTime::now()).expect("a leaf");
        let (id, name) = (identity.clone(), identity.clone());
        Credentials::new(id, name, &key, issued.leaf, issued.intermediates, &self.anchors())
            .expect("fresh credentials are valid")
    }

    /// A TLS server that answers to one name, as a controller does.
    pub fn server(&self, identity: &Identity) -> NamedServer {
        let key = Key::generate().expect("a key");
        let issued =
            self.root.issue(&key, &[identity.as_str()], LIFETIME, SystemTime::now()).expect("a leaf");
        NamedServer::single(identity, &key, &issued, &self.anchors()).expect("a server configuration")
    }
}

impl Default for Pki {
    fn default() -> Self {
        Self::new()
    }
}

/// `<account>.<namespace>.serviceaccount.identity.linkerd.cluster.local`.
pub fn identity(account: &str, namespace: &str) -> Identity {
    Identity::of_service_account(account, namespace, "linkerd", "cluster.local")
        .expect("labels of a DNS name")
}
