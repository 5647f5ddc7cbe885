//! Every value that `weft install` and the chart know: Linkerd's names, their defaults, and what they do here.

/// What a value may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Text,
    OneOf(&'static [&'static str]),
    Bool,
    Number,
    /// A whole number and a unit: `500ms`, `24h`; several may follow each other, `24h0m0s`.
    Duration,
    /// Numbers, ranges and names of ports, separated by commas. One number alone counts too.
    Ports,
    /// Networks, separated by commas or as a list.
    Networks,
    /// An amount as Kubernetes writes it, or nothing.
    Quantity,
    List,
    /// Any keys below it.
    Map,
}

impl Form {
    /// The form in words.
    pub fn says(self) -> String {
        match self {
            Form::Text => "text".to_owned(),
            Form::OneOf(words) => words.join(", "),
            Form::Bool => "true or false".to_owned(),
            Form::Number => "a whole number".to_owned(),
            Form::Duration => "a duration such as 500ms, 10s or 24h".to_owned(),
            Form::Ports => "ports and ranges such as 25,4000-4010".to_owned(),
            Form::Networks => "networks such as 10.0.0.0/8, separated by commas".to_owned(),
            Form::Quantity => "an amount such as 100m or 250Mi".to_owned(),
            Form::List => "a list".to_owned(),
            Form::Map => "a map".to_owned(),
        }
    }
}

/// One value.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// `proxy.logLevel`
    pub path: &'static str,
    /// As JSON.
    pub default: &'static str,
    /// The default of `--ha`, where it differs.
    pub ha: Option<&'static str>,
    pub form: Form,
    pub says: &'static str,
    /// Why it does nothing: Linkerd has it, and weft has no such part.
    pub without_effect: Option<&'static str>,
}

const fn row(path: &'static str, form: Form, default: &'static str, says: &'static str) -> Row {
    Row { path, default, ha: None, form, says, without_effect: None }
}

/// A value that is known and does nothing.
const fn idle(path: &'static str, form: Form, default: &'static str, why: &'static str) -> Row {
    Row { path, default, ha: None, form, says: "", without_effect: Some(why) }
}

impl Row {
    const fn ha(mut self, default: &'static str) -> Row {
        self.ha = Some(default);
        self
    }
}

const ONE_CONTAINER: &str = "the controller is one container: see controllerResources";
const ONE_LOG: &str = "the controller has one log: see controllerLogLevel";
const ONE_IMAGE: &str = "the policy controller is part of the controller: see controllerImage";
const NO_HEARTBEAT: &str = "weft sends nothing home";
const PULL: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const FORMATS: [&str; 2] = ["plain", "json"];
const POLICIES: [&str; 6] = [
    "all-unauthenticated",
    "all-authenticated",
    "cluster-unauthenticated",
    "cluster-authenticated",
    "deny",
    "audit",
];

/// In the order of the chart's `values.yaml`; a value follows its neighbours of the same map.
#[rustfmt::skip]
pub const TABLE: &[Row] = &[
    row("clusterDomain", Form::Text, r#""cluster.local""#, "DNS domain of the cluster"),
    row("clusterNetworks", Form::Networks, r#""10.0.0.0/8,100.64.0.0/10,172.16.0.0/12,192.168.0.0/16,fd00::/8""#, "networks of pods, services and nodes; what lies outside is egress"),
    row("identityTrustDomain", Form::Text, r#""""#, "trust domain of identities; clusterDomain without it"),
    row("identityTrustAnchorsPEM", Form::Text, r#""""#, "trust anchors in PEM; `weft install` makes them if none are given"),
    row("identity.externalCA", Form::Bool, "false", "somebody else keeps the ConfigMap linkerd-identity-trust-roots"),
    row("identity.issuer.scheme", Form::OneOf(&["linkerd.io/tls", "kubernetes.io/tls"]), r#""linkerd.io/tls""#, "kubernetes.io/tls: somebody else, such as cert-manager, keeps the Secret linkerd-identity-issuer"),
    row("identity.issuer.issuanceLifetime", Form::Duration, r#""24h0m0s""#, "how long a proxy's certificate is valid"),
    row("identity.issuer.clockSkewAllowance", Form::Duration, r#""20s""#, "by how much clocks may differ: a certificate is valid from so long before it was made, and so much longer"),
    row("identity.issuer.tls.crtPEM", Form::Text, r#""""#, "the issuer's certificate in PEM"),
    row("identity.issuer.tls.keyPEM", Form::Text, r#""""#, "the issuer's key in PEM"),
    idle("identity.kubeAPI.clientQPS", Form::Number, "100", "requests to the API are few, and watches are not counted"),
    idle("identity.kubeAPI.clientBurst", Form::Number, "200", "requests to the API are few, and watches are not counted"),
    idle("identity.additionalArgs", Form::List, "[]", ONE_CONTAINER),
    idle("identity.additionalEnv", Form::List, "[]", ONE_CONTAINER),
    idle("identityResources", Form::Map, "null", ONE_CONTAINER),
    row("controllerReplicas", Form::Number, "1", "replicas of the controller").ha("3"),
    row("controllerImage", Form::Text, r#""weft.dev/weft-controller""#, "image of the controller"),
    row("controllerImageVersion", Form::Text, r#""""#, "its tag; linkerdVersion without it"),
    row("controllerLogLevel", Form::Text, r#""info""#, "log filter of the controller"),
    row("controllerLogFormat", Form::OneOf(&FORMATS), r#""plain""#, "form of its log"),
    row("controllerUID", Form::Number, "2103", "user that the controller runs as"),
    row("controllerGID", Form::Number, "2103", "group that the controller runs as"),
    row("controllerResources", Form::Map, "{}", "requests and limits of the controller, as Kubernetes writes them")
        .ha(r#"{"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}"#),
    idle("destinationResources", Form::Map, "null", ONE_CONTAINER),
    idle("proxyInjectorResources", Form::Map, "null", ONE_CONTAINER),
    idle("heartbeatResources", Form::Map, "null", NO_HEARTBEAT),
    idle("spValidatorResources", Form::Map, "null", ONE_CONTAINER),
    idle("policyControllerResources", Form::Map, "null", ONE_CONTAINER),
    row("deploymentStrategy", Form::Map, r#"{"rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}"#, "how the controller's pods are replaced")
        .ha(r#"{"rollingUpdate": {"maxUnavailable": 1, "maxSurge": "25%"}}"#),
    row("enablePodAntiAffinity", Form::Bool, "false", "no two replicas on one machine").ha("true"),
    row("enablePodDisruptionBudget", Form::Bool, "false", "at most one replica is away at a time").ha("true"),
    row("controller.podDisruptionBudget.maxUnavailable", Form::Number, "1", "how many replicas may be evicted at a time"),
    row("nodeSelector", Form::Map, r#"{"kubernetes.io/os": "linux"}"#, "machines that the controller runs on"),
    row("nodeAffinity", Form::Map, "{}", "node affinity of the controller's pods"),
    row("tolerations", Form::List, "[]", "tolerations of the controller's pods"),
    row("priorityClassName", Form::Text, r#""""#, "priority class of the controller's pods"),
    row("runtimeClassName", Form::Text, r#""""#, "runtime class of the controller's pods"),
    row("revisionHistoryLimit", Form::Number, "10", "how many old ReplicaSets are kept"),
    row("podAnnotations", Form::Map, "{}", "annotations of the controller's pods"),
    row("podLabels", Form::Map, "{}", "labels of the controller's pods"),
    row("imagePullPolicy", Form::OneOf(&PULL), r#""IfNotPresent""#, "pull policy of every image that has none of its own"),
    row("imagePullSecrets", Form::List, "[]", "pull secrets of the controller's pods"),
    row("linkerdVersion", Form::Text, concat!('"', env!("CARGO_PKG_VERSION"), '"'), "tag of every image that has none of its own"),
    idle("cliVersion", Form::Text, r#""""#, "objects say who made them in their annotation linkerd.io/created-by"),
    idle("disableHeartBeat", Form::Bool, "false", NO_HEARTBEAT),
    idle("heartbeatSchedule", Form::Text, r#""""#, NO_HEARTBEAT),
    row("disableIPv6", Form::Bool, "true", "pods are addressed by IPv4 only"),
    idle("enableEndpointSlices", Form::Bool, "true", "EndpointSlices are always read"),
    row("enableH2Upgrade", Form::Bool, "true", "HTTP/1 goes as HTTP/2 between proxies; false is not supported"),
    idle("enablePprof", Form::Bool, "false", "the controller has no profiler"),
    idle("enablePSP", Form::Bool, "false", "Kubernetes has had no PodSecurityPolicies since 1.25"),
    row("webhookFailurePolicy", Form::OneOf(&["Ignore", "Fail"]), r#""Ignore""#, "what becomes of pods that opted in while the injector is away; all others start whatever it says").ha(r#""Fail""#),
    row("installGatewayAPI", Form::Bool, "false", "the chart of definitions holds those of the Gateway API as well"),
    row("cniEnabled", Form::Bool, "false", "a CNI plugin redirects: pods get linkerd-network-validator and no linkerd-init"),
    idle("prometheusUrl", Form::Text, r#""""#, "commands read the proxies' metrics themselves"),
    row("egress.globalEgressNetworkNamespace", Form::Text, r#""linkerd-egress""#, "namespace whose EgressNetworks hold for all"),
    idle("destinationController.meshedHttp2ClientProtobuf", Form::Map, "null", "proxies have keepalives of their own"),
    idle("destinationController.livenessProbe", Form::Map, "null", ONE_CONTAINER),
    idle("destinationController.readinessProbe", Form::Map, "null", ONE_CONTAINER),
    idle("destinationController.podAnnotations", Form::Map, "null", "see podAnnotations"),
    idle("destinationController.additionalArgs", Form::List, "[]", ONE_CONTAINER),
    idle("destinationController.additionalEnv", Form::List, "[]", ONE_CONTAINER),
    idle("destinationController.experimentalArgs", Form::List, "[]", ONE_CONTAINER),
    idle("destinationController.experimentalEnv", Form::List, "[]", ONE_CONTAINER),
    row("policyController.probeNetworks", Form::Networks, r#"["0.0.0.0/0", "::/0"]"#, "where probes come from"),
    row("policyController.allowL5dRequestHeaders", Form::Bool, "false", "requests may set their own timeouts and retries by l5d- headers"),
    idle("policyController.image.name", Form::Text, r#""""#, ONE_IMAGE),
    idle("policyController.image.version", Form::Text, r#""""#, ONE_IMAGE),
    idle("policyController.image.pullPolicy", Form::Text, r#""""#, ONE_IMAGE),
    idle("policyController.logLevel", Form::Text, r#""""#, ONE_LOG),
    idle("policyController.resources", Form::Map, "null", ONE_CONTAINER),
    idle("policyController.livenessProbe", Form::Map, "null", ONE_CONTAINER),
    idle("policyController.readinessProbe", Form::Map, "null", ONE_CONTAINER),
    idle("policyController.additionalArgs", Form::List, "[]", ONE_CONTAINER),
    idle("policyController.additionalEnv", Form::List, "[]", ONE_CONTAINER),
    row("proxyInjector.externalSecret", Form::Bool, "false", "somebody else keeps the Secret linkerd-proxy-injector-k8s-tls"),
    row("proxyInjector.caBundle", Form::Text, r#""""#, "CA of that Secret in PEM; the controller writes its own without it"),
    row("proxyInjector.injectCaFrom", Form::Text, r#""""#, "cert-manager's Certificate that the CA is taken from"),
    row("proxyInjector.injectCaFromSecret", Form::Text, r#""""#, "Secret that cert-manager takes the CA from"),
    row("proxyInjector.timeoutSeconds", Form::Number, "10", "how long the API server waits for the injector"),
    idle("proxyInjector.crtPEM", Form::Text, r#""""#, "the controller makes its certificates itself: use externalSecret"),
    idle("proxyInjector.keyPEM", Form::Text, r#""""#, "the controller makes its certificates itself: use externalSecret"),
    idle("proxyInjector.namespaceSelector", Form::Map, "null", "who is asked about is decided by opt-in: see docs/kubernetes.md"),
    idle("proxyInjector.objectSelector", Form::Map, "null", "who is asked about is decided by opt-in: see docs/kubernetes.md"),
    idle("proxyInjector.additionalArgs", Form::List, "[]", ONE_CONTAINER),
    idle("proxyInjector.additionalEnv", Form::List, "[]", ONE_CONTAINER),
    idle("proxyInjector.podAnnotations", Form::Map, "null", "see podAnnotations"),
    row("profileValidator.externalSecret", Form::Bool, "false", "somebody else keeps the Secret linkerd-sp-validator-k8s-tls"),
    row("profileValidator.caBundle", Form::Text, r#""""#, "CA of that Secret in PEM"),
    row("profileValidator.injectCaFrom", Form::Text, r#""""#, "cert-manager's Certificate that the CA is taken from"),
    row("profileValidator.injectCaFromSecret", Form::Text, r#""""#, "Secret that cert-manager takes the CA from"),
    idle("profileValidator.crtPEM", Form::Text, r#""""#, "the controller makes its certificates itself: use externalSecret"),
    idle("profileValidator.keyPEM", Form::Text, r#""""#, "the controller makes its certificates itself: use externalSecret"),
    idle("profileValidator.namespaceSelector", Form::Map, "null", "every namespace without config.linkerd.io/admission-webhooks: disabled is validated"),
    row("policyValidator.externalSecret", Form::Bool, "false", "somebody else keeps the Secret linkerd-policy-validator-k8s-tls"),
    row("policyValidator.caBundle", Form::Text, r#""""#, "CA of that Secret in PEM"),
    row("policyValidator.injectCaFrom", Form::Text, r#""""#, "cert-manager's Certificate that the CA is taken from"),
    row("policyValidator.injectCaFromSecret", Form::Text, r#""""#, "Secret that cert-manager takes the CA from"),
    idle("policyValidator.crtPEM", Form::Text, r#""""#, "the controller makes its certificates itself: use externalSecret"),
    idle("policyValidator.keyPEM", Form::Text, r#""""#, "the controller makes its certificates itself: use externalSecret"),
    idle("policyValidator.namespaceSelector", Form::Map, "null", "every namespace without config.linkerd.io/admission-webhooks: disabled is validated"),
    idle("podMonitor.enabled", Form::Bool, "false", "the chart ships no PodMonitors: docs/metrics.md names the ports to scrape"),
    row("proxy.image.name", Form::Text, r#""weft.dev/weft-proxy""#, "image of the proxy"),
    row("proxy.image.version", Form::Text, r#""""#, "its tag; linkerdVersion without it"),
    row("proxy.image.pullPolicy", Form::OneOf(&["", "Always", "IfNotPresent", "Never"]), r#""""#, "imagePullPolicy without it"),
    row("proxy.logLevel", Form::Text, r#""warn,linkerd=info,weft=info,hickory=error""#, "log filter of proxies"),
    row("proxy.logFormat", Form::OneOf(&FORMATS), r#""plain""#, "form of their log"),
    idle("proxy.logHTTPHeaders", Form::OneOf(&["off", "insecure", ""]), r#""off""#, "proxies never log headers"),
    row("proxy.accessLog", Form::OneOf(&["", "apache", "json"]), r#""""#, "form of the access log; none without it"),
    row("proxy.uid", Form::Number, "2102", "user that proxies run as"),
    row("proxy.gid", Form::Number, "-1", "group that proxies run as; that of the image if negative"),
    row("proxy.ports.admin", Form::Number, "4191", "admin port of proxies"),
    row("proxy.ports.control", Form::Number, "4190", "tap port of proxies"),
    row("proxy.ports.inbound", Form::Number, "4143", "inbound port of proxies"),
    row("proxy.ports.outbound", Form::Number, "4140", "outbound port of proxies"),
    row("proxy.opaquePorts", Form::Ports, r#""25,587,3306,4444,5432,6379,9300,11211""#, "ports that carry no HTTP"),
    idle("proxy.podInboundPorts", Form::Ports, r#""""#, "taken from the pod"),
    row("proxy.requireIdentityOnInboundPorts", Form::Ports, r#""""#, "ports that take meshed callers only"),
    row("proxy.requireTLSOnInboundPorts", Form::Ports, r#""""#, "ports that take TLS only"),
    row("proxy.defaultInboundPolicy", Form::OneOf(&POLICIES), r#""all-unauthenticated""#, "who may call where no Server says so"),
    row("proxy.nativeSidecar", Form::Bool, "true", "the proxy is an init container that stays"),
    row("proxy.await", Form::Bool, "true", "the pod's containers wait for the proxy"),
    row("proxy.waitBeforeExitSeconds", Form::Number, "0", "seconds that the proxy waits before it ends"),
    row("proxy.shutdownGracePeriod", Form::Duration, r#""""#, "how long open connections may last after SIGTERM"),
    row("proxy.enableShutdownEndpoint", Form::Bool, "false", "POST /shutdown on the admin port ends the proxy"),
    row("proxy.enableExternalProfiles", Form::Bool, "false", "ask the controller about names outside of the cluster"),
    row("proxy.outboundTransportMode", Form::OneOf(&["transport-header", "transparent"]), r#""transport-header""#, "meshed connections go to the proxy's own port, or to the application's"),
    row("proxy.inboundConnectTimeout", Form::Duration, r#""100ms""#, "to the application"),
    row("proxy.outboundConnectTimeout", Form::Duration, r#""1000ms""#, "to endpoints"),
    row("proxy.inboundDiscoveryCacheUnusedTimeout", Form::Duration, r#""90s""#, "how long an unused answer about an inbound port is kept"),
    row("proxy.outboundDiscoveryCacheUnusedTimeout", Form::Duration, r#""5s""#, "how long an unused answer about a destination is kept"),
    row("proxy.disableInboundProtocolDetectTimeout", Form::Bool, "false", "wait for a client's first bytes for ever"),
    row("proxy.disableOutboundProtocolDetectTimeout", Form::Bool, "false", "wait for a client's first bytes for ever"),
    row("proxy.control.streams.initialTimeout", Form::Duration, r#""3s""#, "for the first answer of the controller"),
    row("proxy.control.streams.idleTimeout", Form::Duration, r#""5m""#, "after which a silent stream is opened again"),
    row("proxy.control.streams.lifetime", Form::Duration, r#""1h""#, "after which any stream is opened again"),
    row("proxy.metrics.hostnameLabels", Form::Bool, "false", "hostnames as labels of outbound metrics"),
    row("proxy.resources.cpu.request", Form::Quantity, r#""""#, "").ha(r#""100m""#),
    row("proxy.resources.cpu.limit", Form::Quantity, r#""""#, "also sets how many workers a proxy has"),
    row("proxy.resources.memory.request", Form::Quantity, r#""""#, "").ha(r#""20Mi""#),
    row("proxy.resources.memory.limit", Form::Quantity, r#""""#, "").ha(r#""250Mi""#),
    row("proxy.resources.ephemeral-storage.request", Form::Quantity, r#""""#, ""),
    row("proxy.resources.ephemeral-storage.limit", Form::Quantity, r#""""#, ""),
    row("proxy.runtime.workers.minimum", Form::Number, "1", "workers of a proxy, at least"),
    row("proxy.runtime.workers.maximum", Form::Number, "0", "workers of a proxy, at most; 0 is no bound of its own"),
    row("proxy.runtime.workers.maximumCPURatio", Form::Number, "0", "share of the machine's cores that a proxy may have workers for; 0 is none"),
    idle("proxy.cores", Form::Number, "0", "see proxy.runtime.workers"),
    row("proxy.additionalEnv", Form::List, "[]", "variables that are added to every proxy's"),
    row("proxy.experimentalEnv", Form::List, "[]", "the same"),
    row("proxy.tracing.enabled", Form::Bool, "false", "export spans"),
    row("proxy.tracing.traceServiceName", Form::Text, r#""linkerd-proxy""#, "service name of spans"),
    row("proxy.tracing.collector.endpoint", Form::Text, r#""""#, "HOST:PORT of an OTLP collector"),
    row("proxy.tracing.collector.meshIdentity.serviceAccountName", Form::Text, r#""""#, "its ServiceAccount, if it is meshed"),
    row("proxy.tracing.collector.meshIdentity.namespace", Form::Text, r#""""#, "its namespace, if it is meshed"),
    row("proxy.tracing.labels", Form::Map, "{}", "attributes of every span"),
    row("proxy.livenessProbe.initialDelaySeconds", Form::Number, "10", ""),
    row("proxy.livenessProbe.timeoutSeconds", Form::Number, "1", ""),
    row("proxy.readinessProbe.initialDelaySeconds", Form::Number, "2", ""),
    row("proxy.readinessProbe.timeoutSeconds", Form::Number, "1", ""),
    row("proxy.startupProbe.initialDelaySeconds", Form::Number, "0", ""),
    row("proxy.startupProbe.periodSeconds", Form::Number, "1", ""),
    row("proxy.startupProbe.failureThreshold", Form::Number, "120", ""),
    idle("proxy.saMountPath", Form::Map, "null", "the token volume has a fixed path"),
    idle("proxy.capabilities", Form::Map, "null", "the proxy needs none"),
    idle("proxy.inbound", Form::Map, "null", "set LINKERD2_PROXY_INBOUND_SERVER_HTTP2_* in proxy.additionalEnv"),
    idle("proxy.outbound", Form::Map, "null", "set LINKERD2_PROXY_OUTBOUND_SERVER_HTTP2_* in proxy.additionalEnv"),
    idle("proxy.isGateway", Form::Bool, "false", "an annotation of the gateway's pods"),
    idle("proxy.isIngress", Form::Bool, "false", "an annotation: linkerd.io/inject: ingress"),
    row("proxyInit.ignoreInboundPorts", Form::Ports, r#""4567,4568""#, "ports that reach applications without the proxy"),
    row("proxyInit.ignoreOutboundPorts", Form::Ports, r#""4567,4568""#, "ports that applications reach without the proxy"),
    row("proxyInit.kubeAPIServerPorts", Form::Ports, r#""443,6443""#, "ports of the API server, which control-plane pods reach without a proxy"),
    row("proxyInit.skipSubnets", Form::Networks, r#""""#, "networks whose connections reach applications without the proxy"),
    row("proxyInit.runAsRoot", Form::Bool, "false", "linkerd-init runs as root; otherwise its file's capabilities suffice"),
    row("proxyInit.runAsUser", Form::Number, "65534", "user of linkerd-init"),
    row("proxyInit.runAsGroup", Form::Number, "65534", "group of linkerd-init"),
    row("proxyInit.privileged", Form::Bool, "false", "linkerd-init is privileged"),
    row("proxyInit.closeWaitTimeoutSecs", Form::Number, "0", "kernel's timeout of CLOSE_WAIT, which needs a privileged linkerd-init; 0 leaves it"),
    idle("proxyInit.iptablesMode", Form::OneOf(&["nft", "plain", "legacy"]), r#""nft""#, "rules are set over netlink, without iptables"),
    idle("proxyInit.logLevel", Form::Text, r#""""#, "linkerd-init prints what it did or why not"),
    idle("proxyInit.logFormat", Form::Text, r#""""#, "linkerd-init prints what it did or why not"),
    row("proxyInit.image.name", Form::Text, r#""weft.dev/weft-init""#, "image of linkerd-init"),
    row("proxyInit.image.version", Form::Text, r#""""#, "its tag; linkerdVersion without it"),
    row("proxyInit.image.pullPolicy", Form::OneOf(&["", "Always", "IfNotPresent", "Never"]), r#""""#, "imagePullPolicy without it"),
    idle("proxyInit.xtMountPath", Form::Map, "null", "no lock file of iptables is needed"),
    idle("proxyInit.resources", Form::Map, "null", "linkerd-init ends at once and counts within the proxy's resources"),
    idle("proxyInit.capabilities", Form::Map, "null", "linkerd-init has NET_ADMIN and NET_RAW"),
    row("networkValidator.connectAddr", Form::Text, r#""""#, "address that linkerd-network-validator dials"),
    row("networkValidator.listenAddr", Form::Text, r#""""#, "address on which it must arrive"),
    row("networkValidator.timeout", Form::Duration, r#""10s""#, "for that"),
    idle("networkValidator.logLevel", Form::Text, r#""""#, "it prints what it found"),
    idle("networkValidator.logFormat", Form::Text, r#""""#, "it prints what it found"),
    idle("networkValidator.enableSecurityContext", Form::Bool, "true", "it always runs with the least rights"),
    row("debugContainer.image.name", Form::Text, r#""weft.dev/weft-debug""#, "image of the debug container, with tshark"),
    row("debugContainer.image.version", Form::Text, r#""""#, "its tag; linkerdVersion without it"),
    row("debugContainer.image.pullPolicy", Form::OneOf(&["", "Always", "IfNotPresent", "Never"]), r#""""#, "imagePullPolicy without it"),
];
