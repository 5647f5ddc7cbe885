//! Whatever a model value holds survives the way to the wire and back.

use crate::{inbound, outbound, profile};
use ipnet::IpNet;
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
};
use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};
use weft_model::{
    http::{
        Filter, HeaderChange, HeaderMatch, HostMatch, HttpMatch, PathChange, PathMatch, Pattern, QueryMatch,
        Redirect, TextMatch,
    },
    identity::{Identity, PeerIdentity, Unknown},
    inbound::{
        Authn, Authorization, HttpPolicy, Network, Protocol, RateLimit, Route, Rule, ServerPolicy, Suffix,
    },
    meta::{Meta, Resource},
    outbound::{
        Backend, BackendKind, Backoff, Distribution, Endpoint, EwmaConfig, FailureAccrual, Http2Client,
        Http2KeepAlive, Http2Windows, HttpRoute, HttpRoutes, HttpRule, OpaqueRoute, OpaqueRoutes,
        OutboundPolicy, OutboundProtocol, Penalty, ProtocolHint, Refusal, RetryPolicy, RouteBackend,
        SuccessRate, Timeouts,
    },
    profile::{Condition, Override, Profile, ProfileRoute, ResponseClass, ResponseCondition, ServiceProfile},
    retry::RetryBudget,
};

fn name() -> impl Strategy<Value = String> {
    "[a-z]{1,8}"
}
fn duration() -> impl Strategy<Value = Duration> {
    (0u64..1_000_000, 0u32..1_000_000_000).prop_map(|(s, n)| Duration::new(s, n))
}
fn some_duration() -> impl Strategy<Value = Option<Duration>> {
    option::of(duration())
}

fn meta() -> impl Strategy<Value = Arc<Meta>> {
    prop_oneof![
        name().prop_map(Meta::Default),
        ((name(), name(), name()), (name(), name(), any::<u16>())).prop_map(
            |((group, kind, namespace), (name, section, port))| {
                Meta::Resource(Resource { group, kind, namespace, name, section, port })
            }
        ),
    ]
    .prop_map(Arc::new)
}

/// An origin as a Server message can carry it: without section and port.
fn server_meta() -> impl Strategy<Value = Arc<Meta>> {
    prop_oneof![
        name().prop_map(Meta::Default),
        (name(), name(), name(), name()).prop_filter("a kind of its own", |r| r.1 != "default").prop_map(
            |(group, kind, namespace, name)| {
                Meta::Resource(Resource { group, kind, namespace, name, section: String::new(), port: 0 })
            }
        ),
    ]
    .prop_map(Arc::new)
}

fn host() -> impl Strategy<Value = HostMatch> {
    prop_oneof![
        "[a-z]{1,5}(\\.[a-z]{1,5}){0,2}".prop_map(HostMatch::Exact),
        "[a-z]{1,5}(\\.[a-z]{1,5}){0,2}".prop_map(HostMatch::Suffix)
    ]
}
fn regex() -> impl Strategy<Value = Pattern> {
    "[a-z]{1,4}\\[0-9\\]\\+".prop_map(|text| Pattern::new(&text).unwrap())
}
fn text() -> impl Strategy<Value = TextMatch> {
    prop_oneof![name().prop_map(TextMatch::Exact), regex().prop_map(TextMatch::Regex)]
}

fn http_match() -> impl Strategy<Value = HttpMatch> {
    let path = prop_oneof![
        "/[a-z/]{0,8}".prop_map(PathMatch::Exact),
        "/[a-z/]{0,8}".prop_map(PathMatch::Prefix),
        regex().prop_map(PathMatch::Regex),
    ];
    let header = (name(), text()).prop_map(|(name, value)| HeaderMatch { name, value });
    let query = (name(), text()).prop_map(|(name, value)| QueryMatch { name, value });
    let method = option::of(prop_oneof![Just("GET".to_string()), Just("BREW".to_string())]);
    (option::of(path), vec(header, 0..2), vec(query, 0..2), method)
        .prop_map(|(path, headers, query, method)| HttpMatch { path, headers, query, method })
}

fn rpc_match() -> impl Strategy<Value = HttpMatch> {
    let path = prop_oneof![
        ("[a-z.]{1,6}", "[A-Z][a-z]{1,5}").prop_map(|(s, m)| PathMatch::Exact(format!("/{s}/{m}"))),
        "[a-z.]{1,6}".prop_map(|s| PathMatch::Prefix(format!("/{s}/"))),
        "[A-Z][a-z]{1,5}".prop_map(|m| PathMatch::Regex(Pattern::new(&format!("/[^/]+/{m}")).unwrap())),
    ];
    let header = (name(), text()).prop_map(|(name, value)| HeaderMatch { name, value });
    (option::of(path), vec(header, 0..2)).prop_map(|(path, headers)| HttpMatch {
        path,
        headers,
        query: Vec::new(),
        method: None,
    })
}

fn change() -> impl Strategy<Value = HeaderChange> {
    let pairs = || vec((name(), name()), 0..2);
    (pairs(), pairs(), vec(name(), 0..2)).prop_map(|(add, set, remove)| HeaderChange { add, set, remove })
}
fn ratio() -> impl Strategy<Value = f64> {
    (0u32..=1000).prop_map(|n| f64::from(n) / 1000.0)
}
fn fail() -> impl Strategy<Value = Filter> {
    (100u16..600, name(), ratio()).prop_map(|(status, message, ratio)| Filter::Fail {
        status,
        message,
        ratio,
    })
}
fn grpc_fail() -> impl Strategy<Value = Filter> {
    (0u16..=16, name(), ratio()).prop_map(|(status, message, ratio)| Filter::Fail { status, message, ratio })
}
fn redirect() -> impl Strategy<Value = Filter> {
    let path = prop_oneof![name().prop_map(PathChange::Full), name().prop_map(PathChange::Prefix)];
    let scheme = option::of(prop_oneof![Just("http".to_string()), Just("https".into()), Just("weft".into())]);
    (scheme, option::of(name()), option::of(1u16..), option::of(path), 300u16..309).prop_map(
        |(scheme, host, port, path, status)| Filter::Redirect(Redirect { scheme, host, port, path, status }),
    )
}
fn inbound_filter() -> impl Strategy<Value = Filter> {
    prop_oneof![change().prop_map(Filter::RequestHeaders), redirect(), fail(), Just(Filter::Unknown)]
}
fn outbound_filter() -> impl Strategy<Value = Filter> {
    prop_oneof![inbound_filter(), change().prop_map(Filter::ResponseHeaders)]
}
fn grpc_filter() -> impl Strategy<Value = Filter> {
    prop_oneof![change().prop_map(Filter::RequestHeaders), grpc_fail(), Just(Filter::Unknown)]
}

fn identity() -> impl Strategy<Value = Identity> {
    prop_oneof!["[a-z]{1,5}\\.[a-z]{1,5}", "spiffe://[a-z]{1,5}/[a-z]{1,5}"]
        .prop_map(|text| Identity::parse(&text).unwrap())
}
fn dns_identity() -> impl Strategy<Value = Identity> {
    "[a-z]{1,5}\\.[a-z]{1,5}".prop_map(|text| Identity::parse(&text).unwrap())
}
fn net() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (any::<[u8; 4]>(), 0u8..=32).prop_map(|(ip, len)| IpNet::new(ip.into(), len).unwrap()),
        (any::<[u8; 16]>(), 0u8..=128).prop_map(|(ip, len)| IpNet::new(ip.into(), len).unwrap()),
    ]
}
fn authorization() -> impl Strategy<Value = Authorization> {
    let suffix = "[a-z]{0,5}(\\.[a-z]{1,5}){0,2}".prop_map(|s| Suffix(s.trim_matches('.').to_string()));
    let authn = prop_oneof![
        Just(Authn::Unauthenticated),
        Just(Authn::AnyTls),
        (vec(identity(), 0..3), vec(suffix, 0..3))
            .prop_map(|(exact, suffixes)| Authn::Identities { exact: exact.into_iter().collect(), suffixes }),
    ];
    let network = (net(), vec(net(), 0..2)).prop_map(|(net, except)| Network { net, except });
    let meta = meta().prop_filter("audit is a mark", |meta| meta.name() != "audit");
    (meta, vec(network, 1..3), authn).prop_map(|(meta, networks, authn)| Authorization {
        meta,
        networks,
        authn,
    })
}

fn inbound_routes<M: Strategy<Value = HttpMatch>, F: Strategy<Value = Filter>>(
    matches: impl Fn() -> M,
    filters: impl Fn() -> F,
) -> impl Strategy<Value = Vec<Route>> {
    let rule =
        (vec(matches(), 0..2), vec(filters(), 0..2)).prop_map(|(matches, filters)| Rule { matches, filters });
    let route = (meta(), vec(host(), 0..2), vec(authorization(), 0..2), vec(rule, 0..2))
        .prop_map(|(meta, hosts, authorizations, rules)| Route { meta, hosts, authorizations, rules });
    vec(route, 0..2)
}

fn server_policy() -> impl Strategy<Value = ServerPolicy> {
    let limit = (
        meta(),
        option::of(any::<u32>()),
        option::of(any::<u32>()),
        vec((vec(identity(), 0..2), any::<u32>()), 0..2),
    )
        .prop_map(|(meta, total, per_identity, overrides)| RateLimit {
            meta,
            total,
            per_identity,
            overrides: overrides.into_iter().map(|(ids, n)| (ids.into_iter().collect(), n)).collect(),
        });
    let http = (inbound_routes(http_match, inbound_filter), option::of(limit))
        .prop_map(|(routes, rate_limit)| HttpPolicy { routes, rate_limit })
        .boxed();
    let grpc =
        inbound_routes(rpc_match, grpc_filter).prop_map(|routes| HttpPolicy { routes, rate_limit: None });
    let protocol = prop_oneof![
        (duration(), http.clone()).prop_map(|(timeout, http)| Protocol::Detect { timeout, http }),
        http.clone().prop_map(Protocol::Http1),
        http.prop_map(Protocol::Http2),
        grpc.prop_map(Protocol::Grpc),
        Just(Protocol::Opaque),
        Just(Protocol::Tls),
    ];
    (server_meta(), protocol, vec(authorization(), 0..3), any::<bool>()).prop_map(
        |(meta, protocol, authorizations, audit)| ServerPolicy { meta, protocol, authorizations, audit },
    )
}

fn http2() -> impl Strategy<Value = Http2Client> {
    let number = || option::of(1u32..1 << 30);
    let fixed = (number(), number()).prop_filter("says something", |(a, b)| a.is_some() || b.is_some());
    let windows = prop_oneof![
        Just(Http2Windows::Adaptive),
        fixed.prop_map(|(stream, connection)| Http2Windows::Fixed { stream, connection })
    ];
    let lasts = || (1u64..100_000).prop_map(Duration::from_millis);
    let keep_alive = (lasts(), option::of(lasts()), any::<bool>())
        .prop_map(|(interval, timeout, while_idle)| Http2KeepAlive { interval, timeout, while_idle });
    let sizes = (number(), option::of(1u32 << 14..1 << 24), number());
    (option::of(windows), option::of(keep_alive), sizes).prop_map(|(windows, keep_alive, sizes)| {
        Http2Client {
            windows,
            keep_alive,
            max_reset_streams: sizes.0,
            max_frame_bytes: sizes.1,
            max_send_buffer_bytes: sizes.2,
        }
    })
}

fn endpoint() -> impl Strategy<Value = Arc<Endpoint>> {
    let peer = prop_oneof![
        dns_identity().prop_map(|id| PeerIdentity::Meshed { server_name: id.clone(), id }),
        (identity(), dns_identity()).prop_map(|(id, server_name)| PeerIdentity::Meshed { id, server_name }),
        Just(PeerIdentity::Unknown(Unknown::Unmarked)),
    ];
    let addr = (any::<std::net::IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port));
    let hint = prop_oneof![Just(ProtocolHint::Unknown), Just(ProtocolHint::H2), Just(ProtocolHint::Opaque)];
    let labels = vec((name(), name()), 0..3).prop_map(|pairs| Arc::new(BTreeMap::from_iter(pairs)));
    let over = option::of("[a-z]{1,6}:80");
    (
        (addr, peer, hint),
        (option::of(1u16..u16::MAX), over, any::<u32>(), labels, option::of(meta())),
        http2(),
    )
        .prop_map(
            |((addr, identity, hint), (transport_port, authority_override, weight, labels, meta), http2)| {
                Arc::new(Endpoint {
                    addr,
                    identity,
                    hint,
                    transport_port,
                    authority_override,
                    weight,
                    labels,
                    meta,
                    http2,
                })
            },
        )
}

fn backoff() -> impl Strategy<Value = Backoff> {
    (1u64..1000, 0u64..1000, 0u8..=10).prop_map(|(min, more, jitter)| Backoff {
        min: Duration::from_millis(min),
        max: Duration::from_millis(min + more),
        jitter: f32::from(jitter) / 10.0,
    })
}

fn distribution<F: Strategy<Value = Filter> + 'static>(
    filters: impl Fn() -> F,
) -> impl Strategy<Value = Distribution> {
    let kind = prop_oneof![
        endpoint().prop_map(BackendKind::Forward),
        (name(), duration(), duration(), option::of(penalty())).prop_map(
            |(name, default_rtt, decay, penalty)| BackendKind::Balance {
                path: format!("{name}.svc:80"),
                ewma: EwmaConfig { default_rtt, decay, penalty }
            }
        ),
        Just(BackendKind::Invalid("the backend has no kind".into())),
    ];
    let backend = (meta(), kind, vec(filters(), 0..2))
        .prop_map(|(meta, kind, filters)| RouteBackend { backend: Backend { meta, kind }, filters })
        .boxed();
    prop_oneof![
        Just(Distribution::Empty),
        vec(backend.clone(), 0..3).prop_map(Distribution::FirstAvailable),
        vec((backend, any::<u32>()), 0..3).prop_map(Distribution::RandomAvailable),
    ]
}

fn http_routes<M: Strategy<Value = HttpMatch>, F: Strategy<Value = Filter> + 'static>(
    grpc: bool,
    matches: impl Fn() -> M,
    filters: impl Fn() -> F + Copy,
) -> impl Strategy<Value = HttpRoutes> {
    let retry = (
        any::<u16>(),
        any::<u32>(),
        vec((100u16..600, 100u16..600), 0..2),
        some_duration(),
        backoff(),
        any::<bool>(),
    )
        .prop_map(
            move |(max_retries, bytes, statuses, per_try_timeout, backoff, respects_retry_after)| {
                RetryPolicy {
                    max_retries,
                    max_request_bytes: bytes as usize,
                    statuses: if grpc { Vec::new() } else { statuses },
                    grpc_codes: if grpc { vec![4, 14] } else { Vec::new() },
                    per_try_timeout,
                    backoff,
                    respects_retry_after,
                }
            },
        );
    let timeouts = (some_duration(), some_duration(), some_duration())
        .prop_map(|(request, response, idle)| Timeouts { request, response, idle });
    let rule =
        (
            vec(matches(), 0..2),
            vec(filters(), 0..2),
            distribution(filters),
            timeouts,
            option::of(retry),
            any::<bool>(),
        )
            .prop_map(|(matches, filters, backends, timeouts, retry, allow_request_headers)| {
                HttpRule { matches, filters, backends, timeouts, retry, allow_request_headers }
            });
    let route = (meta(), vec(host(), 0..2), vec(rule, 0..2)).prop_map(|(meta, hosts, rules)| HttpRoute {
        meta,
        hosts,
        rules,
    });
    let rate = (1u8..=100, 10u64..60_000, any::<u32>()).prop_map(|(percent, ms, min_requests)| SuccessRate {
        threshold: f64::from(percent) / 100.0,
        window: Duration::from_millis(ms),
        min_requests,
    });
    let accrual = (1u32.., option::of(rate), backoff(), any::<bool>(), any::<u32>()).prop_map(
        |(max_consecutive, rate, backoff, respects_retry_after, min_ready)| FailureAccrual {
            max_consecutive,
            rate,
            backoff,
            respects_retry_after,
            min_ready,
        },
    );
    (vec(route, 0..2), option::of(accrual)).prop_map(|(routes, accrual)| HttpRoutes { routes, accrual })
}

fn opaque_routes(tls: bool) -> impl Strategy<Value = OpaqueRoutes> {
    let refusal = prop_oneof![Just(Refusal::Forbidden), name().prop_map(Refusal::Invalid)];
    let route = (meta(), vec(host(), 0..2), distribution(|| Just(Filter::Unknown)), option::of(refusal))
        .prop_map(move |(meta, hosts, backends, refuses)| OpaqueRoute {
            meta,
            hosts: if tls { hosts } else { Vec::new() },
            backends,
            refuses,
        });
    vec(route, 0..2).prop_map(|routes| OpaqueRoutes { routes })
}

fn outbound_policy() -> impl Strategy<Value = OutboundPolicy> {
    let http = http_routes(false, http_match, outbound_filter).boxed();
    let protocol = prop_oneof![
        (duration(), http.clone(), http.clone(), opaque_routes(false)).prop_map(
            |(timeout, http1, http2, opaque)| OutboundProtocol::Detect { timeout, http1, http2, opaque }
        ),
        http.clone().prop_map(OutboundProtocol::Http1),
        http.prop_map(OutboundProtocol::Http2),
        http_routes(true, rpc_match, grpc_filter).prop_map(OutboundProtocol::Grpc),
        opaque_routes(false).prop_map(OutboundProtocol::Opaque),
        opaque_routes(true).prop_map(OutboundProtocol::Tls),
    ];
    (meta(), protocol).prop_map(|(meta, protocol)| OutboundPolicy { meta, protocol })
}

fn service_profile() -> impl Strategy<Value = ServiceProfile> {
    let leaf = prop_oneof![
        Just(Condition::Method("GET".into())),
        Just(Condition::Path(PathMatch::Regex(Pattern::new("/a/[0-9]+").unwrap()))),
    ];
    let condition = leaf.prop_recursive(3, 8, 2, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..2).prop_map(Condition::All),
            vec(inner.clone(), 0..2).prop_map(Condition::Any),
            inner.prop_map(|one| Condition::Not(Box::new(one))),
        ]
    });
    let status = (100u16..600, 100u16..600).prop_map(|(min, max)| ResponseCondition::Status(min, max));
    let response = status.prop_recursive(2, 4, 2, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..2).prop_map(ResponseCondition::All),
            vec(inner.clone(), 0..2).prop_map(ResponseCondition::Any),
            inner.prop_map(|one| ResponseCondition::Not(Box::new(one))),
        ]
    });
    let class =
        (response, any::<bool>()).prop_map(|(condition, is_failure)| ResponseClass { condition, is_failure });
    let timeout = some_duration().prop_map(|t| t.filter(|t| !t.is_zero()));
    let route = (condition, vec(class, 0..2), btree_map(name(), name(), 0..2), any::<bool>(), timeout)
        .prop_map(|(condition, classes, labels, retryable, timeout)| ProfileRoute {
            condition,
            classes,
            labels,
            retryable,
            timeout,
        });
    let share = (name(), any::<u32>(), option::of(meta())).prop_map(|(name, weight, meta)| Override {
        authority: format!("{name}:80"),
        weight,
        meta,
    });
    let budget = (0u8..100, any::<u32>(), 1u64..1000).prop_map(|(percent, min_per_second, ms)| RetryBudget {
        ratio: f32::from(percent) / 100.0,
        min_per_second,
        ttl: Duration::from_millis(ms),
    });
    (vec(route, 0..3), budget, vec(share, 0..2)).prop_map(|(routes, budget, overrides)| ServiceProfile {
        routes,
        budget: Some(budget),
        overrides,
    })
}

fn penalty() -> impl Strategy<Value = Penalty> {
    (1u64..10_000, 0u64..300_000).prop_map(|(latency, longest)| Penalty {
        latency: Duration::from_millis(latency),
        max_retry_after: Duration::from_millis(longest),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn inbound_policies_survive(policy in server_policy()) {
        prop_assert_eq!(inbound::from_api(inbound::to_api(&policy)).unwrap(), policy);
    }

    #[test]
    fn outbound_policies_survive(policy in outbound_policy()) {
        prop_assert_eq!(outbound::from_api(outbound::to_api(&policy)).unwrap(), policy);
    }

    #[test]
    fn profiles_survive(
        fully_qualified_name in option::of(name()),
        opaque: bool,
        endpoint in option::of(endpoint()),
        parent in option::of(meta()),
        service in service_profile(),
    ) {
        let profile = Profile { fully_qualified_name, opaque, endpoint, parent, service };
        prop_assert_eq!(profile::from_api(profile::to_api(&profile)).unwrap(), profile);
    }
}

#[test]
fn what_a_policy_cannot_do_without_is_demanded() {
    use linkerd2_proxy_api::{inbound as api_in, outbound as api_out};
    assert_eq!(inbound::from_api(api_in::Server::default()).unwrap_err().field, "server.protocol");
    assert_eq!(outbound::from_api(api_out::OutboundPolicy::default()).unwrap_err().field, "policy.metadata");
    let authz = api_in::Authz::default();
    let server = api_in::Server {
        protocol: Some(api_in::ProxyProtocol {
            kind: Some(api_in::proxy_protocol::Kind::Opaque(api_in::proxy_protocol::Opaque {})),
        }),
        authorizations: vec![authz],
        ..Default::default()
    };
    assert_eq!(inbound::from_api(server).unwrap_err().field, "authorization.authentication");
}

#[test]
fn an_audit_keeps_its_networks() {
    let everywhere = ["0.0.0.0/0", "::/0"];
    let read = |networks: &[&str], except: &[&str]| {
        let net = |net: &&str| net.parse::<IpNet>().unwrap();
        let network = |n: &&str| Network { net: net(n), except: except.iter().map(net).collect() };
        let authorization = Authorization {
            meta: Arc::new(Meta::default_named("audit")),
            networks: networks.iter().map(network).collect(),
            authn: Authn::Unauthenticated,
        };
        let sent = ServerPolicy {
            meta: Arc::new(Meta::default_named("server")),
            protocol: Protocol::Opaque,
            authorizations: vec![authorization.clone()],
            audit: false,
        };
        let read = inbound::from_api(inbound::to_api(&sent)).unwrap();
        (read.audit, read.authorizations == [authorization])
    };
    // What holds everywhere is a mark of the whole policy; anything less stays what it is.
    assert_eq!(read(&everywhere, &[]), (true, false));
    assert_eq!(read(&["10.0.0.0/8"], &[]), (false, true));
    assert_eq!(read(&everywhere[..1], &[]), (false, true));
    assert_eq!(read(&everywhere, &["10.1.0.0/16"]), (false, true));
}
