pub(crate) mod down;
pub(crate) mod exec;
pub(crate) mod explain;
pub(crate) mod identity;
pub(crate) mod logs;
pub(crate) mod proxy_init;
pub(crate) mod stat;
pub(crate) mod up;
