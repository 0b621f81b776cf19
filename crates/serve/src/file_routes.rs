//! `/v1/files` and `/v1/batches`.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Multipart, Query, Request, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{BoxError, Extension, Router};
use futures_util::Stream;
use serde::Deserialize;

use offshoot_core::error::Error;
use offshoot_core::setting::{DATA, MAX_DATA};
use offshoot_openai::protocol::files::{BatchObject, FileObject, FilePurpose, NewBatch, deleted, list};
use offshoot_openai::protocol::{Refusal, RefusalKind};

use super::batches::{Batches, now};
use super::in_path::InPath;
use super::keys::ClientId;
use super::reply::{self, Answer, Refused};
use super::server::{AppState, Server};
use super::store::{Kept, Record, Store};

/// Objects of a page of a list, at most and usually.
const MOST_LISTED: usize = 100;
const LISTED: usize = 20;
/// An upload's `patience`.
const UPLOAD_PATIENCE: Duration = Duration::from_secs(120);
/// Most bytes of a field of an upload that is not the file.
const MOST_OF_FIELD: usize = 64 << 10;
/// Most bytes of an upload beside its file: fields and their heads, and some pieces that are on their way to the file.
const MOST_BESIDE_FILE: usize = 256 << 10;

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
    let off = || Refusal::not_found(format!("this server keeps no files: start it with {DATA} DIR"));
    server.batches.as_ref().ok_or_else(off)
}

async fn upload(State(server): AppState, Extension(client): Extension<ClientId>, request: Request) -> Response {
    let mut response = keep_upload(&server, client, request).await.into_response();
    if !response.status().is_success() {
        // The rest of a refused form is not waited for.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn keep_upload(server: &Server, client: ClientId, request: Request) -> Answer {
    let owner = server.keys.owner(client);
    let mut upload = Upload::new(&batches(server)?.store);
    let (bytes, filename, purpose) = upload.receive(request).await?;
    let record = Record::new(owner, FileObject::new(upload.id.clone(), bytes, filename, purpose, now()));
    upload.store.put(&record).map_err(|error| Refusal::of(&error))?;
    upload.is_kept = true;
    Ok(reply::value(&record.object))
}

/// A file that arrives. Dropping it removes its bytes unless it is kept: its client may leave at any time.
struct Upload<'a> {
    store: &'a Store,
    id: String,
    path: PathBuf,
    is_kept: bool,
    /// Longest time in which nothing of it may arrive.
    patience: Duration,
}

impl Upload<'_> {
    fn new(store: &Store) -> Upload<'_> {
        let id = Store::new_id::<FileObject>();
        Upload { store, path: store.bytes_of(&id), id, is_kept: false, patience: UPLOAD_PATIENCE }
    }

    /// Writes the file of a form to disk. Returns its length, its name and its purpose.
    async fn receive(&self, request: Request) -> Result<(u64, String, FilePurpose), Refusal> {
        let is_form = request
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().to_ascii_lowercase().starts_with(b"multipart/form-data"));
        let unread = Arc::new(AtomicUsize::new(0));
        let request = request.map(|body| {
            let body = FormBody { pieces: body.into_data_stream(), unread: unread.clone(), rests: false };
            Body::from_stream(body)
        });
        let form = Multipart::from_request(request, &()).await;
        let mut form = form.map_err(|rejection| {
            let found = if is_form { "one without a boundary" } else { "another one, or none" };
            let what = format!("expected `Content-Type: multipart/form-data; boundary=...`, found {found}");
            let kind = if is_form { RefusalKind::InvalidRequest } else { RefusalKind::MediaType };
            log::debug!("an upload is no form: {rejection}");
            Refusal::of_kind(kind, "unsupported_media_type", what)
        })?;
        let (mut file, mut purpose) = (None, None);
        while let Some(mut field) = in_time(self.patience, form.next_field()).await? {
            let name = field.name().unwrap_or_default().to_owned();
            let twice = || Refusal::value(&name, "one field of this name", "two");
            match name.as_str() {
                "file" if file.is_some() => return Err(twice()),
                "purpose" if purpose.is_some() => return Err(twice()),
                "file" => {
                    let name = field.file_name().unwrap_or("upload.jsonl").chars().take(256).collect::<String>();
                    file = Some((self.write(field, &unread).await?, name));
                }
                "purpose" => {
                    let text = small_field("purpose", &mut field, true, self.patience).await?;
                    purpose = Some(FilePurpose::of_upload(&shown(&String::from_utf8_lossy(&text)))?);
                }
                // Files do not expire here. The name comes from the client, and may be long.
                other => {
                    small_field(&shown(other), &mut field, false, self.patience).await?;
                }
            }
        }
        let (bytes, name) = file.ok_or_else(|| Refusal::value("file", "a file in the form", "none"))?;
        let purpose = purpose.ok_or_else(|| Refusal::value("purpose", "\"batch\"", "nothing"))?;
        Ok((bytes, name, purpose))
    }

    async fn write(&self, mut field: Field<'_>, unread: &AtomicUsize) -> Result<u64, Refusal> {
        let failed = |doing| {
            let path = self.path.clone();
            move |error| {
                Refusal::of_kind(RefusalKind::Internal, "io_error", Refusal::of(&Error::io(path, doing)(error)).message)
            }
        };
        let mut file = File::create(&self.path).map_err(failed("create"))?;
        let mut bytes = 0u64;
        while let Some(piece) = in_time(self.patience, field.chunk()).await? {
            unread.fetch_sub(piece.len(), Ordering::Relaxed);
            bytes += piece.len() as u64;
            let room = self.store.reserve("`file`", &self.path, bytes);
            room.map_err(|error| {
                Refusal::of_kind(RefusalKind::TooLarge, "request_too_large", error.to_string()).about("file")
            })?;
            file.write_all(&piece).map_err(failed("write"))?;
        }
        file.sync_data().map_err(failed("force to the disk"))?;
        Ok(bytes)
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            // It may not have been made.
            let _ = std::fs::remove_file(&self.path);
            self.store.count(&self.path);
        }
    }
}

/// The beginning of what a client wrote, as an answer repeats it.
fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Reads a field that is not the file, to its end. Returns its text if it `is_wanted`.
async fn small_field(
    name: &str,
    field: &mut Field<'_>,
    is_wanted: bool,
    patience: Duration,
) -> Result<Vec<u8>, Refusal> {
    let (mut text, mut bytes) = (Vec::new(), 0);
    while let Some(piece) = in_time(patience, field.chunk()).await? {
        bytes += piece.len();
        if bytes > MOST_OF_FIELD {
            let what = format!("`{name}`: expected at most {MOST_OF_FIELD} bytes, found more");
            return Err(Refusal::of_kind(RefusalKind::TooLarge, "request_too_large", what).about(name));
        }
        if is_wanted {
            text.extend_from_slice(&piece);
        }
    }
    Ok(text)
}

/// The next part of a form, which must arrive in time.
async fn in_time<T>(patience: Duration, part: impl Future<Output = Result<T, MultipartError>>) -> Result<T, Refusal> {
    let arrived = tokio::time::timeout(patience, part).await;
    let late = |_| {
        let what = format!("nothing more of the form arrived within {} s", patience.as_secs());
        Refusal::of_kind(RefusalKind::Timeout, "timeout", what)
    };
    arrived.map_err(late)?.map_err(|error| wrong_form(&error))
}

/// The body of a form. What the form holds beside its file, such as fields and their heads, is bounded; the file's
/// reader takes its own bytes off `unread`. After each piece it rests once, because the reader of forms keeps all
/// pieces that it gets without a rest.
struct FormBody {
    pieces: BodyDataStream,
    /// Bytes that arrived, less those of the file that were written.
    unread: Arc<AtomicUsize>,
    rests: bool,
}

impl Stream for FormBody {
    type Item = Result<Bytes, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.rests) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Some(piece) = ready!(Pin::new(&mut self.pieces).poll_next(context)) else { return Poll::Ready(None) };
        self.rests = true;
        Poll::Ready(Some(match piece {
            Ok(piece) if self.unread.fetch_add(piece.len(), Ordering::Relaxed) + piece.len() > MOST_BESIDE_FILE => {
                Err(format!("more than {MOST_BESIDE_FILE} bytes beside the file").into())
            }
            piece => piece.map_err(BoxError::from),
        }))
    }
}

fn wrong_form(error: &MultipartError) -> Refusal {
    let text: String = error.body_text().chars().take(200).collect();
    Refusal::new("invalid_request", format!("the form cannot be read: {text}"))
}

/// What a list is asked for.
#[derive(Deserialize)]
pub struct PageOf {
    pub after: Option<String>,
    limit: Option<String>,
    purpose: Option<String>,
    /// `asc` or `desc`, where a list has an order.
    pub order: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for PageOf {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PageOf, Refused> {
        let page = Query::<PageOf>::from_request_parts(parts, state).await;
        page.map(|Query(page)| page).map_err(|rejection| {
            let text: String = rejection.body_text().chars().take(200).collect();
            Refused(Refusal::new("invalid_request", format!("the query cannot be read: {text}")))
        })
    }
}

impl PageOf {
    /// Objects of the page.
    pub fn length(&self) -> Result<usize, Refusal> {
        let Some(limit) = &self.limit else { return Ok(LISTED) };
        let wrong = |_| Refusal::value("limit", "a whole number from 1 up", &format!("{:?}", shown(limit)));
        Ok(limit.parse::<usize>().map_err(wrong)?.clamp(1, MOST_LISTED))
    }
}

async fn list_objects<T: Kept>(
    State(server): AppState,
    Extension(client): Extension<ClientId>,
    page: PageOf,
) -> Answer {
    let (owner, most) = (server.keys.owner(client), page.length()?);
    let records = batches(&server)?.store.all::<T>().into_iter().filter(|record| record.owner == owner);
    let wanted = |object: &T| page.purpose.as_ref().is_none_or(|purpose| object.has_purpose(purpose));
    let objects = records.map(|record| record.object).filter(wanted);
    let mut objects: Vec<T> = match &page.after {
        Some(after) => objects.skip_while(|object| object.id() != after).skip(1).collect(),
        None => objects.collect(),
    };
    let has_more = objects.len() > most;
    objects.truncate(most);
    Ok(reply::value(&list(&objects, |object| object.id(), has_more)))
}

async fn object<T: Kept>(
    State(server): AppState,
    Extension(client): Extension<ClientId>,
    InPath(id): InPath,
) -> Answer {
    Ok(reply::value(&batches(&server)?.store.get::<T>(&server.keys.owner(client), &id)?))
}

async fn content(State(server): AppState, Extension(client): Extension<ClientId>, InPath(id): InPath) -> Answer {
    let store = batches(&server)?.store.clone();
    let file = store.get::<FileObject>(&server.keys.owner(client), &id)?;
    let path = store.bytes_of(&file.id);
    let gone = || Refusal::not_found(format!("the bytes of file {id:?} are gone"));
    let open = tokio::fs::File::open(path).await.map_err(|_| gone())?;
    let pieces = tokio_util::io::ReaderStream::with_capacity(open, 1 << 16);
    Ok(reply::with_type("application/octet-stream", Body::from_stream(pieces)))
}

async fn remove(State(server): AppState, Extension(client): Extension<ClientId>, InPath(id): InPath) -> Answer {
    let (store, owner) = (batches(&server)?.store.clone(), server.keys.owner(client));
    let is_input = |record: &Record<BatchObject>| record.object.input_file_id == id && !record.object.status.is_end();
    if store.all::<BatchObject>().iter().any(is_input) {
        let what = format!("file {id:?} is the input of a batch that has not ended");
        return Err(Refusal::of_kind(RefusalKind::Conflict, "file_in_use", what).into());
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
    let body = server.receive(&headers, body).await?;
    let new = server.work(move |_| NewBatch::read(&body.parse()?)).await?;
    let input = all.store.get::<FileObject>(&owner, &new.input_file_id);
    input.map_err(|refusal| refusal.about("input_file_id"))?;
    let object = BatchObject::new(Store::new_id::<BatchObject>(), new, now());
    let record = Record::new(owner, object);
    if all.store.bytes() >= all.store.most_bytes {
        let what = format!("there is no room for answers: the files have all the bytes of {MAX_DATA}; delete some");
        return Err(Refusal::of_kind(RefusalKind::TooLarge, "no_room", what).into());
    }
    all.store.put(&record).map_err(|error| Refusal::of(&error))?;
    all.add(record.owner.clone(), record.object.id.clone());
    Ok(reply::value(&record.object))
}

async fn cancel(State(server): AppState, Extension(client): Extension<ClientId>, InPath(id): InPath) -> Answer {
    Ok(reply::value(&batches(&server)?.cancel(&server.keys.owner(client), &id)?))
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, stream};

    use super::*;

    #[tokio::test]
    async fn an_upload_that_stalls_is_refused_and_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::open(folder.path(), 1 << 20).expect("it is free");
        let begun = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{}\n"
            .to_owned()
            + &"a".repeat(10_000);
        let piece: Result<Bytes, BoxError> = Ok(begun.into());
        let body = Body::from_stream(stream::iter([piece]).chain(stream::pending()));
        let request = Request::builder().header(CONTENT_TYPE, "multipart/form-data; boundary=b").body(body);
        let mut upload = Upload::new(&store);
        upload.patience = Duration::from_millis(20);
        let refusal = upload.receive(request.expect("a whole head")).await.expect_err("its end does not come");
        assert_eq!((refusal.status(), refusal.code), (408, "timeout"));
        assert!(store.bytes() > 0, "its beginning was written");
        let path = upload.path.clone();
        drop(upload);
        assert_eq!((store.bytes(), path.exists()), (0, false));
    }
}
