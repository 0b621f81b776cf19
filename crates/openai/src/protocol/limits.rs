//! How much a request may ask for. The callers choose: a file of one's own may ask for more than a stranger's call.

use super::refusal::Refusal;
use offshoot_backend::MOST_TOP;
use offshoot_text::SpecialText;

/// The limits of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolLimits {
    /// `n` and `best_of`: choices and candidates per prompt.
    pub n: usize,
    /// Prompts of a request.
    pub prompts: usize,
    /// Candidates and scored texts of all prompts together.
    pub branches: usize,
    /// Tokens of a prompt; the model's context limits them too.
    pub prompt_tokens: usize,
    /// Continuations that `choices` scores; 0: `choices` is not supported.
    pub choices: usize,
    /// `logprobs`, `top_logprobs` and `prompt_logprobs`: alternatives per token.
    pub top_logprobs: usize,
    /// Stop strings and stop tokens.
    pub stops: usize,
    /// Length of a stop string, in bytes.
    pub stop_bytes: usize,
    pub logit_bias: usize,
    /// `bad_words`: words that are not sampled.
    pub bad_words: usize,
    /// The least `priority`, which goes first.
    pub priority: i32,
    /// `timeout` and `keep_seconds`, in seconds.
    pub seconds: u64,
    /// Whether answers can be streamed.
    pub streams: bool,
    /// Whether choices can be kept as branches and continued.
    pub keeps: bool,
    /// Whether a chat may bring a chat template of its own.
    pub templates: bool,
    /// What becomes of special tokens' texts in prompts and messages. Where they are not allowed, a request can choose
    /// only whether they are escaped or refused.
    pub special_text: SpecialText,
}

impl ProtocolLimits {
    /// For the requests of a file: generous, without streams and branches, which need a connection.
    pub const BATCH: ProtocolLimits = ProtocolLimits {
        n: 100_000,
        prompts: usize::MAX,
        branches: usize::MAX,
        prompt_tokens: usize::MAX,
        choices: 0,
        top_logprobs: 20,
        stops: usize::MAX,
        stop_bytes: usize::MAX,
        logit_bias: usize::MAX,
        bad_words: usize::MAX,
        priority: i32::MIN,
        seconds: u64::MAX,
        streams: false,
        keeps: false,
        templates: true,
        special_text: SpecialText::Allow,
    };

    /// For the trainers that a server has for its clients: distillation asks for many alternatives.
    pub fn rollout() -> Self {
        ProtocolLimits { top_logprobs: MOST_TOP, priority: i32::MIN, ..ProtocolLimits::default() }
    }

    /// Refuses a list of `found` entries in `field` that is longer than `most`.
    pub(super) fn check(field: &str, most: usize, found: usize, entries: &str) -> Result<(), Refusal> {
        match found <= most {
            true => Ok(()),
            false => Err(Refusal::value(field, &format!("at most {most} {entries}"), &found.to_string())),
        }
    }
}

impl Default for ProtocolLimits {
    /// For a server's clients.
    fn default() -> Self {
        ProtocolLimits {
            n: 16_384,
            prompts: 4_096,
            branches: 65_536,
            prompt_tokens: usize::MAX,
            choices: 4_096,
            top_logprobs: 20,
            stops: 32,
            stop_bytes: 256,
            logit_bias: 1_024,
            bad_words: 1_024,
            priority: -20,
            seconds: 86_400,
            streams: true,
            keeps: true,
            templates: false,
            special_text: SpecialText::Allow,
        }
    }
}
