//! Subcommands that are programs of their own on PATH: `weft-NAME`, or `linkerd-NAME`.

use anyhow::{Context as _, Result, bail};
use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitCode},
};
use weft_fault::nearest::nearest;

/// Becomes the program; returns only if there is none. `known` are our own subcommands, for a hint.
pub(crate) fn run(args: &[OsString], known: &[String]) -> Result<ExitCode> {
    let Some((name, rest)) = args.split_first() else { bail!("no subcommand") };
    let shown = name.to_string_lossy();
    #[allow(clippy::disallowed_methods, reason = "PATH is where programs are, not a setting")]
    let path = env::var_os("PATH").unwrap_or_default();
    let Some(program) = find(name, &path) else {
        let hint = nearest(&shown, known.iter().map(String::as_str));
        let hint = hint.map(|name| format!("; is `weft {name}` meant?")).unwrap_or_default();
        bail!("no subcommand {shown:?}, and neither weft-{shown} nor linkerd-{shown} on PATH{hint}");
    };
    let error = Command::new(&program).args(rest).exec();
    Err(error).with_context(|| format!("running {}", program.display()))
}

/// The program of this name. A name with a slash would lead anywhere.
fn find(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    if name.to_string_lossy().contains('/') {
        return None;
    }
    let candidates = ["weft-", "linkerd-"].map(|prefix| {
        let mut full = OsString::from(prefix);
        full.push(name);
        full
    });
    candidates.iter().find_map(|name| {
        env::split_paths(path).map(|folder| folder.join(name)).find(|file| {
            file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    #[test]
    fn ours_comes_first_and_only_programs_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let make = |name: &str, mode| {
            let path = folder.path().join(name);
            fs::write(&path, "").expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("permitted");
            path
        };
        let (ours, theirs) = (make("weft-smi", 0o755), make("linkerd-smi", 0o755));
        let (only_theirs, _) = (make("linkerd-buoyant", 0o755), make("weft-text", 0o644));
        let found = |name: &str| find(OsStr::new(name), folder.path().as_os_str());
        assert_eq!(found("smi"), Some(ours.clone()));
        fs::remove_file(ours).expect("removed");
        assert_eq!(found("smi"), Some(theirs));
        assert_eq!(found("buoyant"), Some(only_theirs));
        assert_eq!(found("text"), None);
        assert_eq!(found("../smi"), None);
    }

    #[test]
    fn a_name_that_is_nearly_right_gets_a_hint() {
        let known = ["install".to_owned(), "inject".to_owned()];
        let said = run(&["instal".into()], &known).unwrap_err().to_string();
        assert!(said.contains("`weft install`"), "{said}");
    }
}
