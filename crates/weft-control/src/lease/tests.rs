use super::*;
use tokio::time::{advance, timeout};
use weft_local::api::{ApiServer, Config};

const LIMIT: Duration = Duration::from_secs(20);

fn claim(holder: &str, timings: Timings) -> Claim {
    Claim { lease: ObjectName::new("linkerd", "writer"), holder: holder.to_owned(), timings }
}

fn record(holder: &str) -> LeaseSpec {
    LeaseSpec {
        holder_identity: holder.to_owned(),
        lease_duration_seconds: Some(15),
        lease_transitions: 4,
        ..LeaseSpec::default()
    }
}

#[test]
fn who_may_write() {
    let claim = claim("a", Timings::default());
    let next = |record: Option<LeaseSpec>, unchanged| {
        next(&claim, record.as_ref(), Duration::from_secs(unchanged), Timestamp::UNIX_EPOCH)
    };
    // Nobody ever held it, or the last holder gave it back: at once.
    assert_eq!(next(None, 0).unwrap()["leaseTransitions"], 0);
    let taken = next(Some(record("")), 0).unwrap();
    assert_eq!((&taken["holderIdentity"], &taken["leaseTransitions"]), (&json!("a"), &json!(5)));
    assert_eq!(taken["renewTime"], "1970-01-01T00:00:00.000000Z");
    // A renewal is no transition.
    let renewed = next(Some(record("a")), 3).unwrap();
    assert!(renewed.get("leaseTransitions").is_none() && renewed.get("acquireTime").is_none());
    // Somebody else's lasts as long as the record says, not as long as ours would.
    assert_eq!(next(Some(record("b")), 14), None);
    assert_eq!(next(Some(record("b")), 15).unwrap()["leaseTransitions"], 5);
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_cannot_renew_stops_by_itself() {
    let (until, receiver) = watch::channel(Some(Instant::now() + Timings::default().gives_up));
    let leadership = Leadership(receiver);
    advance(Duration::from_millis(9_999)).await;
    assert!(leadership.holds());
    advance(Duration::from_millis(1)).await;
    assert!(!leadership.holds());
    drop(until);
}

/// Against the in-memory API: one at a time; a clean end hands over at once, a crash after the lease's time.
#[tokio::test]
async fn one_replica_at_a_time_writes() {
    let server = ApiServer::new(Config::default()).unwrap();
    let addr = server.spawn_on_loopback().await.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), server.kubeconfig(addr)).unwrap();
    let client = api::connect(Some(file.path())).await.unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "linkerd"}});
    api::create(&client, "/api/v1/namespaces", &namespace).await.unwrap();
    let timings = Timings {
        lasts: Duration::from_secs(1),
        gives_up: Duration::from_millis(500),
        retry: Duration::from_millis(20),
    };
    let start = |holder: &str, tasks: &mut JoinSet<()>| {
        let stopping = CancellationToken::new();
        (contend(client.clone(), claim(holder, timings), stopping.clone(), tasks), stopping)
    };
    let (mut first_tasks, mut tasks) = (JoinSet::new(), JoinSet::new());
    let (mut first, stop_first) = start("first", &mut first_tasks);
    timeout(LIMIT, first.held()).await.unwrap();
    let (mut second, stop_second) = start("second", &mut tasks);

    // A clean end.
    stop_first.cancel();
    timeout(LIMIT, first_tasks.join_next()).await.unwrap().unwrap().unwrap();
    assert!(!first.holds());
    timeout(LIMIT, second.held()).await.unwrap();
    let path = "/apis/coordination.k8s.io/v1/namespaces/linkerd/leases/writer";
    let lease: Value = api::get(&client, path).await.unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "second");
    assert_eq!(lease["spec"]["leaseTransitions"], 1);

    // A crash: nobody gave it back, and the third has to wait until the second must have given up.
    tasks.shutdown().await;
    drop(stop_second);
    let (mut third, _stop_third) = start("third", &mut tasks);
    timeout(LIMIT, third.held()).await.unwrap();
    assert!(!second.holds());
    let lease: Value = api::get(&client, path).await.unwrap();
    assert_eq!(lease["spec"]["leaseTransitions"], 2);
}
