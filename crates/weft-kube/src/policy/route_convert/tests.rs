use super::*;
use serde_json::{Value, json};

fn nobody(_: &BackendRef) -> Result<Option<(Arc<Meta>, String)>, String> {
    Ok(None)
}

fn named(backend: &BackendRef) -> Result<Option<(Arc<Meta>, String)>, String> {
    Ok(Some((Arc::new(Meta::default_named("copy")), format!("{}:{}", backend.name, backend.port.unwrap()))))
}

fn http(value: Value) -> Result<(Vec<HttpMatch>, Vec<Filter>), String> {
    http_rule(&serde_json::from_value(value).unwrap(), &named)
}

fn grpc(value: Value) -> Result<(Vec<HttpMatch>, Vec<Filter>), String> {
    grpc_rule(&serde_json::from_value(value).unwrap(), &named)
}

#[test]
fn matches_and_filters() {
    let (matches, filters) = http(json!({
        "matches": [
            {"path": {"type": "Exact", "value": "/a"}, "method": "GET"},
            {"path": {"value": "/b"}, "headers": [{"name": "X-User", "value": "ann"}]},
            {"queryParams": [{"type": "RegularExpression", "name": "q", "value": "[0-9]+"}]},
        ],
        "filters": [
            {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "A", "value": "b"}]}},
            {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["Server"]}},
            {"type": "RequestRedirect", "requestRedirect": {"hostname": "h", "statusCode": 301}},
        ],
    }))
    .unwrap();
    assert_eq!(matches[0].path, Some(PathMatch::Exact("/a".into())));
    assert_eq!(matches[1].headers[0].name, "x-user");
    assert!(matches!(matches[2].query[0].value, TextMatch::Regex(_)));
    assert!(matches!(&filters[0], Filter::RequestHeaders(c) if c.set == [("a".into(), "b".into())]));
    assert!(matches!(&filters[1], Filter::ResponseHeaders(c) if c.remove == ["server"]));
    assert!(matches!(&filters[2], Filter::Redirect(r) if r.status == 301));
}

#[test]
fn rewrites_and_copies() {
    let rule = |fraction: Value| {
        let mut mirror = json!({"backendRef": {"name": "copy", "port": 80}});
        for (key, value) in fraction.as_object().unwrap() {
            mirror[key] = value.clone();
        }
        json!({
            "matches": [{"path": {"value": "/old"}}],
            "filters": [
                {"type": "URLRewrite", "urlRewrite": {"hostname": "new.example",
                    "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"}}},
                {"type": "RequestMirror", "requestMirror": mirror},
            ],
        })
    };
    for (given, expected) in [
        (json!({}), 1.0),
        (json!({"percent": 25}), 0.25),
        (json!({"fraction": {"numerator": 1, "denominator": 8}}), 0.125),
        (json!({"fraction": {"numerator": 1}}), 0.01),
    ] {
        let (_, filters) = http(rule(given)).unwrap();
        let Filter::RewriteUrl(rewrite) = &filters[0] else { panic!("{filters:?}") };
        assert_eq!(rewrite.host.as_deref(), Some("new.example"));
        assert_eq!(rewrite.path, Some(PathChange::Prefix("/new".into())));
        let Filter::Mirror(mirror) = &filters[1] else { panic!("{filters:?}") };
        assert_eq!((mirror.path.as_str(), mirror.fraction), ("copy:80", expected));
    }
    // A copy for nobody is no copy.
    let (_, filters) = http_rule(&serde_json::from_value(rule(json!({}))).unwrap(), &nobody).unwrap();
    assert_eq!(filters.len(), 1);
}

#[test]
fn what_cannot_be_expressed_is_refused_with_field_and_reason() {
    let redirect =
        |settings: Value| json!({"filters": [{"type": "RequestRedirect", "requestRedirect": settings}]});
    for (rule, reason) in [
        (
            json!({"matches": [{"path": {"type": "RegularExpression", "value": "("}}]}),
            "matches[0].path.value",
        ),
        (json!({"matches": [{}, {"path": {"type": "Exact", "value": "a"}}]}), "matches[1].path.value"),
        (json!({"matches": [{"headers": [{"name": "a b", "value": "c"}]}]}), "matches[0].headers[0].name"),
        (json!({"matches": [{"method": "G T"}]}), "matches[0].method"),
        (json!({"filters": [{"type": "CORS"}]}), "filters[0].type: \"CORS\""),
        (json!({"filters": [{"type": "RequestRedirect"}]}), "settings"),
        (redirect(json!({"statusCode": 200})), "filters[0].requestRedirect.statusCode"),
        (
            redirect(json!({"path": {"type": "ReplaceFullPath", "replaceFullPath": "x"}})),
            "requestRedirect.path",
        ),
        (
            json!({"filters": [{"type": "RequestHeaderModifier",
                "requestHeaderModifier": {"add": [{"name": "a", "value": "\n"}]}}]}),
            "filters[0].requestHeaderModifier.add[0].value",
        ),
        (
            json!({"filters": [{"type": "RequestMirror", "requestMirror": {"percent": 101}}]}),
            "filters[0].requestMirror.percent",
        ),
        (
            json!({"matches": [{"path": {"type": "Exact", "value": "/a"}}],
                "filters": [{"type": "URLRewrite", "urlRewrite":
                    {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/b"}}}]}),
            "PathPrefix",
        ),
    ] {
        let error = http(rule).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn calls_are_matched_by_name() {
    let (matches, filters) = grpc(json!({
        "matches": [
            {"method": {"service": "shop.v1.Store", "method": "Buy"}},
            {"method": {"service": "shop.v1.Store"}},
            {"method": {"method": "Buy"}, "headers": [{"name": "X-User", "value": "ann"}]},
            {},
        ],
        "filters": [{"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "copy", "port": 80}}}],
    }))
    .unwrap();
    assert_eq!(matches[0].path, Some(PathMatch::Exact("/shop.v1.Store/Buy".into())));
    assert_eq!(matches[1].path, Some(PathMatch::Prefix("/shop.v1.Store/".into())));
    assert!(matches!(&matches[2].path, Some(PathMatch::Regex(re)) if re.fits("/a.B/Buy")));
    assert_eq!(matches[3], HttpMatch::default());
    assert_eq!(filters.len(), 1);
    for (rule, reason) in [
        (
            json!({"matches": [{"method": {"type": "RegularExpression", "service": "a"}}]}),
            "matches[0].method.type",
        ),
        (json!({"matches": [{"method": {"service": "a/b"}}]}), "matches[0].method.service"),
        (json!({"matches": [{"method": {"method": "1"}}]}), "matches[0].method.method"),
        (json!({"filters": [{"type": "ResponseHeaderModifier", "responseHeaderModifier": {}}]}), "filters"),
    ] {
        let error = grpc(rule).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn durations() {
    assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
    assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
    for bad in ["", "5", "s", "1.5s", "1x", "99999999999999999999h", "18446744073709551615h"] {
        assert!(duration(bad).is_err(), "{bad}");
    }
    let of = |request: &str, backend: &str| {
        let rule = json!({"timeouts": {"request": request, "backendRequest": backend}});
        timeouts(&serde_json::from_value(rule).unwrap())
    };
    assert_eq!(of("2s", "0s"), Ok((Some(Duration::from_secs(2)), None)));
    assert!(of("1s", "2s").unwrap_err().starts_with("timeouts.backendRequest"));
    assert!(of("x", "2s").unwrap_err().starts_with("timeouts.request"));
}
