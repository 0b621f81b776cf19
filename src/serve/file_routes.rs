//! `/v1/files` and `/v1/batches`.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{DefaultBodyLimit, Multipart, Path, Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::openai::protocol::files::{
    BatchObject, FileObject, FilePurpose, FileStatus, FileTag, NewBatch, deleted, list,
};
use crate::openai::protocol::{Refusal, RefusalKind};

use super::batches::{Batches, now};
use super::dispatch::ClientId;
use super::reply;
use super::server::Server;
use super::store::{Kept, Record, Store};

type Answer = Result<Response, Refusal>;
type AppState = State<Arc<Server>>;

/// Objects of a page of a list, at most and usually.
const MOST_LISTED: usize = 100;
const LISTED: usize = 20;

pub fn routes() -> Router<Arc<Server>> {
    // The length of an upload is counted while it is written.
    let files = get(list_objects::<FileObject>).post(upload).layer(DefaultBodyLimit::disable());
    Router::new()
        .route("/v1/files", files)
        .route("/v1/files/{id}", get(object::<FileObject>).delete(remove))
        .route("/v1/files/{id}/content", get(content))
        .route("/v1/batches", get(list_objects::<BatchObject>).post(create))
        .route("/v1/batches/{id}", get(object::<BatchObject>))
        .route("/v1/batches/{id}/cancel", post(cancel))
}

fn batches(server: &Server) -> Result<&Batches, Refusal> {
    let off = || Refusal::not_found("this server keeps no files: start it with --data DIR");
    server.batches.as_ref().ok_or_else(off)
}

fn reply_with(object: &impl Serialize) -> Response {
    reply::json(serde_json::to_vec(object).expect("keys are strings"))
}

async fn upload(State(server): AppState, Extension(client): Extension<ClientId>, form: Multipart) -> Answer {
    let owner = server.keys.owner(client);
    let store = batches(&server)?.store.clone();
    let id = Store::new_id::<FileObject>();
    let written = receive(&store, &id, form).await;
    let kept = written.and_then(|(bytes, filename, purpose)| {
        let object = FileObject {
            id: id.clone(),
            object: FileTag::File,
            bytes,
            created_at: now(),
            expires_at: None,
            filename,
            purpose,
            status: FileStatus::Processed,
        };
        let record = Record { owner, object };
        store.put(&record).map_err(|error| Refusal::of(&error))?;
        Ok(reply_with(&record.object))
    });
    if kept.is_err() {
        // It may not have been made.
        let _ = std::fs::remove_file(store.bytes_of(&id));
    }
    kept
}

/// Writes the file of a form to disk. Returns its length, its name and its purpose.
async fn receive(store: &Store, id: &str, mut form: Multipart) -> Result<(u64, String, FilePurpose), Refusal> {
    let (mut file, mut purpose) = (None, None);
    while let Some(field) = form.next_field().await.map_err(|error| wrong_form(&error))? {
        match field.name() {
            Some("file") => {
                let name = field.file_name().unwrap_or("upload.jsonl").chars().take(256).collect::<String>();
                file = Some((write(store, id, field).await?, name));
            }
            Some("purpose") => {
                let text = field.text().await.map_err(|error| wrong_form(&error))?;
                purpose = Some(FilePurpose::of_upload(&text)?);
            }
            // Files do not expire here.
            _ => drop(field.bytes().await.map_err(|error| wrong_form(&error))?),
        }
    }
    let (bytes, name) = file.ok_or_else(|| Refusal::value("file", "a file in the form", "none"))?;
    let purpose = purpose.ok_or_else(|| Refusal::value("purpose", "\"batch\"", "nothing"))?;
    Ok((bytes, name, purpose))
}

async fn write(store: &Store, id: &str, mut field: Field<'_>) -> Result<u64, Refusal> {
    let path = store.bytes_of(id);
    let failed = |doing| {
        let path = path.clone();
        move |error| Refusal::of_kind(RefusalKind::Internal, "io_error", Error::io(path, doing)(error).to_string())
    };
    let mut file = File::create(&path).map_err(failed("create"))?;
    let (most, mut bytes) = (store.most_bytes.saturating_sub(store.bytes()), 0u64);
    while let Some(piece) = field.chunk().await.map_err(|error| wrong_form(&error))? {
        bytes += piece.len() as u64;
        if bytes > most {
            return Err(Refusal::too_large(usize::try_from(most).unwrap_or(usize::MAX)).about("file"));
        }
        file.write_all(&piece).map_err(failed("write"))?;
    }
    file.sync_data().map_err(failed("force to the disk"))?;
    Ok(bytes)
}

fn wrong_form(error: &MultipartError) -> Refusal {
    let text: String = error.body_text().chars().take(200).collect();
    Refusal::new("invalid_request", format!("the form cannot be read: {text}"))
}

#[derive(Deserialize)]
struct PageOf {
    after: Option<String>,
    limit: Option<usize>,
    purpose: Option<String>,
}

async fn list_objects<T: Kept + PurposeOf>(
    State(server): AppState,
    Extension(client): Extension<ClientId>,
    Query(page): Query<PageOf>,
) -> Answer {
    let owner = server.keys.owner(client);
    let records = batches(&server)?.store.all::<T>().into_iter().filter(|record| record.owner == owner);
    let wanted = |object: &T| page.purpose.as_ref().is_none_or(|purpose| object.has_purpose(purpose));
    let objects = records.map(|record| record.object).filter(wanted);
    let mut objects: Vec<T> = match &page.after {
        Some(after) => objects.skip_while(|object| object.id() != after).skip(1).collect(),
        None => objects.collect(),
    };
    let most = page.limit.unwrap_or(LISTED).clamp(1, MOST_LISTED);
    let has_more = objects.len() > most;
    objects.truncate(most);
    Ok(reply::value(&list(&objects, |object| object.id(), has_more)))
}

/// Whether an object is one of those that a list is asked for.
trait PurposeOf {
    fn has_purpose(&self, purpose: &str) -> bool;
}

impl PurposeOf for FileObject {
    fn has_purpose(&self, purpose: &str) -> bool {
        serde_json::to_value(self.purpose).is_ok_and(|own| own == purpose)
    }
}

impl PurposeOf for BatchObject {
    fn has_purpose(&self, _purpose: &str) -> bool {
        true
    }
}

async fn object<T: Kept>(
    State(server): AppState,
    Extension(client): Extension<ClientId>,
    Path(id): Path<String>,
) -> Answer {
    Ok(reply_with(&batches(&server)?.store.get::<T>(&server.keys.owner(client), &id)?))
}

async fn content(State(server): AppState, Extension(client): Extension<ClientId>, Path(id): Path<String>) -> Answer {
    let store = batches(&server)?.store.clone();
    let file = store.get::<FileObject>(&server.keys.owner(client), &id)?;
    let path = store.bytes_of(&file.id);
    let gone = || Refusal::not_found(format!("the bytes of file {id:?} are gone"));
    let open = tokio::fs::File::open(path).await.map_err(|_| gone())?;
    let pieces = tokio_util::io::ReaderStream::with_capacity(open, 1 << 16);
    Ok(reply::with_type("application/octet-stream", Body::from_stream(pieces)))
}

async fn remove(State(server): AppState, Extension(client): Extension<ClientId>, Path(id): Path<String>) -> Answer {
    let (store, owner) = (batches(&server)?.store.clone(), server.keys.owner(client));
    let is_input = |record: &Record<BatchObject>| record.object.input_file_id == id && !record.object.status.is_end();
    if store.all::<BatchObject>().iter().any(is_input) {
        let what = format!("file {id:?} is the input of a batch that has not ended");
        return Err(Refusal::of_kind(RefusalKind::Conflict, "file_in_use", what));
    }
    store.remove_file(&owner, &id)?;
    Ok(reply::value(&deleted(&id)))
}

async fn create(
    State(server): AppState,
    Extension(client): Extension<ClientId>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let owner = server.keys.owner(client);
    let all = batches(&server)?;
    let new = NewBatch::read(&server.body(&headers, body).await?)?;
    let input = all.store.get::<FileObject>(&owner, &new.input_file_id);
    input.map_err(|refusal| refusal.about("input_file_id"))?;
    let object = BatchObject::new(Store::new_id::<BatchObject>(), new, now());
    let record = Record { owner, object };
    all.store.put(&record).map_err(|error| Refusal::of(&error))?;
    all.add(record.owner.clone(), record.object.id.clone());
    Ok(reply_with(&record.object))
}

async fn cancel(State(server): AppState, Extension(client): Extension<ClientId>, Path(id): Path<String>) -> Answer {
    Ok(reply_with(&batches(&server)?.cancel(&server.keys.owner(client), &id)?))
}
