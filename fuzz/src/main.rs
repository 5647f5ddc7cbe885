//! `weft-fuzz TARGET SECONDS [SEED]`: runs one target on mutations of its corpus. On a failure the input is written to
//! `fuzz-TARGET-SEED.bin` in the current folder, to become part of the corpus.

use std::{
    cell::RefCell,
    fs,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};
use weft_fuzz::{TARGETS, mutate::Mutator, target};

thread_local! {
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match arguments.as_slice() {
        [name, seconds] => target(name).zip(seconds.parse().ok()).zip(Some(1)),
        [name, seconds, seed] => target(name).zip(seconds.parse().ok()).zip(seed.parse().ok()),
        _ => None,
    };
    let Some(((target, seconds), seed)) = parsed else {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("usage: weft-fuzz TARGET SECONDS [SEED]\ntargets: {}", names.join(", "));
        return ExitCode::from(2);
    };
    let corpus = corpus(target.name);
    let written = format!("fuzz-{}-{seed}.bin", target.name);
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        INPUT.with_borrow(|input| match fs::write(&written, input) {
            Ok(()) => eprintln!("the input is in {written}"),
            Err(error) => eprintln!("{written}: {error}; the input: {input:02x?}"),
        });
        print(panic);
    }));
    let mut mutator = Mutator::new(&corpus, seed);
    let (begun, limit) = (Instant::now(), Duration::from_secs(seconds));
    let mut runs: u64 = 0;
    while begun.elapsed() < limit {
        for _ in 0..64 {
            INPUT.set(mutator.next_input());
            INPUT.with_borrow(|input| (target.run)(input));
            runs += 1;
        }
    }
    println!("{}: {runs} inputs in {} s, seed {seed}, {} in the corpus", target.name, seconds, corpus.len());
    ExitCode::SUCCESS
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths.into_iter().filter_map(|path| fs::read(path).ok()).collect()
}
