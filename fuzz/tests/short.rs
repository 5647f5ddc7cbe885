//! Each target on its corpus, and on a fixed number of mutations of it: a few seconds in all.

use std::{fs, path::Path};
use weft_fuzz::{TARGETS, mutate::Mutator, target};

const MUTATIONS: usize = 2_000;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut paths: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    paths.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

fn run(name: &str) {
    let target = target(name).unwrap();
    let corpus = corpus(name);
    for input in &corpus {
        (target.run)(input);
    }
    let mut mutator = Mutator::new(&corpus, 1);
    for _ in 0..MUTATIONS {
        (target.run)(&mutator.next_input());
    }
}

/// One test for each target, so that a failure names it.
macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(stringify!($name)); })*

        #[test]
        fn none_is_left_out() {
            let tested = [$(stringify!($name)),*];
            for target in TARGETS {
                assert!(tested.contains(&target.name), "{} is not run", target.name);
            }
        }
    };
}

targets! {
    client_hello transport_header server_policy outbound_policy profile endpoints route_match environment
    durations http1_request http1_response http1_chunked offer
}
