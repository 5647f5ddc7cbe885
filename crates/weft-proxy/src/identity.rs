//! This proxy's own identity: its name, and the certificate it holds now.

use std::sync::Arc;
use tokio::sync::watch;
use weft_model::identity::Identity;
use weft_tls::credentials::Credentials;

/// What the data path sees of the proxy's identity.
#[derive(Clone, Debug)]
pub struct Handle {
    local_name: Identity,
    credentials: watch::Receiver<Option<Arc<Credentials>>>,
}

/// Publishes certificates; owned by whoever obtains them.
pub type Publisher = watch::Sender<Option<Arc<Credentials>>>;

impl Handle {
    /// A handle, and what its certificates come through.
    pub fn new(local_name: Identity) -> (Handle, Publisher) {
        let (publisher, credentials) = watch::channel(None);
        (Handle { local_name, credentials }, publisher)
    }

    /// A handle that has its certificate already and never gets another: for tests.
    pub fn fixed(credentials: Credentials) -> Handle {
        let local_name = credentials.id().clone();
        let (_publisher, credentials) = watch::channel(Some(Arc::new(credentials)));
        Handle { local_name, credentials }
    }

    pub fn local_name(&self) -> &Identity {
        &self.local_name
    }

    /// The certificate in force; `None` until the first one.
    pub fn current(&self) -> Option<Arc<Credentials>> {
        self.credentials.borrow().clone()
    }

    /// Waits until another certificate is in force than when this handle was cloned or last waited.
    pub async fn changed(&mut self) -> Option<Arc<Credentials>> {
        if self.credentials.changed().await.is_err() {
            // No further certificate will come: whatever the caller holds stays in force.
            std::future::pending::<()>().await;
        }
        self.credentials.borrow_and_update().clone()
    }
}
