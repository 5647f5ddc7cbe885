//! The programs of `examples/shop` and of `bench/`: ordinary applications, as a user of the mesh would write them.
//!
//! They are a crate of their own so that they link nothing of the mesh: what they see of it is what any program sees,
//! names, sockets and statuses. Each role is a module with `Options` and `run`; [`SampleCommand`] is the choice among
//! them. Every role ends well on SIGTERM: it turns its readiness off, keeps serving for `--drain`, finishes what is
//! in flight and exits 0.

pub mod bench;
pub mod catalogue;
pub mod checkout;
pub mod import;
pub mod kv;
pub mod load;
pub mod mail;
pub mod snoop;
pub mod store;
pub mod web;

mod call;
mod error;
mod histogram;
mod lifecycle;
mod serve;
mod text;

pub use error::Error;

/// The sample programs. `weft sample ROLE --help` lists each one's flags; each flag is also an environment variable.
#[derive(clap::Subcommand, Debug)]
pub enum SampleCommand {
    /// The shop's page: HTTP/1.1, calls the catalogue (gRPC) and the checkout (HTTP)
    #[command(
        after_help = "Example:\n  weft sample web --listen 0.0.0.0:8080 --catalogue http://catalogue:50051 --checkout http://checkout:8080"
    )]
    Web(web::Options),
    /// What is on sale: gRPC, reads the store
    #[command(
        after_help = "Example:\n  weft sample catalogue --listen 0.0.0.0:50051 --health 0.0.0.0:8081 --store store:7000"
    )]
    Catalogue(catalogue::Options),
    /// Keys and values over a line protocol in which the server speaks first
    #[command(after_help = "Example:\n  weft sample store --listen 0.0.0.0:7000")]
    Store(store::Options),
    /// Takes orders: HTTP/1.1, writes the store and sends mail
    #[command(
        after_help = "Example:\n  weft sample checkout --listen 0.0.0.0:8080 --store store:7000 --mail http://mail:8025"
    )]
    Checkout(checkout::Options),
    /// Pretends to send mail: HTTP/1.1, keeps the last hundred
    #[command(
        after_help = "Example:\n  weft sample mail --listen 0.0.0.0:8025 --token-file /etc/mail-token/token"
    )]
    Mail(mail::Options),
    /// Fills the store and ends
    #[command(
        after_help = "Example:\n  weft sample import --store store:7000 --file /etc/shop/items.tsv --items 100"
    )]
    Import(import::Options),
    /// Sends requests at a fixed rate, or as fast as its connections allow, and prints a line every few seconds
    #[command(after_help = "Examples:\n  weft sample load --target http://web:8080/ --rate 20\n  \
                            weft sample load --target http://web:8080/api/items --rate 0 --connections 50 --requests 10000 --strict")]
    Load(load::Options),
    /// Tries to read the store without being allowed to, and says what happened
    #[command(after_help = "Example:\n  weft sample snoop --store store:7000 --every 5s")]
    Snoop(snoop::Options),
    /// Sends one command to the store and prints the answer
    #[command(
        after_help = "Examples:\n  weft sample kv --store store:7000 PING\n  weft sample kv --store store:7000 GET item/kettle"
    )]
    Kv(kv::Options),
    /// Answers every HTTP/1.1 request with the same bytes, as cheaply as possible
    #[command(after_help = "Example:\n  weft sample bench-server --listen 192.0.2.2:8080 --body 100")]
    BenchServer(bench::ServerOptions),
    /// Measures HTTP/1.1 keep-alive requests and prints one line of JSON
    #[command(
        after_help = "Example:\n  weft sample bench-client --to 192.0.2.2:8080 --connections 32 --duration 10s"
    )]
    BenchClient(bench::ClientOptions),
}

/// Runs one sample program to its end.
pub async fn run(command: SampleCommand) -> Result<(), Error> {
    match command {
        SampleCommand::Web(options) => web::run(options).await,
        SampleCommand::Catalogue(options) => catalogue::run(options).await,
        SampleCommand::Store(options) => store::run(options).await,
        SampleCommand::Checkout(options) => checkout::run(options).await,
        SampleCommand::Mail(options) => mail::run(options).await,
        SampleCommand::Import(options) => import::run(options).await,
        SampleCommand::Load(options) => load::run(options).await,
        SampleCommand::Snoop(options) => snoop::run(options).await,
        SampleCommand::Kv(options) => kv::run(options).await,
        SampleCommand::BenchServer(options) => bench::serve(options).await,
        SampleCommand::BenchClient(options) => bench::measure(options).await,
    }
}
