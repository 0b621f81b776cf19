//! Memory that the engine gives back to a trainer on the same device, and takes again; and the prefix cache, which is
//! given up by name.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::json;

use offshoot_engine::PauseMode;
use offshoot_model::{Sleep, SleepParts};
use offshoot_openai::protocol::{Refusal, RefusalKind};

use super::failed;
use super::forms::{Pairs, QueryFields, optional_fields, waiting};
use super::pause::{self, has_paused, settle};
use crate::reply::{self, Answer};
use crate::server::{AppState, Server};

/// What a sleep of each level gives back; level 0 only pauses.
const LEVELS: [(&str, Option<Sleep>); 3] = [("0", None), ("1", Some(Sleep::LEVEL_1)), ("2", Some(Sleep::LEVEL_2))];

/// A part of what sleeps, by its tag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    Weights,
    Keys,
    /// Requests, which are admitted again once all memory is back.
    Scheduling,
}

const TAGS: [(&str, Tag); 3] = [("weights", Tag::Weights), ("kv_cache", Tag::Keys), (SCHEDULING, Tag::Scheduling)];

const SCHEDULING: &str = "scheduling";

/// The field by which a reset of the cache has requests in progress give up theirs.
const RUNNING: &str = "reset_running_requests";

/// Keys and values alone.
const KEYS: Sleep = Sleep { weights: None, kv: true };

pub async fn sleep(State(server): AppState, pairs: Pairs) -> Answer {
    let mut query = QueryFields::new(pairs);
    let level = query.text("level").unwrap_or_else(|| "1".to_owned());
    let known = LEVELS.iter().find(|(word, _)| *word == level);
    let &(_, parts) = known.ok_or_else(|| Refusal::value("level", "0, 1 or 2", &format!("{level:?}")))?;
    let mode = pause::mode(&mut query)?;
    let tags = query.all("tags");
    query.finish()?;
    let chosen = chosen(&tags)?;
    go_to_sleep(&server, parts.map(|parts| parts_of(parts, chosen)), mode).await?;
    let level: u8 = level.parse().unwrap_or_default();
    Ok(reply::value(&json!({ "status": "sleeping", "level": level })))
}

/// Pauses the engine and gives memory back.
pub async fn go_to_sleep(server: &Arc<Server>, parts: Option<Sleep>, mode: PauseMode) -> Result<(), Refusal> {
    settle(server, mode).await?;
    let sleep = move |server: &Server| match parts {
        Some(parts) => server.engine.sleep(parts, PauseMode::Keep),
        None => server.engine.pause(PauseMode::Keep),
    };
    waiting(server, move |server| sleep(server).map_err(|error| failed(&error))).await
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
    let parts = chosen(tags)?;
    // A sleep of level 0 gave nothing back.
    let resumes = match tags {
        [] => !server.engine.status().asleep.any(),
        tags => tags.iter().any(|tag| tag == SCHEDULING),
    };
    let wake = move |server: &Server| {
        server.engine.wake(parts).map_err(|error| failed(&error))?;
        if resumes && !server.engine.status().asleep.any() {
            server.engine.resume().map_err(|error| failed(&error))?;
        }
        let status = server.engine.status();
        if !status.asleep.any() && !status.is_paused {
            pause::admit(server);
        }
        Ok(status.asleep.any())
    };
    waiting(server, wake).await
}

/// The parts that these tags name; all without one.
fn chosen(tags: &[String]) -> Result<SleepParts, Refusal> {
    if tags.is_empty() {
        return Ok(SleepParts::ALL);
    }
    let mut parts = SleepParts::NONE;
    for tag in tags {
        let known = TAGS.iter().find(|(word, _)| word == tag).map(|&(_, tag)| tag);
        match known {
            Some(Tag::Weights) => parts.weights = true,
            Some(Tag::Keys) => parts.kv = true,
            Some(Tag::Scheduling) => {}
            None => {
                let expected = "\"weights\", \"kv_cache\" or \"scheduling\"";
                return Err(Refusal::value("tags", expected, &format!("{tag:?}")));
            }
        }
    }
    Ok(parts)
}

/// Those of `sleep` that are chosen.
fn parts_of(sleep: Sleep, chosen: SleepParts) -> Sleep {
    Sleep { weights: sleep.weights.filter(|_| chosen.weights), kv: sleep.kv && chosen.kv }
}

/// Gives the memory of keys and values back, of an engine that is paused.
pub async fn release_keys(State(server): AppState) -> Answer {
    check_paused(&server)?;
    go_to_sleep(&server, Some(KEYS), PauseMode::Keep).await?;
    Ok(reply::value(&json!({ "status": "kv_cache_released" })))
}

/// Refuses what only an engine that is paused does.
pub fn check_paused(server: &Server) -> Result<(), Refusal> {
    match server.engine.is_paused() {
        true => Ok(()),
        false => {
            let what = "expected a server that is paused, found one that is not: send /pause first";
            Err(Refusal::of_kind(RefusalKind::Conflict, "not_paused", what))
        }
    }
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
