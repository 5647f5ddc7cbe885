//! What every connection sees: one [`Mesh`] per process, shared by the workers and the agent.

use crate::{
    config::Config, discovery::Discovery, drain, identity, inbound::limit::Limits, metrics::Metrics,
    observe::Observers, record::Recorder, watchdog::Gaps,
};
use std::sync::Arc;

pub struct Mesh {
    pub config: Config,
    pub identity: identity::Handle,
    pub discovery: Discovery,
    pub metrics: Arc<Metrics>,
    pub recorder: Arc<Recorder>,
    /// Who wants to know of single requests.
    pub observers: Arc<Observers>,
    pub drain: drain::Watch,
    pub gaps: Gaps,
    /// Rate limits of this proxy's ports.
    pub limits: Limits,
}
