//! The index, its subscribers and the journal, behind one lock.
//!
//! The lock is held for a change and the views that follow from it, or for one subscription; never while waiting.

use super::{
    Index, Note,
    kinds::Indexed,
    reader::Reader,
    registry::{Registry, Subject},
};
use crate::{
    config::ControllerConfig,
    journal::Journal,
    view::{endpoints::EndpointsOf, inbound::InboundOf, outbound::OutboundOf, profile::ProfileOf},
};
use parking_lot::Mutex;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::sync::watch;
use weft_kube::watch::Event;

#[derive(Debug)]
pub struct Store {
    pub config: ControllerConfig,
    pub journal: Journal,
    core: Mutex<Core>,
    revision: AtomicU64,
}

#[derive(Debug, Default)]
struct Core {
    index: Index,
    registries: Registries,
}

#[derive(Debug, Default)]
pub struct Registries {
    endpoints: Registry<EndpointsOf>,
    profiles: Registry<ProfileOf>,
    inbound: Registry<InboundOf>,
    outbound: Registry<OutboundOf>,
}

/// A subject whose registry the store has.
pub trait Stored: Subject {
    fn registry(registries: &mut Registries) -> &mut Registry<Self>;
}

macro_rules! stored {
    ($subject:ty, $field:ident) => {
        impl Stored for $subject {
            fn registry(registries: &mut Registries) -> &mut Registry<Self> {
                &mut registries.$field
            }
        }
    };
}
stored!(EndpointsOf, endpoints);
stored!(ProfileOf, profiles);
stored!(InboundOf, inbound);
stored!(OutboundOf, outbound);

/// How many objects and subscribers there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    pub objects: Vec<(&'static str, usize)>,
    pub subscribers: Vec<(&'static str, usize)>,
}

/// A change that knows how to apply itself: one event of some kind.
pub type Change = Box<dyn FnOnce(&mut Index) -> super::Applied + Send>;

pub fn change<K: Indexed>(event: Event<K>) -> Change {
    Box::new(move |index| index.apply(event))
}

impl Store {
    pub fn new(config: ControllerConfig) -> Arc<Self> {
        Arc::new(Store {
            config,
            journal: Journal::default(),
            core: Mutex::default(),
            revision: AtomicU64::new(0),
        })
    }

    /// Applies changes in order, then brings every view that one of them touches up to date, once.
    pub fn apply(&self, changes: impl IntoIterator<Item = Change>) {
        let mut core = self.core.lock();
        let Core { index, registries } = &mut *core;
        let mut touched = BTreeSet::new();
        let mut notes: Vec<Note> = Vec::new();
        for change in changes {
            let applied = change(index);
            touched.extend(applied.touched);
            notes.extend(applied.notes);
        }
        registries.endpoints.update(&touched, index, &self.config);
        registries.profiles.update(&touched, index, &self.config);
        registries.inbound.update(&touched, index, &self.config);
        registries.outbound.update(&touched, index, &self.config);
        drop(core);
        self.revision.fetch_add(1, Relaxed);
        for note in notes {
            match note.lasts {
                true => self.journal.lasts(note.subject, note.text),
                false => self.journal.changed(note.subject, note.text),
            }
        }
    }

    /// Counts how often the index may have changed, in whatever respect.
    pub fn revision(&self) -> u64 {
        self.revision.load(Relaxed)
    }

    /// The view of a subject, now and after each change.
    pub fn subscribe<S: Stored>(&self, subject: S) -> watch::Receiver<S::View> {
        let mut core = self.core.lock();
        let Core { index, registries } = &mut *core;
        S::registry(registries).subscribe(subject, index, &self.config)
    }

    /// One look, without subscribing.
    pub fn look<T>(&self, view: impl FnOnce(&Reader<'_>, &ControllerConfig) -> T) -> T {
        let core = self.core.lock();
        view(&Reader::new(&core.index), &self.config)
    }

    /// Forgets subjects that nobody reads any more.
    pub fn sweep(&self) {
        let mut core = self.core.lock();
        let registries = &mut core.registries;
        registries.endpoints.sweep();
        registries.profiles.sweep();
        registries.inbound.sweep();
        registries.outbound.sweep();
    }

    pub fn sizes(&self) -> Sizes {
        let core = self.core.lock();
        let (index, registries) = (&core.index, &core.registries);
        Sizes {
            objects: vec![
                ("Pod", index.pods.len()),
                ("Service", index.services.len()),
                ("EndpointSlice", index.slices.len()),
                ("Node", index.nodes.len()),
                ("Namespace", index.namespaces.len()),
                ("ReplicaSet", index.replica_sets.len()),
                ("Job", index.jobs.len()),
                ("Server", index.servers.len()),
                ("AuthorizationPolicy", index.authorizations.len()),
                ("MeshTLSAuthentication", index.mesh_tls.len()),
                ("NetworkAuthentication", index.networks.len()),
                ("HTTPRoute", index.policy_routes.len() + index.gateway_routes.len()),
                ("GRPCRoute", index.grpc_routes.len()),
                ("TLSRoute", index.tls_routes.len()),
                ("TCPRoute", index.tcp_routes.len()),
                ("ReferenceGrant", index.grants.len()),
                ("EgressNetwork", index.egress_networks.len()),
                ("ServerAuthorization", index.server_authorizations.len()),
                ("HTTPLocalRateLimitPolicy", index.rate_limits.len()),
                ("ExternalWorkload", index.externals.len()),
                ("ServiceProfile", index.profiles.len()),
            ],
            subscribers: vec![
                ("endpoints", registries.endpoints.subscribers()),
                ("profile", registries.profiles.subscribers()),
                ("inbound", registries.inbound.subscribers()),
                ("outbound", registries.outbound.subscribers()),
            ],
        }
    }
}
