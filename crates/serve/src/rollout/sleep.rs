//! Memory that the engine gives back to a trainer on the same device, and takes again; and the prefix cache, which is
//! given up by name.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::json;

use offshoot_model::{Sleep, SleepTags};
use offshoot_openai::protocol::{Refusal, RefusalKind};

use super::failed;
use super::forms::{Pairs, QueryFields, optional_fields, waiting};
use super::pause::{self, has_paused, hold};
use crate::reply::{self, Answer};
use crate::server::{AppState, Server};

/// The field by which a reset of the cache has requests in progress give up theirs.
const RUNNING: &str = "reset_running_requests";

/// Keys and values alone.
const KEYS: Sleep = Sleep { weights: None, kv: true };

/// Levels of sleep by their names.
const LEVELS: [(&str, Sleep); 3] = [("0", Sleep::LEVELS[0]), ("1", Sleep::LEVELS[1]), ("2", Sleep::LEVELS[2])];

pub async fn sleep(State(server): AppState, pairs: Pairs) -> Answer {
    let mut query = QueryFields::new(pairs);
    let level = query.text("level").unwrap_or_else(|| "1".to_owned());
    let known = LEVELS.iter().find(|(word, _)| *word == level);
    let &(_, whole) = known.ok_or_else(|| Refusal::value("level", "0, 1 or 2", &format!("{level:?}")))?;
    let mode = pause::mode(&mut query)?;
    let tags = query.all("tags");
    query.finish()?;
    let chosen = chosen(&tags)?;
    hold(&server, mode, chosen.map_or(whole, |tags| whole.only(tags.parts))).await?;
    let level: u8 = level.parse().unwrap_or_default();
    Ok(reply::value(&json!({ "status": "sleeping", "level": level })))
}

/// Gives memory back during the pause that there is, which stays as it is.
pub async fn sleep_on(server: &Arc<Server>, sleep: Sleep) -> Result<(), Refusal> {
    let paused = move |server: &Server| {
        let pause = server.engine.status().pause.ok_or_else(|| {
            let what = "expected a server that is paused, found one that is not: send /pause first";
            Refusal::of_kind(RefusalKind::Conflict, "not_paused", what)
        })?;
        server.engine.sleep(sleep, pause).map_err(|error| failed(&error))
    };
    waiting(server, paused).await
}

pub async fn wake_up(State(server): AppState, pairs: Pairs) -> Answer {
    let mut query = QueryFields::new(pairs);
    let tags = query.all("tags");
    query.finish()?;
    let sleeps = wake(&server, &tags).await?;
    let status = if sleeps { "sleeping" } else { "awake" };
    let shown = (!tags.is_empty()).then_some(tags);
    Ok(reply::value(&json!({ "status": status, "tags": shown })))
}

/// Takes memory again, by tag; all of it without one. Whether something sleeps still.
pub async fn wake(server: &Arc<Server>, tags: &[String]) -> Result<bool, Refusal> {
    let tags = chosen(tags)?;
    waiting(server, move |server| server.engine.wake_by(tags).map_err(|error| failed(&error))).await
}

/// What these tags name; `None` without one.
fn chosen(tags: &[String]) -> Result<Option<SleepTags>, Refusal> {
    let named = (!tags.is_empty()).then(|| SleepTags::of(tags.iter().map(String::as_str))).transpose();
    named.map_err(|error| Refusal::of(&error).about("tags"))
}

/// Gives the memory of keys and values back, of an engine that is paused.
pub async fn release_keys(State(server): AppState) -> Answer {
    sleep_on(&server, KEYS).await?;
    Ok(reply::value(&json!({ "status": "kv_cache_released" })))
}

pub async fn is_sleeping(State(server): AppState) -> Answer {
    let sleeps = server.engine.status().asleep.any() || has_paused(&server);
    Ok(reply::value(&json!({ "is_sleeping": sleeps })))
}

/// Gives up what is cached, and what requests in progress hold, if that is asked for. Keys and values of old weights
/// are never read, whether this is called or not.
pub async fn reset_prefix_cache(State(server): AppState, pairs: Pairs, headers: HeaderMap, body: Body) -> Answer {
    let (mut query, mut fields) = (QueryFields::new(pairs), optional_fields(&server, &headers, body).await?);
    let running = [query.flag(RUNNING)?, fields.choice(RUNNING)?].contains(&Some(true));
    query.flag("reset_external")?;
    fields.choice("reset_external")?;
    query.finish()?;
    fields.finish()?;
    let evict = move |server: &Server| {
        let evicted = if running { server.engine.evict_held() } else { server.engine.evict() };
        evicted.map_err(|error| failed(&error))
    };
    let success = waiting(&server, evict).await?;
    Ok(reply::value(&json!({ "success": success })))
}
