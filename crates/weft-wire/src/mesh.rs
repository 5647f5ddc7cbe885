//! `weft.dev.v1.Mesh`: what `linkerd2-proxy-api` cannot carry, between a weft proxy and a weft controller.
//!
//! Either side works without it: to a stock controller the service is unknown (`Unimplemented`), to a stock proxy it does
//! not matter. It is written by hand, so that no code generator is needed; fields are only ever added.
//!
//! ```proto
//! service Mesh {
//!   // Says for good whether a pod at an address is meshed, so that a missing identity need not be guessed about.
//!   rpc Confirm(ConfirmRequest) returns (ConfirmResponse) {}
//!   // Says what an outbound policy holds that linkerd2-proxy-api has no words for: filters, and where they stand.
//!   rpc Extensions(ExtensionsRequest) returns (ExtensionsResponse) {}
//!   // Hands over failures, so that they outlive the pod that saw them. Delivered at least once.
//!   rpc Report(ReportRequest) returns (ReportResponse) {}
//! }
//! ```

use crate::record::JournalEntry;
use linkerd2_proxy_api::{destination::WeightedAddr, meta::Metadata, net::TcpAddress, outbound::TrafficSpec};

pub const SERVICE_NAME: &str = "weft.dev.v1.Mesh";
const CONFIRM: &str = "/weft.dev.v1.Mesh/Confirm";
const REPORT: &str = "/weft.dev.v1.Mesh/Report";
const EXTENSIONS: &str = "/weft.dev.v1.Mesh/Extensions";

/// Entries of one report; a proxy sends more in several.
pub const REPORT_ENTRIES: usize = 64;

#[derive(Clone, PartialEq, prost::Message)]
pub struct ConfirmRequest {
    #[prost(message, optional, tag = "1")]
    pub addr: Option<TcpAddress>,
    /// The proxy's `DESTINATION_CONTEXT`.
    #[prost(string, tag = "2")]
    pub context_token: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum State {
    /// The controller does not know (yet): ask again.
    Unknown = 0,
    /// A proxy serves this address; `endpoint` says how to reach it.
    Meshed = 1,
    /// No proxy serves this address: plaintext is right.
    Unmeshed = 2,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ConfirmResponse {
    #[prost(enumeration = "State", tag = "1")]
    pub state: i32,
    /// With [`State::Meshed`]: the endpoint, identity included.
    #[prost(message, optional, tag = "2")]
    pub endpoint: Option<WeightedAddr>,
    /// `namespace/name` of the pod that holds the address.
    #[prost(string, tag = "3")]
    pub pod: String,
    /// Why, in words, for logs and explanations.
    #[prost(string, tag = "4")]
    pub reason: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ReportRequest {
    /// `namespace/name` of the reporting pod, as it calls itself. The controller records the identity of the connection
    /// beside it.
    #[prost(string, tag = "1")]
    pub pod: String,
    /// [`JournalEntry`] as JSON, one each.
    #[prost(string, repeated, tag = "2")]
    pub entries: Vec<String>,
    /// Entries that were dropped before this report.
    #[prost(uint64, tag = "3")]
    pub dropped: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ReportResponse {}

impl ReportRequest {
    pub fn new(pod: String, entries: &[JournalEntry], dropped: u64) -> Self {
        let entries = entries.iter().filter_map(|entry| serde_json::to_string(entry).ok()).collect();
        ReportRequest { pod, entries, dropped }
    }

    /// The entries that can be read, and how many cannot.
    pub fn read(&self) -> (Vec<JournalEntry>, usize) {
        let read: Vec<JournalEntry> = self
            .entries
            .iter()
            .take(REPORT_ENTRIES)
            .filter_map(|entry| serde_json::from_str(entry).ok())
            .collect();
        let unread = self.entries.len() - read.len();
        (read, unread)
    }
}

/// As `OutboundPolicies.Watch` is asked.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExtensionsRequest {
    #[prost(message, optional, tag = "1")]
    pub target: Option<TrafficSpec>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ExtensionsResponse {
    #[prost(message, repeated, tag = "1")]
    pub filters: Vec<Extension>,
}

/// A filter that stands in the policy as one of no kind. Conversions are in [`crate::extension`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Extension {
    #[prost(message, optional, tag = "1")]
    pub route: Option<Metadata>,
    /// The place of the rule in the route, from zero.
    #[prost(uint32, tag = "2")]
    pub rule: u32,
    /// The place of the backend in the rule, from one; zero: the filter is the rule's own.
    #[prost(uint32, tag = "3")]
    pub backend: u32,
    /// The place of the filter, from zero.
    #[prost(uint32, tag = "4")]
    pub filter: u32,
    #[prost(message, optional, tag = "5")]
    pub rewrite_url: Option<RewriteUrl>,
    #[prost(message, optional, tag = "6")]
    pub mirror: Option<Mirror>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RewriteUrl {
    #[prost(string, optional, tag = "1")]
    pub host: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub full_path: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub prefix: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Mirror {
    #[prost(message, optional, tag = "1")]
    pub backend: Option<Metadata>,
    /// `host:port`, as `Destination.Get` is asked for it.
    #[prost(string, tag = "2")]
    pub path: String,
    /// 0 to 1.
    #[prost(double, tag = "3")]
    pub fraction: f64,
}

pub mod client {
    //! The proxy's side.

    use super::{
        CONFIRM, ConfirmRequest, ConfirmResponse, EXTENSIONS, ExtensionsRequest, ExtensionsResponse, REPORT,
        ReportRequest, ReportResponse,
    };
    use tonic::{
        Request, Response, Status,
        codegen::{Body, Bytes, StdError, http::uri::PathAndQuery},
    };

    #[derive(Clone, Debug)]
    pub struct MeshClient<T> {
        inner: tonic::client::Grpc<T>,
    }

    impl<T> MeshClient<T>
    where
        T: tonic::client::GrpcService<tonic::body::Body>,
        T::Error: Into<StdError>,
        T::ResponseBody: Body<Data = Bytes> + Send + 'static,
        <T::ResponseBody as Body>::Error: Into<StdError> + Send,
    {
        pub fn new(inner: T) -> Self {
            MeshClient { inner: tonic::client::Grpc::new(inner) }
        }

        pub async fn confirm(
            &mut self,
            request: ConfirmRequest,
        ) -> Result<Response<ConfirmResponse>, Status> {
            self.unary(request, CONFIRM).await
        }

        pub async fn report(&mut self, request: ReportRequest) -> Result<Response<ReportResponse>, Status> {
            self.unary(request, REPORT).await
        }

        pub async fn extensions(
            &mut self,
            request: ExtensionsRequest,
        ) -> Result<Response<ExtensionsResponse>, Status> {
            self.unary(request, EXTENSIONS).await
        }

        async fn unary<Q, A>(&mut self, request: Q, path: &'static str) -> Result<Response<A>, Status>
        where
            Q: prost::Message + 'static,
            A: prost::Message + Default + 'static,
        {
            self.inner.ready().await.map_err(|e| Status::unavailable(e.into().to_string()))?;
            let codec = tonic_prost::ProstCodec::<Q, A>::default();
            self.inner.unary(Request::new(request), PathAndQuery::from_static(path), codec).await
        }
    }
}

pub mod server {
    //! The controller's side: implement [`Mesh`] and add a [`MeshServer`] to the router.

    use super::{
        CONFIRM, ConfirmRequest, ConfirmResponse, EXTENSIONS, ExtensionsRequest, ExtensionsResponse, REPORT,
        ReportRequest, ReportResponse,
    };
    use std::{
        convert::Infallible,
        sync::Arc,
        task::{Context, Poll},
    };
    use tonic::{
        Request, Response, Status,
        codegen::{Body, BoxFuture, Service, StdError, http},
        server::UnaryService,
    };

    #[tonic::async_trait]
    pub trait Mesh: Send + Sync + 'static {
        async fn confirm(
            &self,
            request: Request<ConfirmRequest>,
        ) -> Result<Response<ConfirmResponse>, Status>;
        async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status>;
        async fn extensions(
            &self,
            request: Request<ExtensionsRequest>,
        ) -> Result<Response<ExtensionsResponse>, Status>;
    }

    #[derive(Debug)]
    pub struct MeshServer<T> {
        inner: Arc<T>,
    }

    impl<T> MeshServer<T> {
        pub fn new(inner: T) -> Self {
            MeshServer { inner: Arc::new(inner) }
        }
    }

    impl<T> Clone for MeshServer<T> {
        fn clone(&self) -> Self {
            MeshServer { inner: self.inner.clone() }
        }
    }

    struct Confirm<T>(Arc<T>);
    impl<T: Mesh> UnaryService<ConfirmRequest> for Confirm<T> {
        type Response = ConfirmResponse;
        type Future = BoxFuture<Response<ConfirmResponse>, Status>;
        fn call(&mut self, request: Request<ConfirmRequest>) -> Self::Future {
            let inner = self.0.clone();
            Box::pin(async move { inner.confirm(request).await })
        }
    }

    struct Report<T>(Arc<T>);
    impl<T: Mesh> UnaryService<ReportRequest> for Report<T> {
        type Response = ReportResponse;
        type Future = BoxFuture<Response<ReportResponse>, Status>;
        fn call(&mut self, request: Request<ReportRequest>) -> Self::Future {
            let inner = self.0.clone();
            Box::pin(async move { inner.report(request).await })
        }
    }

    struct Extensions<T>(Arc<T>);
    impl<T: Mesh> UnaryService<ExtensionsRequest> for Extensions<T> {
        type Response = ExtensionsResponse;
        type Future = BoxFuture<Response<ExtensionsResponse>, Status>;
        fn call(&mut self, request: Request<ExtensionsRequest>) -> Self::Future {
            let inner = self.0.clone();
            Box::pin(async move { inner.extensions(request).await })
        }
    }

    impl<T, B> Service<http::Request<B>> for MeshServer<T>
    where
        T: Mesh,
        B: Body + Send + 'static,
        B::Error: Into<StdError> + Send + 'static,
    {
        type Response = http::Response<tonic::body::Body>;
        type Error = Infallible;
        type Future = BoxFuture<Self::Response, Infallible>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<B>) -> Self::Future {
            let inner = self.inner.clone();
            match request.uri().path() {
                CONFIRM => Box::pin(async move {
                    let mut grpc = tonic::server::Grpc::new(tonic_prost::ProstCodec::default());
                    Ok(grpc.unary(Confirm(inner), request).await)
                }),
                REPORT => Box::pin(async move {
                    let mut grpc = tonic::server::Grpc::new(tonic_prost::ProstCodec::default());
                    Ok(grpc.unary(Report(inner), request).await)
                }),
                EXTENSIONS => Box::pin(async move {
                    let mut grpc = tonic::server::Grpc::new(tonic_prost::ProstCodec::default());
                    Ok(grpc.unary(Extensions(inner), request).await)
                }),
                other => {
                    let status = Status::unimplemented(other.to_string());
                    Box::pin(async move { Ok(status.into_http()) })
                }
            }
        }
    }

    impl<T> tonic::server::NamedService for MeshServer<T> {
        const NAME: &'static str = super::SERVICE_NAME;
    }
}
