//! The paths of the verbs.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::ORIGIN;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use offshoot_openai::protocol::{ExpertIds, Refusal, RefusalKind, SKYRL_PATH, TOKENS_PATH};

use super::{adapters, generate, info, pause, rpc, sleep, update};
use crate::reply::Refused;
use crate::server::{AppState, Server};

/// All of them; each needs an operator's key, if there are such keys.
pub fn routes(server: Arc<Server>) -> Router<Arc<Server>> {
    Router::new()
        .route("/pause", post(pause::pause))
        .route("/resume", post(pause::resume))
        .route("/is_paused", get(pause::is_paused))
        .route("/abort_requests", post(pause::abort_requests))
        .route("/inference/v1/abort_requests", post(pause::abort_named))
        .route("/sleep", post(sleep::sleep))
        .route("/wake_up", post(sleep::wake_up))
        .route("/is_sleeping", get(sleep::is_sleeping))
        .route("/release_kv_cache_memory", post(sleep::release_keys))
        .route("/reset_prefix_cache", post(sleep::reset_prefix_cache))
        .route("/init_weight_transfer_engine", post(update::init_transfer))
        .route("/shutdown_weight_transfer_engine", post(update::shut_transfer))
        .route("/start_weight_update", post(update::start))
        .route("/update_weights", post(update::update))
        .route("/finish_weight_update", post(update::finish))
        .route("/update_weight_version", post(update::set_version))
        .route("/weight_info", get(info::weight_info))
        .route("/get_world_size", get(info::world_size))
        .route("/server_info", get(info::server_info))
        .route("/collective_rpc", post(rpc::call))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/load_lora_adapter", post(adapters::load_in_place))
        .route("/skyrl/v1/load_lora_adapter", post(adapters::load_in_place))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .route(TOKENS_PATH, generate::generating(ExpertIds::OfModel))
        .route(SKYRL_PATH, generate::generating(ExpertIds::OfAnswer))
        .route_layer(from_fn_with_state(server, check_operator))
}

/// Lets operators pass. Where there are no keys, pages in a browser on this machine are none: they could send a verb
/// without being able to read what it answers.
async fn check_operator(State(server): AppState, mut request: Request, next: Next) -> Response {
    if server.keys.have_no_operator() && request.headers().contains_key(ORIGIN) {
        let what = "this path takes no requests of pages in a browser without a key: send none of them with `Origin`";
        return Refused(Refusal::of_kind(RefusalKind::Forbidden, "operators_only", what)).into_response();
    }
    match server.keys.operator(request.headers()) {
        Ok(operator) => {
            request.extensions_mut().insert(operator);
            next.run(request).await
        }
        Err(refusal) => Refused(refusal).into_response(),
    }
}
