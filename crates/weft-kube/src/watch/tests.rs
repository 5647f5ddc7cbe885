use super::*;
use crate::{core::service::Service, meta::ObjectName, policy::server::Server};
use http::Response;
use http_body_util::{Full, StreamBody, combinators::BoxBody};
use std::{collections::VecDeque, convert::Infallible, sync::Mutex};

type AnswerBody = BoxBody<bytes::Bytes, Infallible>;

/// Answers each request by the next entry; records the URIs and when they came.
#[derive(Clone)]
struct Script(Arc<Mutex<State>>);

struct State {
    answers: VecDeque<Response<AnswerBody>>,
    asked: Vec<(String, Instant)>,
}

fn json(status: u16, body: Value) -> Response<AnswerBody> {
    Response::builder().status(status).body(Full::from(body.to_string()).boxed()).unwrap()
}

/// A watch whose bytes come in these pieces and then stays open.
fn stream(pieces: &[&str]) -> Response<AnswerBody> {
    let pieces: Vec<_> = pieces
        .iter()
        .map(|p| Ok::<_, Infallible>(http_body::Frame::data(bytes::Bytes::from((*p).to_string()))))
        .collect();
    use futures_util::StreamExt;
    let open = futures_util::stream::iter(pieces).chain(futures_util::stream::pending());
    Response::new(BodyExt::boxed(StreamBody::new(SyncStream(Box::pin(open)))))
}

/// A watch whose connection ends after these bytes.
fn cut(bytes: &str) -> Response<AnswerBody> {
    Response::new(Full::from(bytes.to_owned()).boxed())
}

/// `BoxBody` wants `Sync`; only ever polled through `&mut`.
struct SyncStream<S>(std::pin::Pin<Box<S>>);
impl<S: futures_util::Stream> futures_util::Stream for SyncStream<S> {
    type Item = S::Item;
    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<S::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

fn run<K: Kind + std::fmt::Debug>(
    answers: Vec<Response<AnswerBody>>,
) -> (Script, mpsc::Receiver<Event<K>>, Pulse) {
    let script = Script(Arc::new(Mutex::new(State { answers: answers.into(), asked: Vec::new() })));
    let server = script.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let mut state = server.0.lock().unwrap();
        state.asked.push((request.uri().to_string(), Instant::now()));
        let answer = state.answers.pop_front();
        async move {
            match answer {
                Some(answer) => Ok::<_, Infallible>(answer),
                None => std::future::pending().await,
            }
        }
    });
    let pulse = Pulse::default();
    let watch = Watch::new::<K>(Client::new(service, "default"), Scope::default(), pulse.clone());
    let (out, events) = mpsc::channel(8);
    tokio::spawn(watch.run(out, |event| event));
    (script, events, pulse)
}

fn service(name: &str, version: &str) -> Value {
    serde_json::json!({"metadata": {"name": name, "namespace": "shop", "resourceVersion": version}, "spec": {}})
}

fn list(version: &str, items: &[Value]) -> Response<AnswerBody> {
    json(200, serde_json::json!({"metadata": {"resourceVersion": version}, "items": items}))
}

impl Script {
    fn asked(&self) -> Vec<(String, Instant)> {
        self.0.lock().unwrap().asked.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn lists_then_follows_and_resumes_where_it_stood() {
    let line = format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", service("b", "7"));
    let (head, tail) = line.split_at(20);
    let bookmark = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#.to_string() + "\n";
    let (script, mut events, pulse) = run::<Service>(vec![
        list("5", &[service("a", "3")]),
        stream(&[head, tail, "\n", &bookmark]),
        stream(&[
            "{\"type\":\"DELETED\",\"object\":{\"metadata\":{\"name\":\"a\",\"namespace\":\"shop\",\"resourceVersion\":\"11\"}}}\n",
        ]),
    ]);
    let Some(Event::Replaced(objects)) = events.recv().await else { panic!("the whole set") };
    assert_eq!(objects.len(), 1);
    let Some(Event::Applied(b)) = events.recv().await else { panic!("an addition") };
    assert_eq!(b.metadata.name, "b");
    // The server was gone and is back.
    tokio::time::sleep(Duration::from_millis(1)).await;
    pulse.epoch.send_modify(|n| *n += 1);
    let Some(Event::Deleted(a)) = events.recv().await else { panic!("a deletion") };
    assert_eq!(a, ObjectName::new("shop", "a"));
    let asked = script.asked();
    assert!(asked[0].0.starts_with("/api/v1/services?limit="), "{asked:?}");
    assert!(asked[1].0.contains("resourceVersion=5&"), "{asked:?}");
    assert!(asked[2].0.contains("resourceVersion=9&"), "{asked:?}");
}

/// Where a list says how to go on, before its objects or behind them, does not matter; a page that cannot be had voids the list.
#[tokio::test(start_paused = true)]
async fn a_list_is_read_page_by_page() {
    let before = |token: &str, name: &str| {
        let (meta, object) =
            (serde_json::json!({"continue": token, "resourceVersion": "5"}), service(name, "3"));
        cut(&format!("{{\"kind\":\"ServiceList\",\"metadata\":{meta},\"items\":[{object}]}}"))
    };
    let behind = |token: &str, name: &str| {
        let (meta, object) =
            (serde_json::json!({"continue": token, "resourceVersion": "5"}), service(name, "3"));
        cut(&format!("{{\"items\":[{object}],\"metadata\":{meta}}}"))
    };
    let (script, mut events, _) = run::<Service>(vec![
        before("one", "a"),
        json(410, serde_json::json!({"code": 410, "reason": "Expired", "message": "too old"})),
        before("two", "a"),
        behind("three", "b"),
        before("", "c"),
    ]);
    let Some(Event::Replaced(objects)) = events.recv().await else { panic!("the whole set") };
    let names: Vec<_> = objects.into_iter().map(|object| object.unwrap().metadata.name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let asked: Vec<String> = script.asked().into_iter().map(|(uri, _)| uri).collect();
    let tokens: Vec<&str> =
        asked.iter().take(5).map(|uri| uri.split_once("continue=").map_or("", |(_, token)| token)).collect();
    assert_eq!(tokens, ["", "one", "", "two", "three"]);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_means_one_new_list() {
    let gone = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\"}}\n";
    let (script, mut events, _pulse) =
        run::<Service>(vec![list("5", &[]), stream(&[gone]), list("50", &[service("a", "3")]), stream(&[])]);
    assert!(matches!(events.recv().await, Some(Event::Replaced(o)) if o.is_empty()));
    assert!(matches!(events.recv().await, Some(Event::Replaced(o)) if o.len() == 1));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(script.asked().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn too_many_requests_waits_as_long_as_told() {
    let mut refusal = json(429, serde_json::json!({"code": 429, "message": "slow down"}));
    refusal.headers_mut().insert("retry-after", "3".parse().unwrap());
    let (script, mut events, _pulse) = run::<Service>(vec![refusal, list("1", &[]), stream(&[])]);
    assert!(matches!(events.recv().await, Some(Event::Replaced(_))));
    let asked = script.asked();
    assert!(asked[1].1 - asked[0].1 >= Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_bad_object_stops_nobody() {
    let good = serde_json::json!({"metadata": {"name": "good", "namespace": "shop"}, "spec": {"port": 80}});
    let bad = serde_json::json!({"metadata": {"name": "bad", "namespace": "shop"}, "spec": {"port": [1]}});
    let later = format!("{{\"type\":\"MODIFIED\",\"object\":{bad}}}\n");
    let (_script, mut events, _pulse) = run::<Server>(vec![list("1", &[good, bad]), stream(&[&later])]);
    let Some(Event::Replaced(objects)) = events.recv().await else { panic!("the whole set") };
    assert!(objects[0].is_ok());
    assert_eq!(objects[1].as_ref().unwrap_err().meta.name, "bad");
    let Some(Event::Undecodable(bad)) = events.recv().await else { panic!("undecodable") };
    assert_eq!(bad.meta.name, "bad");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_there_is_asked_for_again() {
    let (_script, mut events, _pulse) =
        run::<Server>(vec![json(404, Value::Null), json(404, Value::Null), list("1", &[]), stream(&[])]);
    assert!(matches!(events.recv().await, Some(Event::Absent)));
    assert!(matches!(events.recv().await, Some(Event::Replaced(_))));
}

/// B55: a cut shows itself by silence; the first answer after it makes every watch connect again.
#[tokio::test(start_paused = true)]
async fn the_return_of_the_server_is_noticed() {
    let (script, mut events, pulse) = run::<Service>(vec![list("5", &[]), stream(&[]), stream(&[])]);
    assert!(matches!(events.recv().await, Some(Event::Replaced(_))));
    let up = Arc::new(AtomicBool::new(true));
    let version = up.clone();
    let service = tower::service_fn(move |_: Request<Body>| {
        let up = version.load(Ordering::Relaxed);
        async move {
            if !up {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(json(200, serde_json::json!({"minor": "33"})))
        }
    });
    let period = Duration::from_secs(5);
    tokio::spawn(heartbeat(Client::new(service, "default"), pulse.clone(), period));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(script.asked().len(), 2, "no new watch while all is well");
    assert!(pulse.silence() <= period);
    up.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert!(pulse.silence() >= Duration::from_secs(85));
    up.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(11)).await;
    let asked = script.asked();
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(asked[2].0.contains("resourceVersion=5"), "{asked:?}");
}

/// What was cut off in the middle of a line says nothing; the watch goes on from the last whole one.
#[tokio::test(start_paused = true)]
async fn half_a_line_is_no_news() {
    let line = |name: &str, version: &str| {
        serde_json::json!({"type": "ADDED", "object": service(name, version)}).to_string()
    };
    let (whole, half) = (line("a", "2"), line("b", "3"));
    let (script, mut events, _) = run::<Service>(vec![
        list("1", &[]),
        cut(&format!("{whole}\n{}", &half[..half.len() / 2])),
        stream(&[&half, "\n"]),
    ]);
    assert!(matches!(events.recv().await, Some(Event::Replaced(all)) if all.is_empty()));
    for name in ["a", "b"] {
        let Some(Event::Applied(service)) = events.recv().await else { panic!() };
        assert_eq!(service.metadata.name, name);
    }
    assert!(script.asked()[2].0.contains("resourceVersion=2"), "{:?}", script.asked());
}
