//! `kubectl` reaches into containers: it copies files both ways, runs commands with an input and on a terminal, and follows
//! what a container prints.

use super::lab::{DEADLINE, apply, ready};
use kube::Client;
use rustix::{
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
};
use weft_local::{rights::Rights, up::Mesh};

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: tools}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: none, command: [/bin/sh, -c, "while :; do echo out; echo err >&2; sleep 0.1; done"]}
  - {name: asks, image: none, stdin: true, command: [/bin/sh, -c, "while :; do sleep 1; done"]}
"#;

struct Kubectl<'m> {
    mesh: &'m Mesh,
    home: tempfile::TempDir,
}

impl Kubectl<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.args(arguments).current_dir(self.home.path()).env("HOME", self.home.path());
        command.env("KUBECONFIG", &self.mesh.info().kubeconfig);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = self.command(arguments).spawn().unwrap();
        let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
        // A command that wants no input may have ended already.
        let feed = thread::spawn(move || stdin.write_all(&input));
        let (done, ended) = mpsc::channel();
        thread::spawn(move || done.send(child.wait_with_output()));
        let output =
            ended.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("kubectl {arguments:?} does not end"));
        let _ = feed.join();
        output.unwrap()
    }

    fn ok(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let output = self.run(arguments, input);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {arguments:?}: {said}");
        output.stdout
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.home.path().join(name)
    }
}

pub(crate) async fn kubectl_reaches_into_containers(client: &Client, mesh: &Mesh) {
    if Command::new("kubectl").args(["version", "--client"]).output().is_err() {
        eprintln!("SKIPPED: kubectl_reaches_into_containers: kubectl is not installed");
        return;
    }
    apply(client, POD).await;
    ready(client, "tools").await;
    let kubectl = Kubectl { mesh, home: tempfile::tempdir().unwrap() };
    if Command::new("tar").arg("--version").output().is_err() {
        eprintln!("SKIPPED: kubectl cp: tar is not installed");
    } else {
        files_are_copied(&kubectl);
    }
    commands_have_an_input(&kubectl);
    commands_have_a_terminal(&kubectl);
    output_is_followed(&kubectl);
}

/// Bytes that no text has, and more of them than any buffer on the way holds.
fn bytes() -> Vec<u8> {
    (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn files_are_copied(kubectl: &Kubectl<'_>) {
    let tree = kubectl.path("tree");
    fs::create_dir_all(tree.join("sub/empty")).unwrap();
    fs::write(tree.join("sub/large"), bytes()).unwrap();
    fs::write(tree.join("a file"), "text\n").unwrap();
    let mut copy = vec!["cp", "tree", "tools:/tmp/tree", "-c", "app"];
    // In a user namespace, there is no user of ours to whom the files could be given.
    if Rights::of_this_process() == Rights::User {
        let refused = kubectl.run(&copy, b"");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("Cannot change ownership"), "{said}");
        kubectl.ok(&["exec", "tools", "-c", "app", "--", "rm", "-r", "/tmp/tree"], b"");
        copy.push("--no-preserve");
    }
    kubectl.ok(&copy, b"");
    let listed =
        kubectl.ok(&["exec", "tools", "-c", "app", "--", "sh", "-c", "cd /tmp/tree; find . | sort"], b"");
    assert_eq!(String::from_utf8_lossy(&listed), ".\n./a file\n./sub\n./sub/empty\n./sub/large\n");

    kubectl.ok(&["cp", "tools:/tmp/tree", "back", "-c", "app"], b"");
    let back = kubectl.path("back");
    assert_eq!(fs::read(back.join("a file")).unwrap(), b"text\n");
    assert!(fs::read(back.join("sub/large")).unwrap() == bytes(), "other bytes came back");
    assert!(back.join("sub/empty").is_dir());

    // One file under another name; and a container that is another's neighbour has files of its own.
    kubectl.ok(&["cp", "tools:/tmp/tree/a file", "one", "-c", "app"], b"");
    assert_eq!(fs::read(kubectl.path("one")).unwrap(), b"text\n");
    let there = kubectl.run(&["exec", "tools", "-c", "asks", "--", "test", "-e", "/tmp/tree"], b"");
    assert_eq!(there.status.code(), Some(1));
}

fn commands_have_an_input(kubectl: &Kubectl<'_>) {
    assert!(
        kubectl.ok(&["exec", "-i", "tools", "-c", "app", "--", "cat"], &bytes()) == bytes(),
        "other bytes came back"
    );
    // Without -i, there is none.
    assert_eq!(kubectl.ok(&["exec", "tools", "-c", "app", "--", "cat"], b"typed"), b"");
    // A command that does not read to the end leaves the rest.
    assert_eq!(
        kubectl.ok(&["exec", "-i", "tools", "-c", "app", "--", "head", "-c", "3"], &bytes()),
        bytes()[..3]
    );
    let failed = kubectl.run(&["exec", "tools", "-c", "app", "--", "sh", "-c", "echo why >&2; exit 7"], b"");
    assert_eq!(failed.status.code(), Some(7));
    assert!(String::from_utf8_lossy(&failed.stderr).starts_with("why\n"), "{failed:?}");
    let none = kubectl.run(&["exec", "tools", "-c", "app", "--", "/no/such/program"], b"");
    assert!(
        !none.status.success() && String::from_utf8_lossy(&none.stderr).contains("No such file"),
        "{none:?}"
    );
}

/// A terminal of `rows` and `columns`: kubectl's end of it, and ours.
fn terminal(rows: u16, columns: u16) -> (File, File) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
    resize(&ours, rows, columns);
    (theirs.into(), ours.into())
}

fn resize(terminal: impl std::os::fd::AsFd, rows: u16, columns: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

/// `kubectl exec -it`: what is typed arrives, and the command sees how large the user's terminal is, and becomes.
fn commands_have_a_terminal(kubectl: &Kubectl<'_>) {
    let (theirs, mut ours) = terminal(31, 101);
    // Its size follows the start of the command, as on a real node.
    let script = "sized() { while [ \"$(stty size)\" != \"$1\" ]; do sleep 0.1; done; echo sized $1; }
        sized '31 101'; read x; echo got $x; sized '42 120'; exit 3";
    let mut command = kubectl.command(&["exec", "-it", "tools", "-c", "app", "--", "sh", "-c", script]);
    command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
    weft_net::process::on_terminal(&mut command);
    let mut child = command.spawn().unwrap();
    // Its ends of the terminal stay open in the command otherwise, and the output would never end.
    drop(command);
    let shown = reader(ours.try_clone().unwrap());
    until(&shown, "sized 31 101");
    ours.write_all(b"hello\n").unwrap();
    until(&shown, "got hello");
    resize(&ours, 42, 120);
    until(&shown, "sized 42 120");
    assert_eq!(ended(&mut child), Some(3));
}

fn output_is_followed(kubectl: &Kubectl<'_>) {
    for flags in [&["attach", "tools", "-c", "app"][..], &["attach", "-i", "tools", "-c", "app"]] {
        let mut child = kubectl.command(flags).spawn().unwrap();
        let shown = reader(child.stdout.take().unwrap());
        for line in ["out", "err"] {
            until(&shown, line);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // Where a container has an input on Kubernetes, nobody is left to type into nothing.
    let refused = kubectl.run(&["attach", "-i", "tools", "-c", "asks"], b"typed\n");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("kubectl exec -i"), "{said}");
    let none = kubectl.run(&["attach", "tools", "-c", "none"], b"");
    assert!(!none.status.success(), "{none:?}");
}

/// The lines of an output, as they come.
fn reader(output: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (to, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        // A terminal that nobody holds any more answers with an error.
        while output.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if to.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
        let _ = output.read_to_end(&mut line);
    });
    lines
}

fn until(lines: &mpsc::Receiver<String>, wanted: &str) {
    let mut seen = String::new();
    loop {
        match lines.recv_timeout(DEADLINE) {
            Ok(line) if line.contains(wanted) => return,
            Ok(line) => seen.push_str(&line),
            Err(why) => panic!("{wanted:?} never came ({why}): {seen}"),
        }
    }
}

fn ended(child: &mut Child) -> Option<i32> {
    let deadline = std::time::Instant::now() + DEADLINE;
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status.code(),
            None if std::time::Instant::now() > deadline => panic!("kubectl does not end"),
            None => thread::sleep(std::time::Duration::from_millis(50)),
        }
    }
}
