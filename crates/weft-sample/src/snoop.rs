//! A workload with no business in the store. What it prints is what being denied looks like to a program.

use crate::{
    Error,
    kv::StoreClient,
    lifecycle::{Lifecycle, LifecycleOptions},
    text::say,
};
use std::time::Duration;

const ROLE: &str = "snoop";

#[derive(clap::Args, Debug)]
pub struct Options {
    /// The store's HOST:PORT
    #[arg(long, env = "SHOP_STORE", default_value = "store:7000")]
    pub store: String,
    /// How often to try
    #[arg(long, env = "SHOP_EVERY", default_value = "5s", value_parser = crate::text::duration)]
    pub every: Duration,
    /// How long each attempt may take
    #[arg(long, env = "SHOP_TIMEOUT", default_value = "3s", value_parser = crate::text::duration)]
    pub timeout: Duration,
    #[command(flatten)]
    pub life: LifecycleOptions,
}

pub async fn run(options: Options) -> Result<(), Error> {
    let life = Lifecycle::start(ROLE, &options.life)?;
    loop {
        // A client of its own each time: a permit once given must not be what lets it in.
        let store = StoreClient::new(&options.store, options.timeout);
        match store.list("order/", 10).await {
            Ok(orders) => {
                say(ROLE, format_args!("READ {} orders: nothing stops me", orders.len()));
            }
            Err(error) => say(ROLE, format_args!("kept out of {}: {}", options.store, error.chain())),
        }
        tokio::select! {
            () = life.leaving() => return Ok(()),
            () = tokio::time::sleep(options.every) => {}
        }
    }
}
