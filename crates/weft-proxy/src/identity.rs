//! This proxy's own identity: its name, and the certificate it holds now.

use std::sync::Arc;
use tokio::sync::watch;
use weft_fault::FaultRecord;
use weft_model::identity::Identity;
use weft_tls::credentials::Credentials;

/// What the data path sees of the proxy's identity.
#[derive(Clone, Debug)]
pub struct Handle {
    local_name: Identity,
    credentials: watch::Receiver<Option<Arc<Credentials>>>,
    waiting: watch::Receiver<Option<Arc<FaultRecord>>>,
}

/// Publishes certificates; owned by whoever obtains them.
#[derive(Debug)]
pub struct Publisher {
    credentials: watch::Sender<Option<Arc<Credentials>>>,
    waiting: watch::Sender<Option<Arc<FaultRecord>>>,
}

impl Publisher {
    pub fn publish(&self, credentials: Arc<Credentials>) {
        self.credentials.send_replace(Some(credentials));
    }

    pub fn current(&self) -> Option<Arc<Credentials>> {
        self.credentials.borrow().clone()
    }

    /// Why there is no (new) certificate.
    pub fn waits(&self, why: Option<Arc<FaultRecord>>) {
        self.waiting.send_replace(why);
    }
}

impl Handle {
    /// A handle, and what its certificates come through.
    pub fn new(local_name: Identity) -> (Handle, Publisher) {
        let (send_credentials, credentials) = watch::channel(None);
        let (send_waiting, waiting) = watch::channel(None);
        let publisher = Publisher { credentials: send_credentials, waiting: send_waiting };
        (Handle { local_name, credentials, waiting }, publisher)
    }

    /// A handle that has its certificate already and never gets another: for tests.
    pub fn fixed(credentials: Credentials) -> Handle {
        let (handle, publisher) = Handle::new(credentials.id().clone());
        publisher.publish(Arc::new(credentials));
        handle
    }

    pub fn local_name(&self) -> &Identity {
        &self.local_name
    }

    /// The certificate in force; `None` until the first one.
    pub fn current(&self) -> Option<Arc<Credentials>> {
        self.credentials.borrow().clone()
    }

    /// Why the certificate is late, as far as is known.
    pub fn waiting(&self) -> Option<Arc<FaultRecord>> {
        self.waiting.borrow().clone()
    }

    /// Waits for the first certificate.
    pub async fn first(mut self) -> Arc<Credentials> {
        match self.credentials.wait_for(Option::is_some).await.ok().and_then(|found| found.clone()) {
            Some(credentials) => credentials,
            // None will come any more: the process is ending.
            None => std::future::pending().await,
        }
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
