//! The table of codes. Append only: a code that was released keeps its number and its meaning.

use std::fmt;

/// Who has to act for the failure to go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The other end of the connection.
    Peer,
    /// The application beside the proxy that reports.
    Application,
    /// weft itself: a proxy or the controller.
    Mesh,
    /// Whoever wrote the configuration.
    Operator,
    /// What lies between two machines.
    Network,
}

/// Whether sending the same again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    Never,
    SameEndpoint,
    OtherEndpoint,
}

macro_rules! codes {
    ($( $name:ident = $id:literal, blame: $blame:ident, retry: $retry:ident, http: $http:literal, grpc: $grpc:ident,
        says: $says:literal, remedy: $remedy:literal; )*) => {
        /// A stable failure code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $(#[doc = $says] $name),* }

        impl Code {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// The stable identifier, such as `POL-001`.
            pub const fn id(self) -> &'static str { match self { $(Code::$name => $id),* } }
            /// The name in the table, such as `NoRuleAllows`.
            pub const fn name(self) -> &'static str { match self { $(Code::$name => stringify!($name)),* } }
            /// One sentence without a full stop, fit for a log line.
            pub const fn says(self) -> &'static str { match self { $(Code::$name => $says),* } }
            /// What to do about it.
            pub const fn remedy(self) -> &'static str { match self { $(Code::$name => $remedy),* } }
            pub const fn blame(self) -> Blame { match self { $(Code::$name => Blame::$blame),* } }
            pub const fn retry(self) -> Retry { match self { $(Code::$name => Retry::$retry),* } }
            /// The HTTP status a proxy answers with.
            pub const fn http(self) -> u16 { match self { $(Code::$name => $http),* } }
            /// The gRPC status code a proxy answers with.
            pub const fn grpc(self) -> u8 { match self { $(Code::$name => grpc::$grpc),* } }
        }
    };
}

/// gRPC status codes by name (<https://grpc.io/docs/guides/status-codes/>).
#[allow(non_upper_case_globals)]
mod grpc {
    pub(super) const InvalidArgument: u8 = 3;
    pub(super) const DeadlineExceeded: u8 = 4;
    pub(super) const NotFound: u8 = 5;
    pub(super) const PermissionDenied: u8 = 7;
    pub(super) const ResourceExhausted: u8 = 8;
    pub(super) const FailedPrecondition: u8 = 9;
    pub(super) const Aborted: u8 = 10;
    pub(super) const Internal: u8 = 13;
    pub(super) const Unavailable: u8 = 14;
}

codes! {
    // --- NET: what the kernel says about a connection
    ConnectRefused = "NET-001", blame: Peer, retry: OtherEndpoint, http: 502, grpc: Unavailable,
        says: "the peer's machine refused the connection",
        remedy: "Nothing listens on that address and port: check that the process runs and listens on 0.0.0.0 or the pod's address.";
    ConnectTimeout = "NET-002", blame: Network, retry: OtherEndpoint, http: 504, grpc: Unavailable,
        says: "no answer to the connection attempt",
        remedy: "Packets are dropped on the way: look for a NetworkPolicy or firewall between the two addresses, or a machine that is gone.";
    Unreachable = "NET-003", blame: Network, retry: OtherEndpoint, http: 502, grpc: Unavailable,
        says: "no route to the peer",
        remedy: "The address does not exist on this network; the endpoint may be stale. Run `weft explain` for the age of the answer.";
    ConnectionReset = "NET-004", blame: Peer, retry: OtherEndpoint, http: 502, grpc: Unavailable,
        says: "the peer reset the connection",
        remedy: "The process at the other end closed abruptly: look at its log for a crash or restart at that time.";
    NoOriginalDst = "NET-005", blame: Operator, retry: Never, http: 502, grpc: Unavailable,
        says: "the connection was not redirected, so its destination is unknown",
        remedy: "Something dialled the proxy's own port. Dial the service's address instead, or check the pod's redirect rules.";
    ConnectionLoop = "NET-006", blame: Operator, retry: Never, http: 508, grpc: Aborted,
        says: "the connection leads back to the proxy that made it",
        remedy: "The destination is the proxy's own port: correct the address the application dials.";
    NetworkIo = "NET-007", blame: Network, retry: OtherEndpoint, http: 502, grpc: Unavailable,
        says: "reading or writing failed",
        remedy: "The evidence names the system error; a peer that restarts or a network that drops is the usual origin.";
    NotOurAddress = "NET-008", blame: Network, retry: Never, http: 502, grpc: Unavailable,
        says: "the connection was meant for an address that is not this pod's",
        remedy: "An endpoint or route points at the wrong machine: compare the address with the pod's.";

    // --- TLS
    HandshakeTimeout = "TLS-001", blame: Peer, retry: OtherEndpoint, http: 504, grpc: Unavailable,
        says: "the TLS handshake did not finish in time",
        remedy: "The peer accepted the connection but did not answer the handshake; it may be starved of CPU. `weft explain` shows stalls at both ends.";
    HandshakeEof = "TLS-002", blame: Peer, retry: OtherEndpoint, http: 502, grpc: Unavailable,
        says: "the peer closed the connection during the TLS handshake",
        remedy: "The peer does not serve this name, or has no certificate yet: check that the pod's proxy is ready and the identity is its own.";
    PeerNotTls = "TLS-003", blame: Peer, retry: Never, http: 502, grpc: Unavailable,
        says: "the peer does not speak TLS",
        remedy: "Discovery calls this endpoint meshed but no proxy answers there: check the pod's injection and its skipped ports.";
    CertificateUntrusted = "TLS-004", blame: Operator, retry: Never, http: 502, grpc: Unavailable,
        says: "the peer's certificate is not signed by a trust anchor known here",
        remedy: "The two proxies have different trust anchors: compare them with `weft check`, and keep the old anchor in the bundle while rotating.";
    CertificateExpired = "TLS-005", blame: Mesh, retry: Never, http: 502, grpc: Unavailable,
        says: "the peer's certificate is outside its validity period",
        remedy: "The peer could not renew, or the two clocks differ: the evidence shows the period and this machine's clock.";
    NoClientCertificate = "TLS-006", blame: Peer, retry: Never, http: 403, grpc: PermissionDenied,
        says: "the client presented no certificate where one is required",
        remedy: "Only meshed clients may connect to this port: inject the client, or call the application's own port.";
    ForeignServerName = "TLS-007", blame: Peer, retry: Never, http: 502, grpc: Unavailable,
        says: "the client asked for a server name that is not this proxy's",
        remedy: "The client holds another identity for this address: an endpoint is stale, or an address was reused.";
    DetectTimeout = "TLS-008", blame: Peer, retry: Never, http: 504, grpc: DeadlineExceeded,
        says: "the client did not send enough to tell its protocol in time",
        remedy: "Zero bytes mean a silent client: look for a stall in the client's proxy. Some bytes mean a protocol in which the server speaks first: mark the port opaque.";
    ClientSilent = "TLS-009", blame: Peer, retry: Never, http: 502, grpc: Unavailable,
        says: "the client closed without sending a byte",
        remedy: "Usually a load balancer's or port scanner's probe; nothing to do unless callers complain.";
    PartialHello = "TLS-010", blame: Peer, retry: Never, http: 502, grpc: Unavailable,
        says: "the client closed in the middle of its ClientHello",
        remedy: "The client gave up or was stopped while it connected: look at its log at that time.";
    HandshakeFailed = "TLS-011", blame: Peer, retry: OtherEndpoint, http: 502, grpc: Unavailable,
        says: "the TLS handshake failed",
        remedy: "The evidence holds the TLS alert; versions older than 1.3 and foreign certificates are the usual origin.";
    PlaintextOnOwnPort = "TLS-012", blame: Peer, retry: Never, http: 403, grpc: PermissionDenied,
        says: "the client sends plaintext to the proxy's own port",
        remedy: "Only meshed proxies may dial the proxy's port, over TLS: dial the application's port, or inject the client.";
    HandshakeAlert = "TLS-013", blame: Peer, retry: OtherEndpoint, http: 502, grpc: Unavailable,
        says: "the peer ended the TLS handshake with an alert",
        remedy: "The evidence names the alert: it is the peer's reason. Look for TLS versions older than 1.3, or at the peer's log.";
    NoServerName = "TLS-014", blame: Peer, retry: Never, http: 502, grpc: Unavailable,
        says: "the client's TLS names no server where one is needed",
        remedy: "The client is no mesh proxy, or an old TLS library: it must send a server name (SNI).";

    // --- IDN: who is who
    IdentityMismatch = "IDN-001", blame: Mesh, retry: OtherEndpoint, http: 502, grpc: Unavailable,
        says: "the peer proved another identity than discovery promised",
        remedy: "The address belongs to another workload now; the answer is asked for again. If it stays, compare `weft diagnostics endpoints` with the pods.";
    IdentityUnknown = "IDN-002", blame: Mesh, retry: SameEndpoint, http: 502, grpc: Unavailable,
        says: "the identity of an in-cluster address is not known yet, and plaintext is not allowed to guess",
        remedy: "The controller has not confirmed whether this pod is meshed: check that the controller runs and knows the pod.";
    IdentityRequired = "IDN-003", blame: Operator, retry: Never, http: 502, grpc: Unavailable,
        says: "the required identity is not the endpoint's",
        remedy: "Correct the service's selector or mesh what it selects; or take back what requires it: the `l5d-require-id` header, or the annotation that the evidence names.";
    NoCertificateYet = "IDN-004", blame: Mesh, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "this proxy has no certificate yet",
        remedy: "The identity service has not answered: the proxy's log and `/ready?verbose` say what it waits for.";
    CertifyRefused = "IDN-005", blame: Operator, retry: SameEndpoint, http: 503, grpc: FailedPrecondition,
        says: "the identity service refused to sign",
        remedy: "The evidence holds its reason: most often the token's ServiceAccount is not the identity asked for.";
    TokenRejected = "IDN-006", blame: Operator, retry: SameEndpoint, http: 503, grpc: FailedPrecondition,
        says: "the workload's token was not accepted",
        remedy: "The token is expired, for another audience or of another cluster: check the projected volume of the pod.";
    IssuerUnusable = "IDN-007", blame: Operator, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "the issuer certificate cannot be used to sign",
        remedy: "Replace the Secret linkerd-identity-issuer by a P-256 issuer that is valid and chains to a trust anchor.";
    MeshedBefore = "IDN-008", blame: Mesh, retry: SameEndpoint, http: 502, grpc: Unavailable,
        says: "this workload was meshed before and is now reported without identity; it is not dialled in plaintext",
        remedy: "The controller lost the pod's identity: it is asked again. If it stays, look at the controller's view of the pod.";
    AnchorsUnusable = "IDN-009", blame: Operator, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "the file of trust anchors cannot be used",
        remedy: "Those in force stay so. The evidence names the file and what is wrong: every block must be a certificate, and there must be one.";
    NotProvable = "IDN-010", blame: Operator, retry: Never, http: 400, grpc: InvalidArgument,
        says: "no token can prove the identity of this ExternalWorkload",
        remedy: "Set spec.meshTLS.identity to that of a ServiceAccount in its own namespace, as the evidence spells it; or to a spiffe:// ID, which a SPIRE agent on the machine proves.";

    // --- POL: authorization
    NoRuleAllows = "POL-001", blame: Peer, retry: Never, http: 403, grpc: PermissionDenied,
        says: "no rule allows this caller to reach this workload",
        remedy: "Run `weft explain CALLER WORKLOAD`: allow the identity it prints in an AuthorizationPolicy, or correct the caller's account.";
    PlaintextRefused = "POL-002", blame: Peer, retry: Never, http: 403, grpc: PermissionDenied,
        says: "the caller has no identity and the rules of this workload require one",
        remedy: "Inject the caller, or allow its network by a NetworkAuthentication. If the caller is meshed, its proxy holds an outdated answer: `weft explain` shows its age.";
    PolicyInvalid = "POL-003", blame: Mesh, retry: Never, http: 500, grpc: Internal,
        says: "the policy received for this port cannot be read",
        remedy: "The evidence names the field. Correct the Server or route it comes from; until then the port refuses everything.";
    PermitWithdrawn = "POL-004", blame: Operator, retry: Never, http: 403, grpc: PermissionDenied,
        says: "a policy change withdrew the permission of an open connection",
        remedy: "Intended, unless the change was not: the journal names the object that changed.";
    DefaultDenied = "POL-005", blame: Operator, retry: Never, http: 403, grpc: PermissionDenied,
        says: "no Server selects this port and the default policy denies",
        remedy: "Add a Server and an AuthorizationPolicy for the port, or change config.linkerd.io/default-inbound-policy.";
    EgressDenied = "POL-006", blame: Operator, retry: Never, http: 403, grpc: PermissionDenied,
        says: "the outbound policy forbids this destination",
        remedy: "The Service does not define this port, or an EgressNetwork denies it: correct the address or the policy.";
    TcpNotHttpRoute = "POL-007", blame: Operator, retry: Never, http: 403, grpc: PermissionDenied,
        says: "this port only serves HTTP and the caller sent something else",
        remedy: "Correct the Server's proxyProtocol, or mark the port opaque.";

    // --- RTE: routing
    NoRouteMatches = "RTE-001", blame: Operator, retry: Never, http: 404, grpc: NotFound,
        says: "no route matches the request",
        remedy: "Add a rule for the path, or a default rule: the evidence lists the routes that were tried.";
    NoBackend = "RTE-002", blame: Operator, retry: Never, http: 503, grpc: Unavailable,
        says: "the matching route has no usable backend",
        remedy: "The backendRef names a Service or port that does not exist.";
    FailureInjected = "RTE-003", blame: Operator, retry: Never, http: 500, grpc: Internal,
        says: "a fault filter of the route answered",
        remedy: "Intended: remove the filter from the route to stop it.";
    FilterUnknown = "RTE-004", blame: Operator, retry: Never, http: 500, grpc: Internal,
        says: "the route asks for a filter that this proxy does not know",
        remedy: "Use a supported filter, or update the proxy.";
    BackendInvalid = "RTE-005", blame: Operator, retry: Never, http: 502, grpc: Unavailable,
        says: "the matching route's backend cannot be read",
        remedy: "The evidence names the field; correct the route.";

    // --- UPS: the upstream, as a whole
    NoEndpoints = "UPS-001", blame: Operator, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "the service has no ready endpoints",
        remedy: "No pod behind the service is ready: `kubectl get pods` with the service's selector.";
    ServiceUnknown = "UPS-002", blame: Operator, retry: Never, http: 503, grpc: Unavailable,
        says: "the service does not exist",
        remedy: "Check the name, the namespace and the port.";
    Unresolved = "UPS-003", blame: Mesh, retry: SameEndpoint, http: 504, grpc: Unavailable,
        says: "discovery has not answered for this destination",
        remedy: "The controller does not answer this proxy: see CTL-001 and CTL-002 in the chain.";
    AllEndpointsFailing = "UPS-004", blame: Peer, retry: SameEndpoint, http: 504, grpc: Unavailable,
        says: "no endpoint of the service could be connected to",
        remedy: "The evidence counts the endpoints by failure; the chain holds the last one.";
    BreakersOpen = "UPS-005", blame: Application, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "the circuit breaker of every endpoint is open",
        remedy: "The application failed repeatedly; it is probed and taken back by itself. Look at its own errors.";
    UpstreamReset = "UPS-006", blame: Peer, retry: OtherEndpoint, http: 502, grpc: Unavailable,
        says: "the upstream ended the connection before a response",
        remedy: "The application or its proxy restarted or crashed while the request was under way.";
    UpstreamGoaway = "UPS-007", blame: Peer, retry: OtherEndpoint, http: 503, grpc: Unavailable,
        says: "the upstream went away before it took the request",
        remedy: "A graceful restart; the request could not be sent again because its body was partly sent.";
    UpstreamNotHttp = "UPS-008", blame: Peer, retry: Never, http: 502, grpc: Unavailable,
        says: "the upstream's answer is not HTTP",
        remedy: "Mark the port opaque if it is no HTTP port.";
    ResponseTimeout = "UPS-009", blame: Application, retry: OtherEndpoint, http: 504, grpc: DeadlineExceeded,
        says: "no response within the route's timeout",
        remedy: "The application is slow, or the timeout too short.";
    AppRefused = "UPS-010", blame: Application, retry: OtherEndpoint, http: 502, grpc: Unavailable,
        says: "the application beside the server's proxy refuses connections",
        remedy: "The pod runs but nothing listens on that port: check the application's log and the port it listens on.";
    AppConnectTimeout = "UPS-011", blame: Application, retry: OtherEndpoint, http: 504, grpc: Unavailable,
        says: "the application beside the server's proxy does not accept connections",
        remedy: "The application's listen queue is full or it is stopped: check its load.";
    AppClosed = "UPS-012", blame: Application, retry: OtherEndpoint, http: 502, grpc: Unavailable,
        says: "the application closed the connection before a response",
        remedy: "The application crashed or cut the request: check its log at that time.";
    AppNotHttp = "UPS-013", blame: Application, retry: Never, http: 502, grpc: Unavailable,
        says: "the application's answer is not HTTP",
        remedy: "Mark the port opaque if it is no HTTP port.";
    DiscoveryRefused = "UPS-014", blame: Operator, retry: Never, http: 500, grpc: Internal,
        says: "the controller refuses to resolve this destination",
        remedy: "The evidence holds its answer; the name or port is not one the controller can serve.";
    PeerReported = "UPS-015", blame: Peer, retry: Never, http: 502, grpc: Unavailable,
        says: "the peer's proxy reported a failure",
        remedy: "The evidence holds its words: look at the peer's proxy, at its policy, and at the application behind it.";

    ResponseHeadersTimeout = "UPS-016", blame: Application, retry: OtherEndpoint, http: 504, grpc: DeadlineExceeded,
        says: "the server did not begin to answer within the route's response timeout",
        remedy: "The time began with the request's last byte: the application is slow, or the timeout too short.";
    StreamIdle = "UPS-017", blame: Application, retry: Never, http: 504, grpc: DeadlineExceeded,
        says: "nothing came within the route's idle timeout",
        remedy: "The application paused in the middle of its answer, or the client in the middle of its request; a stream that is quiet by nature needs a longer idle timeout.";
    DiscoveryFailing = "UPS-018", blame: Mesh, retry: SameEndpoint, http: 504, grpc: Unavailable,
        says: "the controller answers questions about this destination with an error",
        remedy: "The chain holds the controller's error: look at its log and at its own dependencies, first the Kubernetes API.";
    NameNotKnown = "UPS-019", blame: Operator, retry: Never, http: 500, grpc: Internal,
        says: "the controller has no answer for this name",
        remedy: "Only names of services and of their pods can be asked for: check the name and its suffix.";
    DiscoveryUnready = "UPS-020", blame: Operator, retry: SameEndpoint, http: 500, grpc: Internal,
        says: "the controller cannot resolve this destination in its present state",
        remedy: "The chain holds its words: most often an address that two pods claim, or a pod that has no such address yet.";

    // --- PRO: protocol
    BadRequest = "PRO-001", blame: Peer, retry: Never, http: 400, grpc: InvalidArgument,
        says: "the request is not valid HTTP",
        remedy: "The evidence names what is wrong; ambiguous framing is refused rather than repaired.";
    HeadersTooLarge = "PRO-002", blame: Peer, retry: Never, http: 431, grpc: ResourceExhausted,
        says: "the request's headers exceed the limit",
        remedy: "The evidence names the limit in bytes; send less, or raise the limit.";
    HeaderTimeout = "PRO-003", blame: Peer, retry: Never, http: 408, grpc: DeadlineExceeded,
        says: "the request's headers did not arrive in time",
        remedy: "A slow or stopped client.";
    TransportHeaderMissing = "PRO-004", blame: Peer, retry: Never, http: 502, grpc: Unavailable,
        says: "a direct connection without a transport header",
        remedy: "Only proxies may dial the proxy's own inbound port: dial the application's port.";
    TransportHeaderInvalid = "PRO-005", blame: Peer, retry: Never, http: 502, grpc: Unavailable,
        says: "the transport header cannot be read",
        remedy: "The peer is no mesh proxy, or of an incompatible version.";
    H2Protocol = "PRO-006", blame: Peer, retry: Never, http: 502, grpc: Internal,
        says: "the peer broke the HTTP/2 protocol",
        remedy: "The evidence holds the HTTP/2 error code.";
    TransportNotOffered = "PRO-007", blame: Peer, retry: Never, http: 502, grpc: Unavailable,
        says: "the client did not offer to send a transport header",
        remedy: "Only proxies may dial the proxy's own port, and they negotiate the header (ALPN `transport.l5d.io/v1`): the client's answer about this endpoint may be outdated.";
    TransportHeaderLong = "PRO-008", blame: Peer, retry: Never, http: 502, grpc: Unavailable,
        says: "the transport header is longer than allowed",
        remedy: "The peer is no mesh proxy, or of an incompatible version.";
    TransportHeaderLate = "PRO-009", blame: Peer, retry: Never, http: 504, grpc: DeadlineExceeded,
        says: "the transport header did not arrive in time",
        remedy: "The client's proxy stalled after the handshake: `weft explain` shows stalls at both ends.";

    // --- LIM: limits
    Overloaded = "LIM-001", blame: Mesh, retry: OtherEndpoint, http: 503, grpc: Unavailable,
        says: "too many requests in flight in this proxy",
        remedy: "The application answers slower than requests arrive: add replicas, or raise the limit.";
    RateLimited = "LIM-002", blame: Peer, retry: SameEndpoint, http: 429, grpc: ResourceExhausted,
        says: "the rate limit of this workload is used up",
        remedy: "Send less, or raise the HTTPLocalRateLimitPolicy.";
    QueueTimeout = "LIM-003", blame: Mesh, retry: OtherEndpoint, http: 504, grpc: Unavailable,
        says: "waited too long for the HTTP/2 connection to this endpoint to take the request",
        remedy: "Others are queued before it: the endpoint ends none of the streams that it allows to be open at a time, or this proxy is short of CPU; its stalls and throttling are in `/metrics`.";
    Draining = "LIM-004", blame: Operator, retry: OtherEndpoint, http: 503, grpc: Unavailable,
        says: "the proxy is shutting down",
        remedy: "Intended: the pod is being deleted.";
    FrameFlood = "LIM-005", blame: Peer, retry: Never, http: 503, grpc: ResourceExhausted,
        says: "the client sends HTTP/2 frames that cost work and ask for nothing",
        remedy: "An attack or a broken client: the evidence counts its streams, resets and other frames, and the record holds its address.";
    ConnectsQueued = "LIM-006", blame: Mesh, retry: OtherEndpoint, http: 503, grpc: Unavailable,
        says: "waited too long to begin connecting to this peer",
        remedy: "Other connects to it came first and took their time: the peer answers handshakes slowly, or this proxy is short of CPU; its stalls and throttling are in `/metrics`.";
    ReaderStalled = "LIM-007", blame: Peer, retry: Never, http: 408, grpc: DeadlineExceeded,
        says: "the client took nothing of its answer for too long",
        remedy: "The client asked and does not read: it hangs, or means harm. If it pauses on purpose, raise `LINKERD2_PROXY_WEFT_CLIENT_STALL_TIMEOUT`.";

    // --- CFG: configuration
    BadVariable = "CFG-001", blame: Operator, retry: Never, http: 500, grpc: Internal,
        says: "an environment variable has an unusable value",
        remedy: "The evidence names the variable, its value and the form expected.";
    BadManifest = "CFG-002", blame: Operator, retry: Never, http: 400, grpc: InvalidArgument,
        says: "a manifest cannot be read",
        remedy: "Correct what the evidence names; for a file, it holds the line.";
    NoCommand = "CFG-003", blame: Operator, retry: Never, http: 400, grpc: InvalidArgument,
        says: "a container has only an image, and images are not run on one machine",
        remedy: "Give the container a `command`, or the pod the annotation `weft.dev/command.CONTAINER: \"program arg …\"`.";
    KindNotEnforced = "CFG-004", blame: Operator, retry: Never, http: 400, grpc: InvalidArgument,
        says: "objects of this kind are not enforced here, so accepting one would be a false promise",
        remedy: "Remove the object from the files given to `weft up`.";
    BadFlag = "CFG-005", blame: Operator, retry: Never, http: 400, grpc: InvalidArgument,
        says: "a flag has an unusable value",
        remedy: "See `--help` for the form expected.";
    BadState = "CFG-006", blame: Operator, retry: Never, http: 500, grpc: Internal,
        says: "the state directory cannot be read or written",
        remedy: "The evidence holds the system error: free space or correct permissions; `weft down` removes what is left.";
    BadValue = "CFG-007", blame: Operator, retry: Never, http: 400, grpc: InvalidArgument,
        says: "an installation's value has an unknown name or an unusable form",
        remedy: "The evidence names the value and what was expected; docs/values.md lists all of them.";
    AlreadyInstalled = "CFG-008", blame: Operator, retry: Never, http: 409, grpc: FailedPrecondition,
        says: "weft's control plane is installed already",
        remedy: "Use `weft upgrade` to change it, `weft uninstall` to remove it.";
    OtherControlPlane = "CFG-009", blame: Operator, retry: Never, http: 409, grpc: FailedPrecondition,
        says: "the namespace holds another control plane",
        remedy: "`weft install --replace` takes over its identity and its settings; without it, choose another namespace with `-L`.";
    NotInstalled = "CFG-010", blame: Operator, retry: Never, http: 404, grpc: NotFound,
        says: "weft's control plane is not installed",
        remedy: "Use `weft install`; if it stands in another namespace than linkerd, name that with `-L`.";
    StillInUse = "CFG-011", blame: Operator, retry: Never, http: 409, grpc: FailedPrecondition,
        says: "pods of the mesh still run",
        remedy: "Run `weft uninject` on their workloads first, or go on with `--force`: their proxies then lose the controller.";
    NotInjectable = "CFG-012", blame: Operator, retry: Never, http: 400, grpc: InvalidArgument,
        says: "a workload cannot be injected",
        remedy: "The evidence says why: remove that obstacle, or set `linkerd.io/inject: disabled` on it.";

    // --- CTL: the control plane
    ControllerUnreachable = "CTL-001", blame: Mesh, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "the controller cannot be reached",
        remedy: "The chain says at which step: name, TCP or TLS. Check that the controller runs and nothing blocks its port.";
    ControllerSilent = "CTL-002", blame: Mesh, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "the controller accepted the question and did not answer",
        remedy: "The controller is overloaded or stuck: look at its log and metrics.";
    ControllerRefused = "CTL-003", blame: Mesh, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "the controller answered with an error",
        remedy: "The evidence holds its status and message.";
    AnswerInvalid = "CTL-004", blame: Mesh, retry: SameEndpoint, http: 500, grpc: Internal,
        says: "the controller's answer cannot be read",
        remedy: "The evidence names the field: controller and proxy may be of incompatible versions.";
    WatchLost = "CTL-005", blame: Mesh, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "the watch on the Kubernetes API was lost",
        remedy: "It is listed again by itself; if it stays, check the API server and the controller's permissions.";

    ApiRequestFailed = "CTL-006", blame: Mesh, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "a request to the Kubernetes API failed",
        remedy: "The chain says why: check the API server's address, this account's permissions, and the object named.";
    ControllerRejects = "CTL-007", blame: Operator, retry: Never, http: 503, grpc: Unavailable,
        says: "the controller calls the question invalid",
        remedy: "The evidence holds its message: the name or port asked for is not one that it can serve.";
    ControllerUnready = "CTL-008", blame: Operator, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "the controller answers that a condition for an answer is not met",
        remedy: "The evidence holds its message.";
    ControllerUnavailable = "CTL-009", blame: Mesh, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "the controller answers that it is unavailable",
        remedy: "It is starting, stopping or overloaded: look at its log and its readiness.";
    ControllerHungUp = "CTL-010", blame: Mesh, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "the controller ended the stream without an answer",
        remedy: "A controller that restarts does so; if it stays, look at its log, and at what lies between it and this proxy.";

    // --- NOD: one machine
    StartFailed = "NOD-001", blame: Operator, retry: SameEndpoint, http: 500, grpc: Internal,
        says: "a container could not be started",
        remedy: "The evidence holds the system error: a missing program or working directory is the usual origin.";
    VolumeMissing = "NOD-002", blame: Operator, retry: SameEndpoint, http: 500, grpc: Internal,
        says: "a volume's source does not exist",
        remedy: "Create the ConfigMap, Secret or directory that the evidence names.";
    ProbeFailed = "NOD-003", blame: Application, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "a probe failed",
        remedy: "The evidence holds the probe's answer; check the application's log.";
    HostUnable = "NOD-004", blame: Operator, retry: Never, http: 500, grpc: Internal,
        says: "this machine does not allow what a mesh needs",
        remedy: "The evidence names the step and the setting to change.";
    AlreadyRunning = "NOD-005", blame: Operator, retry: Never, http: 409, grpc: FailedPrecondition,
        says: "a mesh of this name runs already",
        remedy: "Use it, or end it with `weft down`.";
    NotRunning = "NOD-006", blame: Operator, retry: Never, http: 404, grpc: NotFound,
        says: "no mesh of this name runs here",
        remedy: "Start one with `weft up DIR`.";
    RedirectForbidden = "NOD-007", blame: Operator, retry: Never, http: 500, grpc: Internal,
        says: "the kernel does not let this process set the rules that redirect traffic to the proxy",
        remedy: "Grant the capabilities NET_ADMIN and NET_RAW (linkerd-init has them as injected; a pod security level may take them away), or use the CNI plugin, which needs no capability in the pod.";
    RedirectUnsupported = "NOD-008", blame: Operator, retry: Never, http: 500, grpc: Internal,
        says: "no way to redirect traffic to the proxy works on this machine",
        remedy: "The chain says what each way failed with. Load the kernel modules nf_tables, nft_chain_nat and nft_redir (or iptable_nat, xt_REDIRECT and, for IPv6, ip6table_nat), or install iptables and name it with --firewall-bin-path.";
    NetworkNotRedirected = "NOD-009", blame: Operator, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "this pod's connections do not lead to its proxy's port, so that it would run outside the mesh",
        remedy: "The CNI plugin did not set this pod's rules: check that weft-cni runs on this node and stands in the first CNI configuration, then delete the pod.";
    NamespacesRefused = "NOD-010", blame: Operator, retry: Never, http: 500, grpc: PermissionDenied,
        says: "this machine does not let an ordinary user make the namespaces that a mesh runs in",
        remedy: "The evidence names the setting, its value and the command that changes it; `sudo weft up` needs no change.";
    UserNotMapped = "NOD-011", blame: Operator, retry: Never, http: 400, grpc: FailedPrecondition,
        says: "a container asks for a user or group that `weft up` cannot give without root",
        remedy: "Leave the fields that the evidence names out or set them to 0, which is whoever ran `weft up`; or run `sudo weft up`.";

    // --- CLU: between clusters
    NotAGateway = "CLU-001", blame: Operator, retry: Never, http: 404, grpc: NotFound,
        says: "the caller wants to be led to another service and this proxy is no gateway",
        remedy: "The caller's link points at a pod that is not a gateway: compare its address with the gateway's Service.";
    GatewayNameForeign = "CLU-002", blame: Operator, retry: Never, http: 404, grpc: NotFound,
        says: "the name asked for is not under a suffix that this gateway serves",
        remedy: "The evidence holds the name and the suffixes: correct the mirrored service's name, or the gateway's suffixes.";
    GatewayNameUnknown = "CLU-003", blame: Operator, retry: Never, http: 404, grpc: NotFound,
        says: "the gateway's controller does not know the name asked for",
        remedy: "The service was deleted in the gateway's cluster, or the name or port is wrong: the evidence holds the controller's words.";
    GatewayNoTarget = "CLU-004", blame: Operator, retry: Never, http: 404, grpc: NotFound,
        says: "the name asked for has neither an address nor endpoints behind this gateway",
        remedy: "The Service in the gateway's cluster is headless or empty: check its type and its pods.";
    GatewayLoop = "CLU-005", blame: Operator, retry: Never, http: 508, grpc: Aborted,
        says: "the request came through this gateway before",
        remedy: "Two clusters mirror the same service to each other: remove one of the mirrored copies.";
    GatewayNoName = "CLU-006", blame: Peer, retry: Never, http: 404, grpc: NotFound,
        says: "the request names no host, so that a gateway cannot tell where it should go",
        remedy: "The caller must send an authority or Host.";

    // --- BUG: our own
    Invariant = "BUG-001", blame: Mesh, retry: Never, http: 500, grpc: Internal,
        says: "weft broke one of its own invariants",
        remedy: "Please report it with the evidence.";
    Stalled = "BUG-002", blame: Mesh, retry: SameEndpoint, http: 503, grpc: Unavailable,
        says: "a worker of the proxy did not run for a while",
        remedy: "The evidence holds how long: raise the pod's CPU limit if it is throttled, otherwise report it.";
}

impl Code {
    /// Finds a code by identifier (`POL-001`) or name (`NoRuleAllows`), whatever the case.
    pub fn find(text: &str) -> Option<Code> {
        Self::ALL
            .iter()
            .copied()
            .find(|c| c.id().eq_ignore_ascii_case(text) || c.name().eq_ignore_ascii_case(text))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

impl Blame {
    pub const fn as_str(self) -> &'static str {
        match self {
            Blame::Peer => "peer",
            Blame::Application => "application",
            Blame::Mesh => "mesh",
            Blame::Operator => "operator",
            Blame::Network => "network",
        }
    }
}

impl Retry {
    pub const fn as_str(self) -> &'static str {
        match self {
            Retry::Never => "never",
            Retry::SameEndpoint => "same-endpoint",
            Retry::OtherEndpoint => "other-endpoint",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_unique_and_whole() {
        let mut ids = BTreeSet::new();
        for code in Code::ALL {
            assert!(ids.insert(code.id()), "{} stands twice", code.id());
            let (family, number) = code.id().split_once('-').expect("family and number");
            assert!(family.len() == 3 && number.len() == 3, "{}", code.id());
            assert!(code.remedy().len() > 10 && code.remedy().ends_with('.'), "{}: remedy", code.id());
            assert!(!code.says().ends_with('.'), "{}: says", code.id());
            assert!((400..600).contains(&code.http()), "{}: status", code.id());
            assert_eq!(Code::find(&code.id().to_lowercase()), Some(*code));
        }
    }
}
