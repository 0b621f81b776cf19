//! `offshoot serve`: answers the OpenAI protocol over HTTP with one engine. Reads the options, starts engine, dispatcher
//! and listener, and ends them in order. `openai::protocol` says what a request means; `dispatch` decides when it runs.

pub mod dispatch;
mod engine_metrics;
mod generate;
mod keys;
mod leases;
mod listen;
mod metrics;
mod options;
mod page;
mod random;
mod reply;
mod routes;
mod server;
mod stream;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::error::{Error, Result};
use crate::figures::count;
use crate::interrupt::Interrupt;
use crate::launch::{Demand, Launch, ModelSource};
use crate::model::ModelFolder;
use crate::openai::batch::{name_of_model, system_fingerprint};
use crate::out;
use crate::tokenizer::Tokenizer;

use dispatch::Dispatcher;
use keys::ApiKeys;
pub use leases::LeaseLimits;
use leases::Leases;
use metrics::ServeMetrics;
pub use options::{ServeLimits, ServeOptions};
use server::Server;

/// Threads for connections: they write JSON, and leave the other cores to the engine.
const MOST_THREADS: usize = 8;

/// Serves until `interrupt` asks to stop and every request in progress is answered.
pub fn main(options: &ServeOptions, interrupt: &Interrupt) -> Result<ExitCode> {
    options.budget.check()?;
    let keys = ApiKeys::load(options.keys.as_deref())?;
    let address = SocketAddr::new(options.host, options.port);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.div_ceil(2).min(MOST_THREADS))
        .thread_name("http")
        .enable_all()
        .build()
        .map_err(Error::io("threads", "start"))?;
    // Bound first: a port in use is said at once, not when the model is loaded.
    let place = address.to_string();
    let listener = runtime.block_on(TcpListener::bind(address)).map_err(Error::io(&place, "listen at"))?;
    let address = listener.local_addr().map_err(Error::io(&place, "listen at"))?;
    if !address.ip().is_loopback() && keys.is_empty() {
        log::warn!("anybody who reaches {address} can use this server: no API keys are set (--api-keys)");
    }
    let connections = listen::room_for(options.limits.connections);

    let folder = ModelFolder::open(&options.model)?;
    let tokenizer = Arc::new(Tokenizer::load(&options.model)?);
    let launch = Launch {
        model: ModelSource::folder(&folder)?,
        tokenizer: Some(tokenizer.clone()),
        device: options.device,
        budget: options.budget,
        planner: options.plan.unwrap_or_default(),
        demand: Demand::unbounded(),
    };
    let engine = launch.start()?.engine;
    let leases = Arc::new(Leases::new(engine.clone(), options.limits.leases));
    let metrics = Arc::new(ServeMetrics::new());
    let (dispatcher, thread) =
        Dispatcher::start(engine.clone(), leases.clone(), options.limits.queue, metrics.clone())?;
    let names = match options.names.is_empty() {
        true => vec![name_of_model(&options.model)],
        false => options.names.clone(),
    };
    let server = Arc::new(Server {
        engine,
        dispatcher,
        leases,
        metrics,
        tokenizer,
        config: folder.config.clone(),
        names,
        keys,
        seed: options.seed,
        reasoning: options.reasoning,
        limits: options.limits.clone(),
        system_fingerprint: system_fingerprint(&options.model, options.budget.kv)?,
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        workers: Semaphore::new(cores),
    });
    announce(&server, address)?;
    let stop = interrupt.listen();
    runtime.block_on(listen::serve(listener, routes::routes(server, options.has_page), connections, stop));
    // The last client of the dispatcher is gone with the routes.
    thread.join().map_err(|_| Error::Internal("the dispatcher panicked".to_owned()))?;
    Ok(ExitCode::SUCCESS)
}

fn announce(server: &Server, address: SocketAddr) -> Result<()> {
    let facts = server.engine.facts();
    out::line(format_args!("model       {}", server.names.join(", ")))?;
    out::line(format_args!("device      {}", facts.device))?;
    let tokens = facts.pool_pages * facts.page_tokens;
    out::line(format_args!(
        "room        {} tokens of keys and values, {} branches at once",
        count(tokens as u64),
        count(facts.max_branches as u64)
    ))?;
    out::line(format_args!("serving     http://{address}/v1"))
}
