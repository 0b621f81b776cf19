//! The words of options that the command alone has.

use offshoot_args::words::Word;
use offshoot_engine::{LogprobsMode, StoredPrefixes};
use offshoot_estimate::Predict;
use offshoot_eval::run::ResultFormat;
use offshoot_eval::run::vote_scores::{Scale, VoteBy};
use offshoot_eval::scoring::ExtractMode;
use offshoot_openai::protocol::Reasoning;
use offshoot_search::settings::Aggregate;
use offshoot_text::SpecialText;

pub(super) const RESULT_FORMATS: &[Word<ResultFormat>] = &[
    ("jsonl", ResultFormat::Jsonl, "JSON lines alone"),
    ("parquet", ResultFormat::Parquet, "JSON lines, and the same as Parquet"),
];

pub(super) const EXTRACT_MODES: &[Word<ExtractMode>] = &[
    (
        "auto",
        ExtractMode::Auto,
        "The program between fences or behind prose; a text that continues its prompt stays whole",
    ),
    ("none", ExtractMode::None, "The whole text, behind its reasoning"),
    ("fence", ExtractMode::Fence, "The program between fences; a text without them has none"),
];

/// What happens to the text of `<think>` in chats that do not say.
pub(super) const REASONINGS: &[Word<Reasoning>] = &[
    ("keep", Reasoning::Keep, "It stays in `content`"),
    ("split", Reasoning::Split, "It goes to `reasoning_content`"),
];

/// Whose log-probabilities are returned to requests that do not say.
pub(super) const LOGPROBS_MODES: &[Word<LogprobsMode>] = &[
    ("raw_logprobs", LogprobsMode::RawLogprobs, "The model's own, at temperature 1"),
    (
        "processed_logprobs",
        LogprobsMode::ProcessedLogprobs,
        "Those of the distribution that each token was drawn from, after penalties, temperature and filters",
    ),
];

/// Whose prefixes a server writes to its prefix store.
pub(super) const STORED_PREFIXES: &[Word<StoredPrefixes>] = &[
    ("prompts", StoredPrefixes::Prompts, "Those of every client's prompts, whose texts keys and values tell"),
    ("pinned", StoredPrefixes::Pinned, "Those of --prefix alone"),
];

/// What becomes of special tokens' texts in what users write.
pub(super) const SPECIAL_TEXTS: &[Word<SpecialText>] = &[
    ("allow", SpecialText::Allow, "They become the tokens, as in transformers"),
    ("escape", SpecialText::Escape, "They are plain text"),
    ("refuse", SpecialText::Refuse, "The request is refused"),
];

pub(super) const PREDICTIONS: &[Word<Predict>] = &[
    ("auto", Predict::Auto, "If the prediction takes only seconds"),
    ("always", Predict::Always, ""),
    ("never", Predict::Never, ""),
];

/// How the scores of steps become one.
pub(super) const AGGREGATES: &[Word<Aggregate>] = &[
    ("last", Aggregate::Last, "The last step's"),
    ("min", Aggregate::Min, "The smallest"),
    ("product", Aggregate::Product, "Their product"),
    ("mean", Aggregate::Mean, "Their mean"),
];

/// What scores are.
pub(super) const SCALES: &[Word<Scale>] = &[
    ("probability", Scale::Probability, "Probabilities, which a vote weighs as they are"),
    ("logit", Scale::Logit, "Logits, which a vote weighs by their sigmoids"),
];

/// What chooses among scored samples.
pub(super) const RULES: &[Word<VoteBy>] = &[
    ("weighted", VoteBy::Weighted, "The answer with the largest sum of scores"),
    ("best", VoteBy::Best, "The answer of the sample with the best score"),
    ("majority", VoteBy::Majority, "The most frequent answer"),
];
