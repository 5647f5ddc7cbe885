//! Where the state directories are: root's where every user looks for them, another user's where that user alone does.

use std::{
    env,
    ffi::OsString,
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};
use weft_fault::{Code, Fault, Phase};

/// Below this, one directory for each mesh of root's.
pub const ROOT: &str = "/run/weft";

/// Below this directory, this user has or would have the mesh of this name.
///
/// Fails if the directory is somebody else's: what it holds would be believed.
pub fn root_of(mesh: &str) -> Result<PathBuf, Fault> {
    let uid = rustix::process::geteuid().as_raw();
    let roots = roots(uid, env::var_os("XDG_RUNTIME_DIR"));
    // A session that lacks the variable finds the mesh of one that has it.
    let holds = |root: &&PathBuf| root.join(mesh).exists() && check(root, uid).is_ok();
    let root = roots.iter().find(holds).or(roots.first()).cloned().unwrap_or_default();
    match check(&root, uid) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Fault::new(Code::BadState)
            .in_phase(Phase::Start)
            .about(root.display())
            .fact("instead", "set XDG_RUNTIME_DIR to a directory of your own that others cannot write to")
            .because(error)),
        _ => Ok(root),
    }
}

/// The places to look at, the first one for what is new. There is one at least.
fn roots(uid: u32, runtime_dir: Option<OsString>) -> Vec<PathBuf> {
    if uid == 0 {
        return vec![ROOT.into()];
    }
    let named = runtime_dir.map(PathBuf::from).filter(|dir| dir.is_absolute());
    let usual = PathBuf::from(format!("/run/user/{uid}"));
    let usable = |dir: &PathBuf| check(dir, uid).is_ok();
    let mut roots: Vec<PathBuf> =
        named.into_iter().chain([usual]).filter(usable).map(|dir| dir.join("weft")).collect();
    roots.push(PathBuf::from(format!("/tmp/weft-{uid}")));
    roots.dedup();
    roots
}

/// Whether it is a directory, no link to one, of this user's, and nobody else can write to it.
fn check(dir: &Path, uid: u32) -> io::Result<()> {
    let meta = fs::symlink_metadata(dir)?;
    let problem = match (meta.is_dir(), meta.uid() == uid, meta.mode() & 0o022) {
        (false, ..) => "it is no directory".to_owned(),
        (_, false, _) => format!("it belongs to user {}", meta.uid()),
        (.., 0) => return Ok(()),
        (.., open) => format!("others can write to it (mode {open:o})"),
    };
    Err(io::Error::other(problem))
}

/// Makes the root if it is not there. What a user other than root has in it is nobody else's business.
pub(super) fn make_root(root: &Path) -> io::Result<()> {
    let uid = rustix::process::geteuid().as_raw();
    let mode = if uid == 0 { 0o755 } else { 0o700 };
    DirBuilder::new().recursive(true).mode(mode).create(root)?;
    check(root, uid)?;
    if uid == 0 { Ok(()) } else { fs::set_permissions(root, Permissions::from_mode(mode)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn each_user_has_a_place_of_its_own() {
        assert_eq!(roots(0, Some("/nowhere".into())), [Path::new(ROOT)]);
        // No user has this number.
        let last = u32::MAX - 7;
        for unusable in [None, Some("relative".into()), Some("/nowhere".into()), Some("/proc".into())] {
            assert_eq!(roots(last, unusable), [PathBuf::from(format!("/tmp/weft-{last}"))]);
        }
    }

    #[test]
    fn what_others_could_have_put_there_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("own")).unwrap();
        fs::set_permissions(at("own"), Permissions::from_mode(0o700)).unwrap();
        assert!(check(&at("own"), uid).is_ok());
        fs::create_dir(at("open")).unwrap();
        fs::set_permissions(at("open"), Permissions::from_mode(0o777)).unwrap();
        symlink(at("own"), at("link")).unwrap();
        fs::write(at("file"), "").unwrap();
        for (dir, uid, why) in [
            ("own", uid + 1, "belongs to"),
            ("open", uid, "others can write"),
            ("link", uid, "no directory"),
            ("file", uid, "no directory"),
        ] {
            let error = check(&at(dir), uid).unwrap_err().to_string();
            assert!(error.contains(why), "{dir}: {error}");
        }
        assert!(make_root(&at("link")).is_err());
        assert!(make_root(&at("own/deeper")).is_ok());
    }
}
