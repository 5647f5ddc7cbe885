//! A discovery that knows what a test tells it.

use super::{
    Ask, Defaults, Destination, Discovery, EndpointsState, Known, Lookup, Progress, Shared, Snapshot,
};
use parking_lot::Mutex;
use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    net::SocketAddr,
    sync::Arc,
    time::Instant,
};
use tokio::sync::{mpsc, watch};
use weft_fault::{Code, FaultRecord};
use weft_model::{inbound::ServerPolicy, outbound::Endpoints};

/// Tells a [`Discovery`] what to know. What is not told stays unanswered: destinations time out, names stay pending,
/// ports keep the default policy.
pub struct Fixed {
    shared: Arc<Shared>,
    destinations: Mutex<HashMap<SocketAddr, watch::Sender<Arc<Destination>>>>,
    named: Mutex<HashMap<String, Named>>,
    endpoints: Mutex<HashMap<String, watch::Sender<Arc<EndpointsState>>>>,
    ports: Mutex<HashMap<u16, watch::Sender<Arc<ServerPolicy>>>>,
    unanswered: Mutex<Vec<Ask>>,
    questions: Mutex<mpsc::Receiver<Ask>>,
}

struct Named {
    progress: watch::Sender<Progress>,
    answer: Option<watch::Sender<Arc<Destination>>>,
}

impl Discovery {
    /// For tests: a discovery without a controller.
    pub fn fixed(default_policy: Arc<ServerPolicy>) -> (Discovery, Fixed) {
        let (shared, questions) = Shared::new(Defaults {
            with_identity: default_policy.clone(),
            policy: default_policy,
            identity_ports: BTreeSet::new(),
            opaque_ports: BTreeSet::new(),
        });
        let fixed = Fixed {
            shared: shared.clone(),
            destinations: Mutex::default(),
            named: Mutex::default(),
            endpoints: Mutex::default(),
            ports: Mutex::default(),
            unanswered: Mutex::default(),
            questions: Mutex::new(questions),
        };
        (Discovery::new(shared), fixed)
    }
}

impl Fixed {
    /// Tells, or changes, the answer for `destination.addr`.
    pub fn destination(&self, destination: Destination) {
        let addr = destination.addr;
        let mut told = self.destinations.lock();
        if let Some(sender) = told.get(&addr) {
            sender.send_replace(Arc::new(destination));
            return;
        }
        let (send, receive) = watch::channel(Arc::new(destination));
        told.insert(addr, send);
        insert(&self.shared.destinations, addr, watch::channel(Progress::Answered(receive)).1);
    }

    /// Tells, or changes, the answer for a name (`host:port`), or that there is none.
    pub fn named(&self, name: &str, answer: Result<Destination, FaultRecord>) {
        let mut told = self.named.lock();
        let named = told.entry(name.to_string()).or_insert_with(|| {
            let (progress, receive) = watch::channel(Progress::Asking { since: Instant::now(), last: None });
            insert(&self.shared.named, name.to_string(), receive);
            Named { progress, answer: None }
        });
        match (answer, &named.answer) {
            (Err(why), _) => drop(named.progress.send_replace(Progress::Refused(Arc::new(why)))),
            (Ok(destination), Some(answer)) => drop(answer.send_replace(Arc::new(destination))),
            (Ok(destination), None) => {
                let (send, receive) = watch::channel(Arc::new(destination));
                named.answer = Some(send);
                named.progress.send_replace(Progress::Answered(receive));
            }
        }
    }

    pub fn endpoints(&self, path: &str, endpoints: Endpoints) {
        self.lookup(path, Lookup::Answered(endpoints));
    }

    pub fn lookup(&self, path: &str, lookup: Lookup) {
        let mut told = self.endpoints.lock();
        let generation = told.get(path).map_or(1, |sender| sender.borrow().generation + 1);
        let state = Arc::new(EndpointsState { generation, since: Instant::now(), lookup, strict: false });
        if let Some(sender) = told.get(path) {
            sender.send_replace(state);
            return;
        }
        let (send, receive) = watch::channel(state);
        told.insert(path.to_string(), send);
        insert(&self.shared.endpoints, path.to_string(), receive);
    }

    pub fn inbound(&self, port: u16, policy: Arc<ServerPolicy>) {
        let mut told = self.ports.lock();
        if let Some(sender) = told.get(&port) {
            sender.send_replace(policy);
            return;
        }
        let (send, receive) = watch::channel(policy);
        told.insert(port, send);
        insert(&self.shared.ports, port, receive);
    }

    /// The doubts that were raised since the last call.
    pub fn doubts(&self) -> Vec<(SocketAddr, Code)> {
        let mut doubts = Vec::new();
        let (mut questions, mut unanswered) = (self.questions.lock(), self.unanswered.lock());
        while let Ok(ask) = questions.try_recv() {
            match ask {
                Ask::Doubt(addr, why) => doubts.push((addr, why)),
                // Kept, so that whoever asked waits and does not see a closed channel.
                other => unanswered.push(other),
            }
        }
        doubts
    }
}

fn insert<K: Hash + Eq + Clone, T>(snapshot: &Snapshot<K, T>, key: K, receiver: watch::Receiver<T>) {
    let known = Arc::new(Known::new(receiver, 0));
    snapshot.rcu(|old| {
        let mut new = HashMap::clone(old);
        new.insert(key.clone(), known.clone());
        new
    });
}
