//! ServiceProfiles.

use super::*;
use weft_kube::policy::service_profile::ServiceProfile;

const NAME: &str = "store.shop.svc.cluster.local";

fn profile(namespace: &str, spec: Value) -> Value {
    json!({"metadata": {"name": NAME, "namespace": namespace}, "spec": spec})
}

fn one_route(name: &str) -> Value {
    json!({"routes": [{"name": name, "condition": {"pathRegex": "/a"}}]})
}

fn seen(world: &World, namespace: &str) -> Arc<Profile> {
    let of = ProfileOf {
        target: ProfileTarget::Addr("10.78.0.2:80".parse().unwrap()),
        client_node: None,
        client_namespace: namespace.to_owned(),
    };
    match world.view(&of) {
        ProfileView::Profile(profile) => profile,
        ProfileView::NoSuchName => panic!("no profile"),
    }
}

fn route(world: &World, namespace: &str) -> Option<String> {
    seen(world, namespace).service.routes.first().map(|r| r.labels["route"].clone())
}

#[test]
fn the_clients_own_profile_comes_before_the_services() {
    let mut world = World::new();
    world.put::<Service>(service("store", "10.78.0.2"));
    assert_eq!(route(&world, "web"), None);
    world.put::<ServiceProfile>(profile("shop", one_route("theirs")));
    world.put::<ServiceProfile>(profile("web", one_route("mine")));
    assert_eq!(route(&world, "web").as_deref(), Some("mine"));
    assert_eq!(route(&world, "other").as_deref(), Some("theirs"));
    // One that cannot be read is as good as none.
    world.put::<ServiceProfile>(profile("web", json!({"routes": [{"name": "bad", "condition": {}}]})));
    assert_eq!(route(&world, "web").as_deref(), Some("theirs"));
    world.gone::<ServiceProfile>(NAME);
    assert_eq!(route(&world, "other"), None);
}

#[test]
fn shares_budgets_and_opaque_ports() {
    let mut world = World::new();
    world.put::<Service>(service("store", "10.78.0.2")).put::<ServiceProfile>(profile(
        "shop",
        json!({
            "dstOverrides": [{"authority": "v2.shop.svc.cluster.local", "weight": "500m"},
                {"authority": "v1.shop.svc.cluster.local:81", "weight": 1}],
            "retryBudget": {"retryRatio": 0.5, "minRetriesPerSecond": 3, "ttl": "10s"},
            "opaquePorts": ["79-81"],
        }),
    ));
    let profile = seen(&world, "shop");
    let shares: Vec<_> = profile.service.overrides.iter().map(|o| (o.authority.as_str(), o.weight)).collect();
    assert_eq!(shares, [("v2.shop.svc.cluster.local:80", 500), ("v1.shop.svc.cluster.local:81", 1000)]);
    let meta = profile.service.overrides[0].meta.as_ref().unwrap();
    assert_eq!(meta.to_string(), "service/shop/v2:80");
    assert_eq!(profile.service.budget.unwrap().min_per_second, 3);
    assert!(profile.opaque);
    // A port that the Service does not have has no profile.
    assert_eq!(*world.profile("10.78.0.2:9999"), Profile::default());
}
