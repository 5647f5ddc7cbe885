//! Repository chores that need no tool but cargo.
//!
//! `cargo xtask tidy` checks what the compiler cannot: the crate graph, where unsafe code is, that documents and
//! code agree. `cargo xtask docs` writes the documents that are made from code.

mod cases;
mod code;
mod edges;
mod faults;
mod modules;
mod raised;
mod repo;
mod steps;
mod style;

use repo::Repo;
use std::{env, error::Error, process::ExitCode};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let task = env::args().nth(1).unwrap_or_default();
    let outcome = Repo::load().and_then(|repo| match task.as_str() {
        "tidy" => tidy(&repo),
        "docs" => faults::write(&repo).and_then(|()| steps::write(&repo)),
        _ => Err("usage: cargo xtask tidy|docs".into()),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn tidy(repo: &Repo) -> Result<()> {
    let complaints = complaints(repo)?;
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    for note in style::long_files(repo).into_iter().chain(modules::circles(repo)) {
        println!("note: {note}");
    }
    match complaints.len() {
        0 => {
            println!("tidy: {} files, {} packages", repo.files.len(), repo.packages.len());
            Ok(())
        }
        count => Err(format!("{count} things are not tidy").into()),
    }
}

/// Everything that is wrong, one line each: `file[:line]: what`.
fn complaints(repo: &Repo) -> Result<Vec<String>> {
    let mut found = edges::check(repo)?;
    found.extend(faults::check(repo)?);
    found.extend(cases::check(repo));
    found.extend(raised::check(repo));
    found.extend(steps::check(repo));
    found.extend(style::check(repo));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let repo = Repo::load().expect("the repository can be read");
        let complaints = complaints(&repo).expect("the checks can run");
        assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
    }
}
