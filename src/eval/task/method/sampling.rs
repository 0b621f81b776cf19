//! The task file's key `sampling`, read and range-checked: how tokens are sampled and when a sample ends.

use serde::Serialize;
use serde_json::Value;

use crate::error::Result;
use crate::eval::source::{TaskSection, TaskSource};

/// How tokens are sampled and when a sample ends. `None` switches a filter off.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sampling {
    /// 0: always the most probable token.
    pub temperature: f32,
    pub top_k: Option<u32>,
    /// In (0, 1]; 1 keeps every token.
    pub top_p: f32,
    /// In [0, 1]; 0 keeps every token, 1 those as probable as the best.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that have occurred; 1 does nothing.
    pub repetition_penalty: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    /// Token ids and the values added to their logits; in the file an object, `{"13": -100}`.
    pub logit_bias: Vec<(u32, f32)>,
    pub max_tokens: u32,
    /// Neither end of text nor stop strings end the sample before this many tokens.
    pub min_tokens: u32,
    /// The sample ends before the first of these strings.
    pub stop: Vec<String>,
    /// The text keeps the stop string that ended it.
    pub include_stop: bool,
    pub stop_token_ids: Vec<u32>,
    /// The model's end of text does not end a sample.
    pub ignore_eos: bool,
    /// The number of most probable tokens reported with their log-probabilities at each position, in addition to the
    /// sampled one.
    pub logprobs: Option<u32>,
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            max_tokens: 256,
            min_tokens: 0,
            stop: Vec::new(),
            include_stop: false,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            seed: 0,
        }
    }
}

const SAMPLING_KEYS: [&str; 16] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "max_tokens",
    "min_tokens",
    "stop",
    "include_stop",
    "stop_token_ids",
    "ignore_eos",
    "logprobs",
    "seed",
];

/// Maximum number of log-probabilities per position (OpenAI's limit for chat).
const MOST_LOGPROBS: u32 = 20;

impl Sampling {
    pub(crate) fn read(source: &TaskSource, value: Option<&Value>) -> Result<Sampling> {
        let default = Sampling::default();
        let Some(value) = value else { return Ok(default) };
        let s = TaskSection::open(source, "sampling".to_string(), value, &SAMPLING_KEYS)?;
        // Checked after conversion to 32 bits: 1e39 is infinite, 1e-60 is 0. The ranges are the engine's.
        let real = |key, expected, ok: &dyn Fn(f32) -> bool, default| {
            let ok = |x: f64| (x as f32).is_finite() && ok(x as f32);
            s.real(key, expected, ok).map(|x| x.map_or(default, |x| x as f32))
        };
        let any = |_| true;
        let sampling = Sampling {
            temperature: real("temperature", "a 32-bit number of at least 0", &|x| x >= 0.0, default.temperature)?,
            top_k: s.count("top_k", 1)?,
            top_p: real("top_p", "a number above 0, at most 1", &|x| x > 0.0 && x <= 1.0, default.top_p)?,
            min_p: real("min_p", "a number from 0 to 1", &|x| (0.0..=1.0).contains(&x), default.min_p)?,
            repetition_penalty: real("repetition_penalty", "a 32-bit number above 0", &|x| x > 0.0, 1.0)?,
            frequency_penalty: real("frequency_penalty", "a 32-bit number", &any, 0.0)?,
            presence_penalty: real("presence_penalty", "a 32-bit number", &any, 0.0)?,
            logit_bias: logit_bias(&s)?,
            max_tokens: s.count("max_tokens", 1)?.unwrap_or(default.max_tokens),
            min_tokens: s.count("min_tokens", 0)?.unwrap_or(0),
            stop: s.texts("stop")?,
            include_stop: s.flag("include_stop")?,
            stop_token_ids: token_ids(&s, "stop_token_ids")?,
            ignore_eos: s.flag("ignore_eos")?,
            logprobs: s.count("logprobs", 0)?,
            seed: s.whole("seed", 0)?.unwrap_or(0),
        };
        if sampling.stop.iter().any(String::is_empty) {
            return Err(crate::Error::field(&source.path, "sampling.stop", "strings that are not empty", "\"\""));
        }
        if sampling.min_tokens > sampling.max_tokens {
            return Err(s.wrong("min_tokens", format!("at most `max_tokens`, {}", sampling.max_tokens)));
        }
        if sampling.logprobs.is_some_and(|n| n > MOST_LOGPROBS) {
            return Err(s.wrong("logprobs", format!("at most {MOST_LOGPROBS}")));
        }
        Ok(sampling)
    }
}

fn token_ids(section: &TaskSection, key: &str) -> Result<Vec<u32>> {
    let wrong = || section.wrong(key, "a list of token ids");
    let Some(value) = section.get(key) else { return Ok(Vec::new()) };
    let list = value.as_array().ok_or_else(wrong)?;
    list.iter().map(|v| v.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong)).collect()
}

/// The biases in the file's order.
fn logit_bias(section: &TaskSection) -> Result<Vec<(u32, f32)>> {
    let wrong = || section.wrong("logit_bias", "an object of 32-bit numbers by token id");
    let Some(value) = section.get("logit_bias") else { return Ok(Vec::new()) };
    let biases = value.as_object().ok_or_else(wrong)?;
    let read = |(token, bias): (&String, &Value)| {
        let bias = bias.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
        Some((token.parse().ok()?, bias?))
    };
    biases.iter().map(|pair| read(pair).ok_or_else(wrong)).collect()
}
