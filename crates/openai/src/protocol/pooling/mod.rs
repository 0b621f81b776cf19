//! Requests for values of texts, as vLLM's server takes them: the classes and scores of a reward model or classifier,
//! and the vectors of an embedder. A body becomes texts in tokens with the places at which values are read, and these
//! values become an answer. JSON in, JSON out: who computes the values is left to the callers.

mod answer;
mod encoding;
mod model;
mod pairs;
mod reader;
mod request;

pub use answer::PoolingHead;
pub use model::{EmbedderValues, PoolingModel, ScorerValues};
pub use request::{PoolingRequest, TextToRead, TextValues};

/// An endpoint that answers with values of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolingEndpoint {
    /// What the model computes: a text's classes, those of its tokens or steps, or its vector.
    Pooling,
    /// The classes of texts.
    Classify,
    /// The scores of pairs: of answers to questions, or of documents for queries.
    Score,
    /// The same, the best ones first.
    Rerank,
    /// The vectors of texts, as OpenAI has them.
    Embeddings,
}

impl PoolingEndpoint {
    pub const ALL: [PoolingEndpoint; 5] = [
        PoolingEndpoint::Pooling,
        PoolingEndpoint::Classify,
        PoolingEndpoint::Score,
        PoolingEndpoint::Rerank,
        PoolingEndpoint::Embeddings,
    ];

    pub fn paths(self) -> &'static [&'static str] {
        match self {
            PoolingEndpoint::Pooling => &["/pooling"],
            PoolingEndpoint::Classify => &["/classify"],
            PoolingEndpoint::Score => &["/score", "/v1/score"],
            PoolingEndpoint::Rerank => &["/rerank", "/v1/rerank", "/v2/rerank"],
            PoolingEndpoint::Embeddings => &["/v1/embeddings"],
        }
    }

    /// The prefix of response ids.
    pub fn id_prefix(self) -> &'static str {
        match self {
            PoolingEndpoint::Pooling => "pooling-",
            PoolingEndpoint::Classify => "classify-",
            PoolingEndpoint::Score | PoolingEndpoint::Rerank => "score-",
            PoolingEndpoint::Embeddings => "embd-",
        }
    }
}
