//! Who runs `weft` in a test: whoever runs the tests, or an ordinary user as whom root runs it.

use std::{
    ffi::OsStr,
    fs,
    io::ErrorKind,
    os::unix::{fs::chown, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Whoever runs the tests. With root's rights, if that is root.
    Tester,
    /// Somebody without any rights. Only root can become that, and others are.
    Ordinary,
}

/// The user of one test.
pub(crate) struct User {
    /// Taken on by each command.
    pub(crate) uid: Option<u32>,
    /// The folder of an ordinary user's session.
    session: Option<tempfile::TempDir>,
    program: PathBuf,
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl User {
    /// Fails with the reason why no mesh of this user's can run here.
    pub(crate) fn new(who: Who) -> Result<User, String> {
        if who == Who::Ordinary && !is_root() {
            return Err("the tests run without root anyway".into());
        }
        // systemd's range of users that come and go.
        let uid = (who == Who::Ordinary).then(|| 61_184 + std::process::id() % 4_000);
        let program = PathBuf::from(env!("CARGO_BIN_EXE_weft"));
        let mut user = User { uid, session: None, program };
        if user.is_rootless() {
            user.session = Some(user.folder());
            user.take_the_program_along();
        }
        user.probe().map(|()| user)
    }

    pub(crate) fn is_rootless(&self) -> bool {
        self.uid.is_some() || !is_root()
    }

    /// A temporary folder of this user's.
    pub(crate) fn folder(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        self.give(folder.path());
        folder
    }

    pub(crate) fn give(&self, path: &Path) {
        if self.uid.is_some() {
            chown(path, self.uid, self.uid).expect("what is given to the user");
        }
    }

    /// `weft`, or another program, as this user.
    pub(crate) fn command(&self, program: Option<&str>) -> Command {
        let mut command = Command::new(program.map_or(self.program.as_os_str(), OsStr::new));
        if let Some(uid) = self.uid {
            // Its groups go by this, too.
            command.uid(uid).gid(uid);
        }
        if let Some(session) = &self.session {
            command.env("HOME", session.path()).env("XDG_RUNTIME_DIR", session.path());
        }
        command.stdin(Stdio::null());
        command
    }

    /// Where the state of this user's meshes is.
    pub(crate) fn state_root(&self) -> PathBuf {
        match &self.session {
            Some(session) => session.path().join("weft"),
            None => "/run/weft".into(),
        }
    }

    /// Where the user may not look, there is no program: it comes along then.
    fn take_the_program_along(&mut self) {
        let tried = self.command(None).arg("--version").output();
        let Some(session) = &self.session else { return };
        if tried.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
            let copy = session.path().join("weft-program");
            fs::copy(&self.program, &copy).expect("a copy of the program");
            self.program = copy;
        }
    }

    /// The steps that the supervisor takes first, by other means.
    fn probe(&self) -> Result<(), String> {
        let mut unshare = self.command(Some("unshare"));
        if self.is_rootless() {
            unshare.args(["--user", "--map-root-user"]);
        }
        match unshare.args(["--net", "--pid", "--fork", "--mount", "true"]).output() {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
            Err(error) => Err(format!("unshare: {error}")),
        }
    }
}
