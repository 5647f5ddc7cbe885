use super::*;
use crate::index::{
    Index,
    kinds::Indexed,
    tests::{object, service},
};
use weft_kube::watch::Event;

fn put<K: Indexed>(index: &mut Index, value: Value) {
    index.apply::<K>(Event::Applied(Arc::new(object(value))));
}

fn external(name: &str, ips: &[&str], http: u16, ready: &str) -> Value {
    let ips: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
    json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": "vm"}},
        "spec": {"meshTLS": {"identity": "spiffe://x/vm", "serverName": "vm"},
            "ports": [{"name": "http", "port": http}], "workloadIPs": ips},
        "status": {"conditions": [{"type": "Ready", "status": ready}]}})
}

fn selecting(name: &str, ip: &str) -> Value {
    let mut value = service(name, ip);
    value["spec"]["selector"] = json!({"app": "vm"});
    value
}

/// Does what is due; says how much that was.
fn settle(index: &mut Index) -> usize {
    let writes = due(&Reader::new(index));
    for write in &writes {
        match write.clone() {
            Write::Create(_, object) | Write::Replace(_, _, object) => put::<EndpointSlice>(index, object),
            Write::Delete(name) => drop(index.apply::<EndpointSlice>(Event::Deleted(name))),
        }
    }
    writes.len()
}

fn addresses(index: &Index) -> Vec<(u16, String, bool)> {
    let reader = Reader::new(index);
    let mut all: Vec<_> = reader
        .all_slices()
        .flat_map(|slice| {
            let port = slice.ports.first().and_then(|p| p.port).unwrap_or_default();
            slice.endpoints.iter().map(move |e| (port, e.addresses[0].clone(), e.is_ready()))
        })
        .collect();
    all.sort();
    all
}

#[test]
fn workloads_become_endpoints_of_the_services_that_select_them() {
    let mut index = Index::default();
    put::<Service>(&mut index, selecting("store", "10.78.0.2"));
    put::<Service>(&mut index, service("unselective", "10.78.0.3"));
    let mut named = selecting("elsewhere", "");
    named["spec"]["type"] = json!("ExternalName");
    put::<Service>(&mut index, named);
    put::<ExternalWorkload>(&mut index, external("a", &["192.0.2.1", "fd77::1"], 8080, "True"));
    put::<ExternalWorkload>(&mut index, external("b", &["192.0.2.2"], 9090, "False"));
    let mut other = external("c", &["192.0.2.3"], 8080, "True");
    other["metadata"]["labels"]["app"] = json!("other");
    put::<ExternalWorkload>(&mut index, other);
    // One slice for each number of the named port; no IPv6, which the Service does not have.
    assert_eq!(settle(&mut index), 2);
    let ready = (8080, "192.0.2.1".to_owned(), true);
    assert_eq!(addresses(&index), [ready.clone(), (9090, "192.0.2.2".to_owned(), false)]);
    assert_eq!(settle(&mut index), 0, "nothing is left to do");

    put::<ExternalWorkload>(&mut index, external("b", &["192.0.2.2"], 8080, "True"));
    assert_eq!(settle(&mut index), 2, "one slice grows, the other goes");
    assert_eq!(addresses(&index), [ready.clone(), (8080, "192.0.2.2".to_owned(), true)]);
    index.apply::<ExternalWorkload>(Event::Deleted(ObjectName::new("shop", "b")));
    assert_eq!((settle(&mut index), addresses(&index)), (1, vec![ready]));
    index.apply::<Service>(Event::Deleted(ObjectName::new("shop", "store")));
    assert_eq!((settle(&mut index), addresses(&index)), (1, Vec::new()));
}

#[test]
fn slices_are_small_and_those_of_others_are_left_alone() {
    let mut index = Index::default();
    let mut headless = selecting("store", "None");
    headless["metadata"]["uid"] = json!("u1");
    put::<Service>(&mut index, headless);
    let theirs = json!({"metadata": {"name": "x", "namespace": "shop", "labels": {SERVICE_NAME: "store",
        MANAGED_BY: "endpointslice-controller.k8s.io"}}, "addressType": "IPv4", "endpoints": [], "ports": []});
    put::<EndpointSlice>(&mut index, theirs);
    for n in 0..150 {
        let (name, ips) = (format!("w{n:03}"), [format!("192.0.2.{n}"), format!("fd77::{n}")]);
        let ips = [ips[0].as_str(), ips[1].as_str()];
        put::<ExternalWorkload>(&mut index, external(&name, &ips, 8080, "True"));
    }
    assert_eq!(settle(&mut index), 4, "two of each family");
    let reader = Reader::new(&index);
    for slice in reader.all_slices().filter(|s| s.metadata.label(MANAGED_BY) == Some(MANAGER)) {
        assert!(slice.endpoints.len() <= SLICE_SIZE);
        assert!(slice.metadata.name.starts_with("linkerd-external-store-"));
        assert_eq!(slice.service(), Some("store"));
        assert_eq!(slice.metadata.controller().map(|o| o.kind.as_str()), Some("Service"));
    }
    // One that somebody edited is put right.
    let mut edited = EndpointSlice::clone(reader.all_slices().next().unwrap());
    edited.endpoints.clear();
    index.apply::<EndpointSlice>(Event::Applied(Arc::new(edited)));
    assert_eq!(settle(&mut index), 1);
}
