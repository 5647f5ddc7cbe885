# `just` lists these.
_:
    @just --list

# Everything that CI checks.
check:
    .ci/run

# The quick part, while writing.
quick:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    cargo xtask tidy

# Documents that are made from code.
docs:
    cargo xtask docs

# The example, on this machine.
shop:
    cargo run --release -- up examples/shop

# What the proxies cost (needs root; prints a table and JSON).
bench *ARGS:
    cargo build --release --workspace --bins
    python3 bench/run.py {{ARGS}}

# One fuzz target under libFuzzer, guided by coverage (needs a C++ compiler; see fuzz/README.md).
fuzz TARGET SECONDS="600":
    mkdir -p fuzz/libfuzzer/corpus/{{TARGET}}
    cd fuzz/libfuzzer && WEFT_FUZZ_TARGET={{TARGET}} cargo run --release -- -max_len=4096 -max_total_time={{SECONDS}} corpus/{{TARGET}} ../corpus/{{TARGET}}

# Licences, bans and sources of dependencies (needs cargo-deny).
deny:
    cargo deny --offline check bans licenses sources
