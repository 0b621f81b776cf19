//! What a trainer asks about the server: its model, its ranks, its weights.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};

use offshoot_engine::{AdapterLimits, LogprobsMode};

use super::RolloutFacts;
use super::forms::{Pairs, QueryFields, optional_fields};
use crate::reply::{self, Answer};
use crate::server::{AppState, Server};

/// The number of ranks that a trainer's communicator has beside the trainer's own: the server receives each tensor
/// once, and hands it to all of its engines and their ranks by itself.
pub async fn world_size(State(server): AppState, pairs: Pairs, headers: HeaderMap, body: Body) -> Answer {
    let mut query = QueryFields::new(pairs);
    query.flag("include_dp")?;
    query.finish()?;
    optional_fields(&server, &headers, body).await?.finish()?;
    Ok(reply::value(&json!({ "world_size": 1 })))
}

pub async fn weight_info(State(server): AppState) -> Answer {
    Ok(reply::value(&json!({ "weight_version": server.engine.weights().label })))
}

/// What trainers read of an engine's configuration.
pub async fn server_info(State(server): AppState, pairs: Pairs) -> Answer {
    let mut query = QueryFields::new(pairs);
    let is_text = query.word("config_format", &[("text", true), ("json", false)])?.unwrap_or(true);
    query.finish()?;
    let config = server.rollout.as_ref().map(|rollout| config(&server, &rollout.facts)).unwrap_or_default();
    let config = if is_text { Value::String(config.to_string()) } else { config };
    Ok(reply::value(&json!({ "vllm_config": config, "vllm_env": {}, "system_env": {} })))
}

fn config(server: &Server, facts: &RolloutFacts) -> Value {
    let mut words = LogprobsMode::WORDS.into_iter();
    let logprobs_mode = words.find(|(_, mode)| *mode == server.logprobs_mode).map(|(word, _)| word);
    let (ranks, replicas) = (facts.ranks, server.engine.facts().replicas);
    let lora_config = match server.engine.facts().adapters {
        AdapterLimits { most: 0, .. } => Value::Null,
        AdapterLimits { most, rank } => json!({ "max_loras": most, "max_lora_rank": rank }),
    };
    json!({
        "model_config": {
            "model": facts.model.display().to_string(),
            "dtype": format!("torch.{}", facts.torch_dtype()),
            "logprobs_mode": logprobs_mode,
            "max_model_len": server.config.context,
        },
        "parallel_config": {
            "tensor_parallel_size": ranks,
            "pipeline_parallel_size": 1,
            "data_parallel_size": replicas,
            "world_size": ranks * replicas,
        },
        "weight_transfer_config": { "backend": facts.backend() },
        "lora_config": lora_config,
    })
}
