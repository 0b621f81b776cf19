//! Adapters (LoRA) by name: loaded from folders, replaced and removed while others run. Trainers send the same request
//! to different paths and read different answers: vLLM's has a text for people and replaces nothing unless it is told
//! to; those of prime-rl and SkyRL replace what has the name.

use std::path::Path;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::json;

use offshoot_core::setting::MAX_LORAS;
use offshoot_engine::{AdapterSource, LoadedAdapter};
use offshoot_openai::protocol::{BodyFields, Refusal};

use super::failed;
use super::forms::{fields, waiting};
use crate::reply::{self, Answer};
use crate::server::{AppState, Server};

/// The files of an adapter's folder.
const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// A field with a text that is not empty.
fn text(fields: &mut BodyFields, field: &str, expected: &str) -> Result<String, Refusal> {
    let found = fields.text(field)?;
    let what = if found.is_some() { "an empty one" } else { "none" };
    found.filter(|text| !text.is_empty()).ok_or_else(|| Refusal::value(field, expected, what))
}

/// The fields of a request for a server that may load adapters.
async fn asked(server: &AppState, headers: &HeaderMap, body: Body) -> Result<BodyFields, Refusal> {
    let fields = fields(server, headers, body).await?;
    match server.engine.facts().adapters.most {
        0 => {
            let what = format!("this server was started without room for adapters: start it with {MAX_LORAS}");
            Err(Refusal::new("unsupported_adapter", what))
        }
        _ => Ok(fields),
    }
}

/// Loads an adapter; `replaces`: in place of one of the same name, also where the request does not say so.
async fn loaded(server: &AppState, headers: &HeaderMap, body: Body, replaces: bool) -> Result<LoadedAdapter, Refusal> {
    let mut fields = asked(server, headers, body).await?;
    let name = text(&mut fields, "lora_name", "a name")?;
    let folder = text(&mut fields, "lora_path", "a folder with an adapter")?;
    let replaces = fields.flag("load_inplace")? || replaces;
    fields.refuse("is_3d_lora_weight", |value| value == false)?;
    fields.finish()?;
    // A trainer may ask again when a network's file system shows the files later.
    if let Some(missing) = FILES.iter().find(|file| !Path::new(&folder).join(file).is_file()) {
        let what = format!("`lora_path`: expected a folder with {missing}, found {folder:?}");
        return Err(Refusal::not_found(what).about("lora_path"));
    }
    let load = move |server: &Server| {
        let source = AdapterSource::Folder(folder.into());
        server.names.load(&name, source, replaces).map_err(|error| failed(&error))
    };
    waiting(server, load).await
}

/// `/v1/load_lora_adapter` of vLLM.
pub async fn load(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    let LoadedAdapter { name, .. } = loaded(&State(server), &headers, body, false).await?;
    Ok(reply::text(format!("Success: LoRA adapter '{name}' added successfully.")))
}

/// `/load_lora_adapter` of prime-rl and `/skyrl/v1/load_lora_adapter`: an adapter's versions have one name.
pub async fn load_in_place(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    let LoadedAdapter { name, version, .. } = loaded(&State(server), &headers, body, true).await?;
    Ok(reply::value(&json!({ "status": "ok", "lora_name": name, "lora_int_id": version.0 })))
}

/// `/v1/unload_lora_adapter` of vLLM: requests may not name the adapter any more.
pub async fn unload(State(server): AppState, headers: HeaderMap, body: Body) -> Answer {
    let mut fields = asked(&State(server.clone()), &headers, body).await?;
    let name = text(&mut fields, "lora_name", "a name")?;
    // Another name of the same adapter, which only the client knows.
    fields.take("lora_int_id");
    fields.finish()?;
    let removed = format!("Success: LoRA adapter '{name}' removed successfully.");
    let unload = move |server: &Server| match server.names.unload(&name) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let what = format!("`lora_name`: expected an adapter that is loaded, found {name:?}");
            Err(Refusal::not_found(what).about("lora_name"))
        }
        Err(error) => Err(failed(&error)),
    };
    waiting(&server, unload).await?;
    Ok(reply::text(removed))
}
