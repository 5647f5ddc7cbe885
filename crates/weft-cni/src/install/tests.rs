use super::*;

struct Node {
    dir: tempfile::TempDir,
    keeper: Keeper,
}

fn node() -> Node {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["host/opt/cni/bin", "host/etc/cni/net.d", "account"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::write(at("account/token"), "first\n").unwrap();
    fs::write(at("account/ca.crt"), "roots").unwrap();
    fs::write(at("settings.json"), r#"{"proxy-uid": 2102}"#).unwrap();
    let keeper = Keeper::new(Install {
        host_root: at("host"),
        bin_dir: "/opt/cni/bin".into(),
        net_dir: "/etc/cni/net.d".into(),
        settings: at("settings.json"),
        account: at("account"),
        api_host: "fd00::1".into(),
        api_port: 6443,
    });
    Node { dir, keeper }
}

impl Node {
    fn net(&self, name: &str) -> PathBuf {
        self.dir.path().join("host/etc/cni/net.d").join(name)
    }
    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.net(name)).unwrap()
    }
}

const LIST: &str = r#"{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge"}]}"#;
const SINGLE: &str = r#"{"cniVersion":"0.3.1","name":"pods","type":"bridge"}"#;

#[test]
fn program_credentials_and_configuration_are_put_in_place_and_stay() {
    let mut node = node();
    fs::write(node.net("10-pods.conflist"), LIST).unwrap();
    assert_eq!(node.keeper.pass().unwrap().len(), 3);
    assert!(node.text("10-pods.conflist").contains(TYPE));
    let program = node.dir.path().join("host/opt/cni/bin").join(TYPE);
    assert_eq!(mode(&program), 0o755);
    // The token is secret, and the address of IPv6 needs brackets.
    assert_eq!(mode(&node.net(KUBECONFIG)), 0o600);
    let kubeconfig = node.text(KUBECONFIG);
    assert!(kubeconfig.contains("https://[fd00::1]:6443") && kubeconfig.contains("first"), "{kubeconfig}");
    // Nothing to do.
    assert_eq!(node.keeper.pass().unwrap(), [""; 0]);

    // The network provider writes its file anew, the token is replaced, somebody removes the program.
    fs::write(node.net("10-pods.conflist"), LIST).unwrap();
    fs::write(node.dir.path().join("account/token"), "second").unwrap();
    fs::remove_file(&program).unwrap();
    assert_eq!(node.keeper.pass().unwrap().len(), 3);
    assert!(node.text("10-pods.conflist").contains(TYPE));
    assert!(node.text(KUBECONFIG).contains("second"));
    assert!(program.is_file());
}

#[test]
fn a_conf_becomes_a_conflist_and_comes_back() {
    let mut node = node();
    fs::write(node.net("10-pods.conf"), SINGLE).unwrap();
    fs::write(node.net("20-other.conflist"), LIST).unwrap();
    node.keeper.pass().unwrap();
    assert!(!node.net("10-pods.conf").exists());
    assert!(node.text("10-pods.conflist").contains(TYPE));

    node.keeper.revert().unwrap();
    assert_eq!(node.text("10-pods.conf"), SINGLE);
    assert!(!node.net("10-pods.conflist").exists() && !node.net(KUBECONFIG).exists());
    let other: Value = serde_json::from_str(&node.text("20-other.conflist")).unwrap();
    assert_eq!(other, serde_json::from_str::<Value>(LIST).unwrap());
    // Pods that run were made with the plugin, and end with it.
    assert!(node.dir.path().join("host/opt/cni/bin").join(TYPE).is_file());
}

#[test]
fn a_file_that_is_no_configuration_is_told_once_and_left() {
    let mut node = node();
    fs::write(node.net("05-broken.conflist"), "{").unwrap();
    fs::write(node.net("10-pods.conflist"), LIST).unwrap();
    let done = node.keeper.pass().unwrap();
    assert!(done.iter().any(|l| l.contains("left") && l.contains("05-broken")), "{done:?}");
    assert!(node.text("10-pods.conflist").contains(TYPE));
    assert_eq!(node.keeper.pass().unwrap(), [""; 0]);
    assert_eq!(node.text("05-broken.conflist"), "{");
}

#[test]
fn settings_that_cannot_be_used_change_no_configuration() {
    let mut node = node();
    fs::write(node.net("10-pods.conflist"), LIST).unwrap();
    fs::write(node.dir.path().join("settings.json"), "[]").unwrap();
    let fault = node.keeper.pass().unwrap_err();
    assert_eq!(fault.code(), Code::BadManifest);
    assert_eq!(node.text("10-pods.conflist"), LIST);
}
