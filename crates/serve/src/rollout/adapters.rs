//! Adapters (LoRA) by name. Their requests are read and checked here; an engine that holds no adapters refuses them.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;

use offshoot_openai::protocol::{BodyFields, Refusal};

use super::forms::fields;
use crate::reply::Answer;
use crate::server::{AppState, Server};

/// An adapter's name, which is not the model's.
fn name(server: &Server, fields: &mut BodyFields) -> Result<String, Refusal> {
    let name = fields.text("lora_name")?.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| Refusal::value("lora_name", "a string that is not empty", "none"))?;
    match server.names.contains(&name) {
        true => Err(Refusal::value("lora_name", "a name that the model does not have", &format!("{name:?}"))),
        false => Ok(name),
    }
}

pub async fn load(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    let mut fields = fields(&server, &headers, body).await?;
    name(&server, &mut fields)?;
    let path = fields.text("lora_path")?.filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| Refusal::value("lora_path", "a folder with an adapter", "none"))?;
    fields.choice("load_inplace")?;
    fields.refuse("is_3d_lora_weight", |value| value == false)?;
    fields.finish()?;
    if !std::path::Path::new(&path).join("adapter_config.json").is_file() {
        let what = format!("`lora_path`: expected a folder with adapter_config.json, found {path:?}");
        return Err(Refusal::not_found(what).about("lora_path").into());
    }
    Err(Refusal::new("unsupported_adapter", "this server's engine holds no adapters").into())
}

pub async fn unload(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    let mut fields = fields(&server, &headers, body).await?;
    let name = name(&server, &mut fields)?;
    fields.take("lora_int_id");
    fields.finish()?;
    Err(Refusal::not_found(format!("there is no adapter {name:?}")).about("lora_name").into())
}
