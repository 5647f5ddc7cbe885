//! Who may what: roles, bindings, tokens, and questions about them.

use serde_json::Value;

use super::{Kubectl, missing};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_are_given_and_asked_for() {
    if missing() {
        return;
    }
    let kubectl = Kubectl::with_controllers().await;
    let run = async |arguments: &str| kubectl.ok(arguments, &Value::Null).await;
    assert_eq!(run("create serviceaccount robot").await, "serviceaccount/robot created\n");
    run("create role reader --verb=get,list --resource=pods,pods/log").await;
    let robot = "--as=system:serviceaccount:default:robot --as-group=system:authenticated";
    kubectl.fails(&format!("auth can-i list pods {robot}"), &Value::Null, "no\n").await;
    run("create rolebinding reader --role=reader --serviceaccount=default:robot").await;
    assert_eq!(run(&format!("auth can-i list pods {robot}")).await, "yes\n");
    kubectl.fails(&format!("auth can-i delete pods {robot}"), &Value::Null, "no\n").await;
    kubectl.fails(&format!("get secrets {robot}"), &Value::Null, "(Forbidden)").await;
    let listed = run(&format!("auth can-i --list {robot}")).await;
    let row =
        |what: &str| listed.lines().find(|line| line.starts_with(what)).unwrap_or_else(|| panic!("{listed}"));
    assert!(row("pods/log").ends_with("[get list]"));
    assert!(row("selfsubjectrulesreviews.authorization.k8s.io").ends_with("[create]"));
    assert!(run("auth can-i --list").await.contains("*.*"));

    run("create clusterrole viewer --verb=get --resource=nodes").await;
    run("create clusterrolebinding viewer --clusterrole=viewer --serviceaccount=default:robot").await;
    assert!(run(&format!("auth can-i get node/n1 {robot}")).await.starts_with("yes\n"));
    let token =
        run("create token robot --duration=20m --audience=https://kubernetes.default.svc.cluster.local")
            .await;
    let who = run(&format!("auth whoami --token={}", token.trim())).await;
    assert!(who.contains("system:serviceaccount:default:robot"), "{who}");
    assert!(
        run("create poddisruptionbudget pdb --selector=app=web --min-available=50%")
            .await
            .contains("created")
    );
    assert_eq!(run("get pdb pdb -o jsonpath={.spec.minAvailable}").await, "50%");
}
