//! `offshoot serve`: answers the OpenAI protocol over HTTP with a model that generates, one that scores, or both. Reads
//! the options, starts engines, dispatcher and listener, and ends them in order. `openai::protocol` says what a request
//! means; `dispatch` decides when it runs.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod attempts;
mod batches;
mod counted;
pub mod dispatch;
mod engine_metrics;
mod exchange;
mod file_routes;
mod form_permits;
mod generate;
mod head_refusals;
mod in_path;
mod kept_branches;
mod keys;
mod leases;
mod listen;
mod metrics;
mod models;
mod names;
mod options;
mod page;
mod pooling;
mod random;
mod recent;
mod reply;
mod responses;
mod rollout;
mod routes;
mod server;
mod store;
mod stream;
mod ticks;
mod valuing;

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use offshoot_core::error::{Error, Result};
use offshoot_core::figures::count;
use offshoot_core::input;
use offshoot_core::interrupt::Interrupt;
use offshoot_core::json;
use offshoot_core::out;
use offshoot_core::setting::{API_KEYS, DATA, ROLLOUT_KEYS};
use offshoot_engine::{EngineFacts, EngineHandle, PinnedPrefix};
use offshoot_launch::{Devices, ModelSource, in_bytes};
use offshoot_model::ModelFolder;
use offshoot_openai::protocol::chat_beginning;
use offshoot_text::{AddSpecial, Tokenizer};

use batches::{BatchEngine, Batches, now};
use dispatch::Dispatcher;
pub use exchange::{AllowedOrigin, AllowedOrigins};
use keys::ApiKeys;
pub use leases::LeaseLimits;
use leases::Leases;
use metrics::ServeMetrics;
use models::{GeneratorParts, Models};
use names::ServedNames;
pub use options::{AdapterFolder, ServeLimits, ServeOptions};
use pooling::ServedScorer;
pub use rollout::RolloutOptions;
use rollout::{Admission, Rollout, RolloutFacts};
use server::{LARGE_BODIES, Server};
use store::Store;
use ticks::Ticks;

/// The folder of files and batches, if none is chosen.
const USUAL_DATA: &str = "runs/serve";
/// Bytes that a weight update may have beside the model's numbers.
const MORE_OF_UPDATE: usize = 64 << 20;
/// Threads for connections: they write JSON, and leave the other cores to the engine.
const MOST_THREADS: usize = 8;

/// Serves until `interrupt` asks to stop and every request in progress is answered.
pub fn main(options: &ServeOptions, interrupt: &Interrupt) -> Result<ExitCode> {
    options.engine.budget.check()?;
    let operators = options.rollout.as_ref().map(|rollout| rollout.keys.as_deref());
    let keys = ApiKeys::load(options.keys.as_deref(), operators)?;
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
        log::warn!("anybody who reaches {address} can use this server: no API keys are set ({API_KEYS})");
    }
    if !address.ip().is_loopback() && options.rollout.is_some() && keys.have_no_operator() {
        log::warn!(
            "anybody who reaches {address} can pause this server and change its weights: no keys of operators \
                    are set ({ROLLOUT_KEYS})"
        );
    }
    let connections = listen::room_for(options.limits.connections);

    let Models { engine, tokenizer, config, system_fingerprint, names, generator, scorer } = Models::start(options)?;
    let (scorer, values) = scorer.map(ServedScorer::start).transpose()?.unzip();
    let leases = Arc::new(Leases::new(engine.clone(), options.limits.leases));
    let metrics = Arc::new(ServeMetrics::default());
    let (dispatcher, work) = Dispatcher::new(engine.clone(), leases.clone(), options.limits.queue, metrics.clone());
    let thread = work.start()?;
    let rollout = options.rollout.as_ref().zip(generator.as_ref());
    let rollout =
        rollout.map(|(chosen, parts)| rollout_of(chosen, options, &parts.folder, engine.facts())).transpose()?;
    let paths = rollout.iter().flat_map(Rollout::paths).collect();
    let scorer_names = scorer.as_ref().map_or_else(Vec::new, |scorer| scorer.names.clone());
    let names = Arc::new(ServedNames::new(names, paths, scorer_names, engine.clone()));
    let generates = generator.is_some();
    let mut batches = None;
    if let Some(GeneratorParts { folder: _, origin, adapters }) = generator {
        for (name, source) in adapters {
            names.load(&name, source, false)?;
        }
        let with = || BatchEngine {
            engine: engine.clone(),
            tokenizer: tokenizer.clone(),
            config: config.clone(),
            names: names.clone(),
            limits: BatchEngine::limits(&options.limits.protocol),
            origin,
        };
        batches = open_store(options)?.map(|store| Batches::start(Arc::new(store), with())).transpose()?;
    }
    let pins = options.prefixes.iter().map(|path| pin(path, &engine, &tokenizer)).collect::<Result<Vec<_>>>()?;
    let facts = engine.facts();
    let shared_cores = (!facts.is_async).then_some(u32::try_from(cores).unwrap_or(u32::MAX));
    let ticks = Ticks::new(options.limits.chunk_interval, shared_cores, facts.max_branches);
    let server = Arc::new(Server {
        engine,
        generates,
        scorer,
        dispatcher,
        leases,
        metrics,
        tokenizer,
        config,
        names,
        keys,
        seed: options.seed,
        reasoning: options.reasoning,
        logprobs_mode: options.logprobs_mode,
        limits: options.limits.clone(),
        ticks,
        batches,
        system_fingerprint,
        admission: Admission::default(),
        rollout,
        created: now(),
        workers: Semaphore::new(cores),
        form_permits: Arc::default(),
        grammars: Default::default(),
        large_bodies: Arc::new(Semaphore::new(LARGE_BODIES)),
    });
    announce(&server, address)?;
    let stop = interrupt.listen();
    let metrics = server.metrics.clone();
    let routes = routes::routes(server, options.has_page, options.origins.clone());
    runtime.block_on(listen::serve(listener, routes, connections, metrics, stop));
    // The last clients of these threads are gone with the routes.
    thread.join().map_err(|_| Error::Internal("the dispatcher panicked".to_owned()))?;
    if let Some(values) = values {
        values.join().map_err(|_| Error::Internal("the thread of the scorer's requests panicked".to_owned()))?;
    }
    drop(pins);
    Ok(ExitCode::SUCCESS)
}

/// The state of the verbs of a server on this model.
fn rollout_of(
    chosen: &RolloutOptions,
    options: &ServeOptions,
    folder: &ModelFolder,
    engine: &EngineFacts,
) -> Result<Rollout> {
    let devices = &options.engine.devices;
    let ranks = if let Devices::Ranks(ranks) = devices { ranks.len() } else { 1 };
    // Trainers may send numbers in f32, whatever the model's are, and metadata beside them.
    let most_bytes = folder.config.parameters().saturating_mul(size_of::<f32>()).saturating_add(MORE_OF_UPDATE);
    let dtype = ModelSource::folder(folder)?.dtype;
    // Where it was left to us, the engine may be on the CPU beside a GPU.
    let gpu = devices.first_gpu().filter(|_| engine.is_async);
    let keeps_prefixes = options.engine.prefix_store.is_some();
    let facts = RolloutFacts { model: folder.path.clone(), dtype, ranks, gpu, keeps_prefixes, most_bytes };
    Ok(Rollout::new(chosen, facts))
}

/// The folder of files and batches. `None`: the usual one is another server's.
fn open_store(options: &ServeOptions) -> Result<Option<Store>> {
    let most_bytes = options.limits.data;
    match &options.data {
        Some(folder) => Store::open(folder, most_bytes).map(Some),
        None => match Store::open(Path::new(USUAL_DATA), most_bytes) {
            Ok(store) => Ok(Some(store)),
            Err(error) => {
                log::warn!("files and batches are off ({error}); {DATA} DIR gives them a folder");
                Ok(None)
            }
        },
    }
}

/// Computes the prompt in the file at `path`, which then stays: a text or, by its name, the first messages of chats.
fn pin(path: &Path, engine: &EngineHandle, tokenizer: &Tokenizer) -> Result<PinnedPrefix> {
    let text = input::text(path)?;
    let is_chat = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let tokens = match is_chat {
        true => {
            let chat = json::read(&text).map_err(|error| Error::format(path, error.to_string()))?;
            let text = chat_beginning(&chat, tokenizer).map_err(|refusal| Error::format(path, refusal.message))?;
            tokenizer.encode(&text, AddSpecial::No)?
        }
        false => tokenizer.encode(&text, AddSpecial::Yes)?,
    };
    let tokens_given = tokens.len();
    let pinned =
        engine.pin(tokens).map_err(|error| Error::format(path, in_bytes(error, engine.facts()).to_string()))?;
    out::line(format_args!("pinned      {} tokens of {}", count(tokens_given as u64), path.display()))?;
    Ok(pinned)
}

fn announce(server: &Server, address: SocketAddr) -> Result<()> {
    let facts = server.engine.facts();
    if server.generates {
        out::line(format_args!("model       {}", server.names.of_model().join(", ")))?;
    }
    if let Some(scorer) = &server.scorer {
        out::line(format_args!("{}", scorer.announced(server.generates)))?;
    }
    for adapter in server.engine.adapters() {
        let from = names::root(&adapter);
        out::line(format_args!("adapter     {}, of rank {}, from {from}", adapter.name, adapter.rank))?;
    }
    out::line(format_args!("device      {}", facts.device))?;
    out::line(format_args!("room        {}", pooling::room(facts, "branches")))?;
    out::line(format_args!("serving     http://{address}/v1"))
}
