pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod logs;
pub(crate) mod stat;
