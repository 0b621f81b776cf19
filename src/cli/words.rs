//! The words of options that the command alone has.

use offshoot_args::words::Word;
use offshoot_estimate::Predict;
use offshoot_eval::run::ResultFormat;
use offshoot_eval::scoring::ExtractMode;
use offshoot_openai::protocol::Reasoning;
use offshoot_text::SpecialText;

pub(super) const RESULT_FORMATS: &[Word<ResultFormat>] = &[
    ("jsonl", ResultFormat::Jsonl, "JSON lines alone"),
    ("parquet", ResultFormat::Parquet, "JSON lines, and the same as Parquet"),
];

pub(super) const EXTRACT_MODES: &[Word<ExtractMode>] = &[
    ("auto", ExtractMode::Auto, "A fenced block if there is one and the text should be a complete program"),
    ("none", ExtractMode::None, "The whole text"),
    ("fence", ExtractMode::Fence, "A fenced block, even if samples continue a prompt"),
];

/// What happens to the text of `<think>` in chats that do not say.
pub(super) const REASONINGS: &[Word<Reasoning>] = &[
    ("keep", Reasoning::Keep, "It stays in `content`"),
    ("split", Reasoning::Split, "It goes to `reasoning_content`"),
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
