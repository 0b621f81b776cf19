//! A request for values of texts, in tokens.

use offshoot_core::ids::TokenId;
use offshoot_engine::Priority;
use offshoot_kv::CacheSalt;
use offshoot_score::Rendered;

use super::encoding::Encoding;

/// A request for values.
pub struct PoolingRequest {
    /// What the answer calls the model.
    pub model: String,
    /// The texts, each at least one token.
    pub texts: Vec<TextToRead>,
    pub priority: Priority,
    /// Texts of other salts share nothing with these.
    pub salt: Option<CacheSalt>,
    /// The client's name for it.
    pub request_id: Option<String>,
    pub(super) wish: Wish,
}

/// A text, and the tokens at which values are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextToRead {
    pub tokens: Vec<TokenId>,
    /// The indices of these tokens, rising; at least one.
    pub at: Vec<u32>,
}

/// The values of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct TextValues {
    /// For each token at which values are read, what the model gives there.
    pub rows: Vec<Box<[f32]>>,
    /// Tokens of the text that were not computed for it.
    pub cached: usize,
}

/// What becomes of the values.
pub(super) enum Wish {
    /// `/pooling` of a scorer. `each`: the rows of the text's tokens or steps, and not one.
    Rows { each: bool, activates: bool, encoding: Encoding },
    /// `/classify`.
    Classes { activates: bool },
    /// `/pooling` of an embedder and `/v1/embeddings`. `data`: the name of what an entry has, as which kind of object.
    Vectors { kind: VectorKind, normalises: bool, encoding: Encoding },
    /// `/score` and `/rerank`.
    Scores { pairs: PairScores, ranking: Option<Ranking> },
}

/// How an answer calls vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VectorKind {
    /// `data` of an object `pooling`.
    Pooling,
    /// `embedding` of an object of that name.
    Embedding,
}

/// How the values of texts become scores of pairs.
pub(super) enum PairScores {
    /// Each text is a pair, and its one value the score.
    Value { activates: bool },
    /// Each text is a pair in the scorer's form, by which its values become the score.
    Form(Vec<Rendered>),
    /// The first texts are queries, of which one alone is that of all documents; the others are documents. The score is
    /// the cosine of their vectors.
    Cosine { queries: usize },
}

/// What an answer of `/rerank` has beside the scores.
pub(super) struct Ranking {
    /// The texts of the documents.
    pub documents: Vec<String>,
    /// How many are told.
    pub most: usize,
}
