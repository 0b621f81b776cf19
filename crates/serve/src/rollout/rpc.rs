//! `/collective_rpc`, as far as a trainer needs it: the methods by which SkyRL updates weights and makes room for that.
//! There are no others; each has one result, null.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Map, Value, json};

use offshoot_model::Sleep;
use offshoot_openai::protocol::{BodyFields, Refusal};

use super::forms::fields;
use super::sleep::{sleep_on, wake};
use super::update::{UpdateInfo, begin, end};
use crate::reply::{self, Answer};
use crate::server::AppState;

#[derive(Clone, Copy)]
enum Method {
    Start,
    Receive,
    Finish,
    Sleep,
    Wake,
}

const METHODS: [(&str, Method); 6] = [
    ("skyrl_start_weight_update", Method::Start),
    ("update_weights_nccl", Method::Receive),
    ("update_weights_ipc", Method::Receive),
    ("skyrl_finish_weight_update", Method::Finish),
    ("skyrl_sleep_for_weight_sync", Method::Sleep),
    ("skyrl_wake_for_weight_sync", Method::Wake),
];

pub async fn call(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    // As long as nobody knows what is called, it may be what a trainer broadcasts for.
    let mut info = UpdateInfo::new(&server);
    let mut told = fields(&server, &headers, body).await?;
    let method = told.word("method", &METHODS)?;
    let method = method.ok_or_else(|| Refusal::value("method", "the name of a method", "nothing"))?;
    if !matches!(method, Method::Receive) {
        info.settle();
    }
    match method {
        Method::Receive => {
            let mut fields = BodyFields::new(&kwargs(told)?);
            let told = fields.take("update_info");
            fields.finish()?;
            let told = told.ok_or_else(|| Refusal::value("update_info", "an object", "nothing"))?;
            info.receive(told).await?;
        }
        Method::Start => begin(&server, &kwargs(told)?)?,
        Method::Finish => {
            BodyFields::new(&kwargs(told)?).finish()?;
            end(&server, None).await?;
        }
        Method::Sleep => {
            let mut fields = BodyFields::new(&kwargs(told)?);
            // Whether what stands still finds its keys and values again: it computes them anew, under the new weights.
            fields.choice("offload_kv")?;
            fields.finish()?;
            sleep_on(&server, Sleep::LEVEL_2).await?;
        }
        Method::Wake => {
            let mut fields = BodyFields::new(&kwargs(told)?);
            let tags = fields.take("tags").unwrap_or(Value::Array(Vec::new()));
            fields.finish()?;
            let tags =
                tags.as_array().and_then(|list| list.iter().map(|tag| tag.as_str().map(str::to_owned)).collect());
            let tags: Vec<String> =
                tags.ok_or_else(|| Refusal::value("tags", "a list of strings", "something else"))?;
            wake(&server, &tags).await?;
        }
    }
    Ok(reply::value(&json!({ "results": [null] })))
}

/// The arguments of a call, which are all named.
fn kwargs(mut told: BodyFields) -> Result<Map<String, Value>, Refusal> {
    let kwargs = told.object("kwargs")?;
    told.refuse("args", |args| args.as_array().is_some_and(Vec::is_empty))?;
    told.take("timeout");
    told.finish()?;
    Ok(kwargs)
}
