//! The objects of OpenAI's Files and Batches, as `/v1/files` and `/v1/batches` answer them. Where they are kept, and
//! what answers a batch, is left to the callers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::endpoint::BatchEndpoint;
use super::fields::BodyFields;
use super::refusal::Refusal;

/// A file that was uploaded, or written for a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileObject {
    /// "file-…".
    pub id: String,
    pub object: FileTag,
    pub bytes: u64,
    /// Seconds since 1970.
    pub created_at: u64,
    /// `None`: the file stays.
    pub expires_at: Option<u64>,
    pub filename: String,
    pub purpose: FilePurpose,
    pub status: FileStatus,
}

impl FileObject {
    /// A file whose bytes are there, and which stays; `created_at`: seconds since 1970.
    pub fn new(id: String, bytes: u64, filename: String, purpose: FilePurpose, created_at: u64) -> Self {
        let (object, expires_at, status) = (FileTag::File, None, FileStatus::Processed);
        FileObject { id, object, bytes, created_at, expires_at, filename, purpose, status }
    }
}

/// `object` of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileTag {
    #[serde(rename = "file")]
    File,
}

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilePurpose {
    /// The requests of a batch.
    Batch,
    /// The answers of one.
    BatchOutput,
}

impl FilePurpose {
    /// The purpose of an upload. Other purposes of OpenAI's are refused.
    pub fn of_upload(purpose: &str) -> Result<FilePurpose, Refusal> {
        match purpose {
            "batch" => Ok(FilePurpose::Batch),
            other => Err(Refusal::value("purpose", "\"batch\"", &format!("{other:?}"))),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileStatus {
    Processed,
}

/// Requests that are answered at their time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchObject {
    /// "batch_…".
    pub id: String,
    pub object: BatchTag,
    /// The path of each request.
    pub endpoint: String,
    pub errors: Option<BatchErrors>,
    pub input_file_id: String,
    pub completion_window: String,
    pub status: BatchStatus,
    /// The answers.
    pub output_file_id: Option<String>,
    /// The refusals.
    pub error_file_id: Option<String>,
    /// When the batch was created, and when it came into each later state; in seconds since 1970.
    pub created_at: u64,
    pub in_progress_at: Option<u64>,
    pub expires_at: Option<u64>,
    pub finalizing_at: Option<u64>,
    pub completed_at: Option<u64>,
    pub failed_at: Option<u64>,
    pub expired_at: Option<u64>,
    pub cancelling_at: Option<u64>,
    pub cancelled_at: Option<u64>,
    pub request_counts: RequestCounts,
    pub metadata: Option<BTreeMap<String, String>>,
}

/// `object` of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchTag {
    #[serde(rename = "batch")]
    Batch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchStatus {
    /// The input file is read.
    Validating,
    /// It is not a file of requests.
    Failed,
    InProgress,
    /// The output files are written.
    Finalizing,
    Completed,
    /// The time was over before all requests were answered.
    Expired,
    Cancelling,
    Cancelled,
}

impl BatchStatus {
    /// Whether nothing more happens to the batch.
    pub fn is_end(self) -> bool {
        use BatchStatus::{Cancelled, Completed, Expired, Failed};
        matches!(self, Failed | Completed | Expired | Cancelled)
    }
}

/// Requests of a batch by their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    pub total: u64,
    pub completed: u64,
    pub failed: u64,
}

/// What is wrong with a batch's input file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchErrors {
    pub object: ListTag,
    pub data: Vec<BatchError>,
}

/// `object` of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListTag {
    #[serde(rename = "list")]
    List,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchError {
    pub code: String,
    /// The line of the input file, from 1.
    pub line: Option<u64>,
    pub message: String,
    pub param: Option<String>,
}

impl BatchError {
    pub fn new(refusal: &Refusal, line: Option<u64>) -> Self {
        let (message, param) = (refusal.message.clone(), refusal.param.clone());
        BatchError { code: refusal.code.to_owned(), line, message, param }
    }
}

impl BatchErrors {
    pub fn new(data: Vec<BatchError>) -> Self {
        BatchErrors { object: ListTag::List, data }
    }
}

impl BatchObject {
    /// A batch that was just created.
    pub fn new(id: String, request: NewBatch, created_at: u64) -> Self {
        BatchObject {
            id,
            object: BatchTag::Batch,
            endpoint: request.endpoint.path().to_owned(),
            errors: None,
            input_file_id: request.input_file_id,
            completion_window: "24h".to_owned(),
            status: BatchStatus::Validating,
            output_file_id: None,
            error_file_id: None,
            created_at,
            in_progress_at: None,
            expires_at: Some(created_at + NewBatch::WINDOW),
            finalizing_at: None,
            completed_at: None,
            failed_at: None,
            expired_at: None,
            cancelling_at: None,
            cancelled_at: None,
            request_counts: RequestCounts::default(),
            metadata: request.metadata,
        }
    }

    /// The batch comes into a state, at a time in seconds since 1970.
    pub fn enter(&mut self, status: BatchStatus, at: u64) {
        let field = match status {
            BatchStatus::Validating => None,
            BatchStatus::InProgress => Some(&mut self.in_progress_at),
            BatchStatus::Finalizing => Some(&mut self.finalizing_at),
            BatchStatus::Completed => Some(&mut self.completed_at),
            BatchStatus::Failed => Some(&mut self.failed_at),
            BatchStatus::Expired => Some(&mut self.expired_at),
            BatchStatus::Cancelling => Some(&mut self.cancelling_at),
            BatchStatus::Cancelled => Some(&mut self.cancelled_at),
        };
        if let Some(field) = field {
            *field = Some(at);
        }
        self.status = status;
    }
}

/// The request that creates a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBatch {
    pub input_file_id: String,
    pub endpoint: BatchEndpoint,
    pub metadata: Option<BTreeMap<String, String>>,
}

impl NewBatch {
    /// The time in which a batch is to be answered, in seconds: OpenAI's only one.
    pub const WINDOW: u64 = 24 * 3600;

    pub fn read(body: &Map<String, Value>) -> Result<NewBatch, Refusal> {
        let mut fields = BodyFields::new(body);
        let missing = |field: &str, expected: &str| Refusal::value(field, expected, "nothing");
        let input_file_id =
            fields.text("input_file_id")?.ok_or_else(|| missing("input_file_id", "the id of an uploaded file"))?;
        let paths = BatchEndpoint::ALL.map(|endpoint| (endpoint.path(), endpoint));
        let endpoint = fields.word("endpoint", &paths)?.ok_or_else(|| missing("endpoint", paths[0].0))?;
        fields.word("completion_window", &[("24h", ())])?;
        fields.ignore(&["output_expires_after"]);
        let metadata = fields.strings("metadata")?;
        fields.finish()?;
        Ok(NewBatch { input_file_id, endpoint, metadata })
    }
}

/// A page of a list of objects, each with its id, as OpenAI's clients page through them.
pub fn list<T: Serialize>(objects: &[T], id: impl Fn(&T) -> &str, has_more: bool) -> Value {
    json!({
        "object": "list",
        "data": objects,
        "first_id": objects.first().map(&id),
        "last_id": objects.last().map(&id),
        "has_more": has_more,
    })
}

/// The answer to the deletion of a file.
pub fn deleted(id: &str) -> Value {
    json!({ "id": id, "object": "file", "deleted": true })
}
