//! All targets under libFuzzer; `WEFT_FUZZ_TARGET` names the one to run.

#![no_main]

use std::sync::LazyLock;
use weft_fuzz::Target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("WEFT_FUZZ_TARGET").unwrap_or_default();
    weft_fuzz::target(&name).unwrap_or_else(|| {
        let names: Vec<&str> = weft_fuzz::TARGETS.iter().map(|target| target.name).collect();
        panic!("set WEFT_FUZZ_TARGET to one of {names:?}")
    })
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
