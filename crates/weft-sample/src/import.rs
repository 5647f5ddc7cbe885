//! A job: fills the store with what is for sale, then ends with success.

use crate::{Error, catalogue::is_sku, kv::StoreClient, text::say};
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

const ROLE: &str = "import";
/// A file larger than this is not a price list.
const FILE_BYTES: u64 = 1024 * 1024;

#[derive(clap::Args, Debug)]
pub struct Options {
    /// The store's HOST:PORT
    #[arg(long, env = "SHOP_STORE", default_value = "store:7000")]
    pub store: String,
    /// Lines of `SKU NAME|CENTS`; empty lines and lines that start with # are skipped
    #[arg(long, env = "SHOP_ITEMS_FILE")]
    pub file: Option<PathBuf>,
    /// Make up further items until there are so many
    #[arg(long, env = "SHOP_ITEMS", default_value_t = 20)]
    pub items: usize,
    /// How long each command may take
    #[arg(long, env = "SHOP_TIMEOUT", default_value = "3s", value_parser = crate::text::duration)]
    pub timeout: Duration,
    /// How long to keep trying while the store does not answer
    #[arg(long, env = "SHOP_DEADLINE", default_value = "60s", value_parser = crate::text::duration)]
    pub deadline: Duration,
}

pub async fn run(options: Options) -> Result<(), Error> {
    let started = Instant::now();
    let mut items = match &options.file {
        Some(path) => {
            let file = |source| Error::File { path: path.display().to_string(), source };
            if tokio::fs::metadata(path).await.map_err(file)?.len() > FILE_BYTES {
                return Err(Error::TooLong { limit: FILE_BYTES as usize });
            }
            parse(&tokio::fs::read_to_string(path).await.map_err(file)?)?
        }
        None => Vec::new(),
    };
    for number in items.len() + 1..=options.items {
        items
            .push((format!("item-{number:04}"), format!("Thing number {number}|{}", 100 + number * 7 % 900)));
    }

    let store = StoreClient::new(&options.store, options.timeout);
    for (sku, value) in &items {
        let key = format!("item/{sku}");
        // The store may start after us: try again until the deadline, then say what the last attempt met.
        while let Err(error) = store.set(&key, value).await {
            if started.elapsed() > options.deadline {
                return Err(error);
            }
            say(ROLE, format_args!("not yet: {}", error.chain()));
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
    say(ROLE, format_args!("{} items are in {} after {:.1?}", items.len(), options.store, started.elapsed()));
    Ok(())
}

fn parse(text: &str) -> Result<Vec<(String, String)>, Error> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let item = line.split_once(char::is_whitespace).map(|(sku, rest)| (sku, rest.trim()));
            match item {
                Some((sku, value))
                    if is_sku(sku)
                        && value.rsplit_once('|').is_some_and(|(_, price)| price.parse::<u32>().is_ok()) =>
                {
                    Ok((sku.to_string(), value.to_string()))
                }
                _ => Err(Error::Flag {
                    flag: "file",
                    value: line.to_string(),
                    expected: "expected lines of SKU NAME|CENTS",
                }),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn price_lists() {
        let items = parse("# ours\nkettle  Kettle, 1 l|2499\n\n pan\tPan|1800\n").unwrap();
        assert_eq!(items, [("kettle".into(), "Kettle, 1 l|2499".into()), ("pan".into(), "Pan|1800".into())]);
        for bad in ["kettle", "Kettle Kettle|1", "kettle Kettle|one"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
