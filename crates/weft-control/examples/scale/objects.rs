//! Objects as a cluster with injected pods has them, sizes included.

use std::net::Ipv4Addr;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) services: usize,
    /// Endpoints of each service, in one slice.
    pub(crate) each: usize,
}

const NODES: usize = 100;

impl Shape {
    pub(crate) fn namespace(service: usize) -> String {
        format!("team-{:02}", service % 50)
    }
    pub(crate) fn name(service: usize) -> String {
        format!("service-{service:05}")
    }
    pub(crate) fn pod_name(service: usize, n: usize) -> String {
        format!("{}-7d9f8b6c5-{n:05}", Shape::name(service))
    }
    pub(crate) fn ip(self, service: usize, n: usize) -> Ipv4Addr {
        let number = u32::try_from(service * self.each + n).expect("few pods");
        Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + number)
    }

    pub(crate) fn service(service: usize) -> String {
        let number = u32::try_from(service).expect("few services");
        let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 200, 0, 0)) + number);
        format!(
            r#"{{"metadata":{},"spec":{{"type":"ClusterIP","clusterIP":"{ip}","clusterIPs":["{ip}"],"selector":{{"app":"{}"}},"ports":[{{"name":"http","port":80,"targetPort":"http","protocol":"TCP"}}]}}}}"#,
            meta(&Shape::namespace(service), &Shape::name(service), "1", ""),
            Shape::name(service),
        )
    }

    pub(crate) fn replica_set(service: usize) -> String {
        let name = format!("{}-7d9f8b6c5", Shape::name(service));
        let owner = owner("Deployment", &Shape::name(service));
        format!(r#"{{"metadata":{}}}"#, meta(&Shape::namespace(service), &name, "1", &owner))
    }

    pub(crate) fn slice(self, service: usize, version: u64, ready: &[bool]) -> String {
        let namespace = Shape::namespace(service);
        let name = Shape::name(service);
        let labels = format!(
            r#","labels":{{"kubernetes.io/service-name":"{name}","endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io"}}"#
        );
        let endpoints: Vec<String> = ready
            .iter()
            .enumerate()
            .map(|(n, ready)| {
                format!(
                    r#"{{"addresses":["{}"],"conditions":{{"ready":{ready},"serving":{ready},"terminating":false}},"nodeName":"{}","targetRef":{{"kind":"Pod","namespace":"{namespace}","name":"{}","uid":"{}"}},"zone":"zone-a"}}"#,
                    self.ip(service, n),
                    node_name(service, n),
                    Shape::pod_name(service, n),
                    uid(service, n),
                )
            })
            .collect();
        format!(
            r#"{{"metadata":{},"addressType":"IPv4","ports":[{{"name":"http","port":8080,"protocol":"TCP"}}],"endpoints":[{}]}}"#,
            meta(&namespace, &format!("{name}-x7k2p"), &version.to_string(), &labels),
            endpoints.join(",")
        )
    }

    /// An injected pod, about 7 KB.
    pub(crate) fn pod(self, service: usize, n: usize) -> String {
        let (namespace, app) = (Shape::namespace(service), Shape::name(service));
        let (name, ip, node) = (Shape::pod_name(service, n), self.ip(service, n), node_name(service, n));
        let env: String = (0..45)
            .map(|n| format!(r#"{{"name":"LINKERD2_PROXY_SETTING_NUMBER_{n:02}","value":"some value of ordinary length"}},"#))
            .collect();
        let more = format!(
            r#","labels":{{"app":"{app}","app.kubernetes.io/name":"{app}","app.kubernetes.io/part-of":"platform","pod-template-hash":"7d9f8b6c5","linkerd.io/control-plane-ns":"linkerd","linkerd.io/workload-ns":"{namespace}","linkerd.io/proxy-deployment":"{app}"}},"annotations":{{"linkerd.io/created-by":"linkerd/proxy-injector stable","linkerd.io/inject":"enabled","linkerd.io/proxy-version":"stable","linkerd.io/trust-root-sha256":"9d3b1f0c5a7e4d2b8c6a1e0f9d3b1f0c5a7e4d2b8c6a1e0f9d3b1f0c5a7e4d2b","config.linkerd.io/opaque-ports":"25,587,3306,4444,5432,6379,9300,11211","prometheus.io/scrape":"true","prometheus.io/port":"9090","kubectl.kubernetes.io/restartedAt":"2026-01-01T00:00:00Z"}}{}"#,
            owner("ReplicaSet", &format!("{app}-7d9f8b6c5"))
        );
        let metadata = meta_uid(&namespace, &name, "1", &uid(service, n), &more);
        let probe = r#"{"httpGet":{"path":"/healthz","port":"http","scheme":"HTTP"},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3}"#;
        format!(
            r#"{{"metadata":{metadata},"spec":{{"nodeName":"{node}","serviceAccountName":"{app}","initContainers":[{{"name":"linkerd-proxy","image":"cr.example/proxy:stable","restartPolicy":"Always","ports":[{{"name":"linkerd-proxy","containerPort":4143,"protocol":"TCP"}},{{"name":"linkerd-admin","containerPort":4191,"protocol":"TCP"}}],"env":[{env}{{"name":"LINKERD2_PROXY_INBOUND_LISTEN_ADDR","value":"0.0.0.0:4143"}}],"livenessProbe":{probe},"readinessProbe":{probe}}}],"containers":[{{"name":"app","image":"cr.example/{app}:1.0.0","ports":[{{"name":"http","containerPort":8080,"protocol":"TCP"}}],"env":[{{"name":"A","value":"b"}}],"readinessProbe":{probe},"livenessProbe":{probe},"terminationMessagePath":"/dev/termination-log"}}],"tolerations":[{{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}}]}},"status":{{"phase":"Running","podIP":"{ip}","podIPs":[{{"ip":"{ip}"}}],"hostIP":"10.190.0.1","startTime":"2026-01-01T00:00:00Z","conditions":[{{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}}],"containerStatuses":[{{"name":"app","ready":true,"restartCount":0,"image":"cr.example/{app}:1.0.0","imageID":"cr.example/{app}@sha256:9d3b1f0c5a7e4d2b8c6a1e0f9d3b1f0c"}}]}}}}"#
        )
    }

    pub(crate) fn nodes() -> Vec<String> {
        let node = |n: usize| {
            format!(
                r#"{{"metadata":{{"name":"node-{n:03}","labels":{{"topology.kubernetes.io/zone":"zone-a"}}}},"status":{{"addresses":[{{"type":"InternalIP","address":"10.190.{}.{}"}}]}}}}"#,
                n / 250,
                n % 250
            )
        };
        (0..NODES).map(node).collect()
    }

    pub(crate) fn namespaces() -> Vec<String> {
        (0..50).map(|n| format!(r#"{{"metadata":{{"name":"team-{n:02}","uid":"n{n}"}}}}"#)).collect()
    }
}

fn node_name(service: usize, n: usize) -> String {
    format!("node-{:03}", (service * 7 + n) % NODES)
}

fn uid(service: usize, n: usize) -> String {
    format!("{service:08x}-0000-4000-8000-{n:012x}")
}

fn owner(kind: &str, name: &str) -> String {
    format!(
        r#","ownerReferences":[{{"apiVersion":"apps/v1","kind":"{kind}","name":"{name}","uid":"5f0c3a52-1111-4000-8000-000000000000","controller":true,"blockOwnerDeletion":true}}]"#
    )
}

fn meta(namespace: &str, name: &str, version: &str, more: &str) -> String {
    meta_uid(namespace, name, version, &format!("{name}-uid"), more)
}

fn meta_uid(namespace: &str, name: &str, version: &str, uid: &str, more: &str) -> String {
    format!(
        r#"{{"namespace":"{namespace}","name":"{name}","uid":"{uid}","resourceVersion":"{version}","generation":1,"creationTimestamp":"2026-01-01T00:00:00Z"{more},"managedFields":[{{"manager":"kube-controller-manager","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{{"f:metadata":{{"f:labels":{{".":{{}},"f:app":{{}}}}}},"f:spec":{{"f:containers":{{}}}}}}}}]}}"#
    )
}
