//! Questions to a model of ours as tokens, and how its answers are sampled and read.

use std::sync::Arc;

use serde_json::Value;

use crate::question::{JudgeAnswer, JudgePrompt, Question, WantedAnswer};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::shortened;
use offshoot_core::ids::TokenId;
use offshoot_engine::{Finish, FinishReason, SamplingParams, Stop};
use offshoot_form::{Form, FormBegin, SampleForm};
use offshoot_text::reasoning::{ContentStart, ReasoningSplitter, TextStart};
use offshoot_text::{AddSpecial, SharedEncoder, SpecialText, TextFault};

/// The most characters of an answer in an error, which each sample's record repeats.
const MOST_SHOWN: usize = 300;

/// A question in tokens.
pub(crate) struct WrittenQuestion {
    /// The prompt; at least one token.
    pub prompt: Vec<TokenId>,
    /// What may follow it.
    pub answer: WrittenAnswer,
}

/// What may follow a prompt.
pub(crate) enum WrittenAnswer {
    /// One of these runs of tokens.
    Words(Vec<Vec<TokenId>>),
    /// JSON.
    Json(Box<WrittenJson>),
}

/// How JSON is sampled, and where it stands in the sampled text.
pub(crate) struct WrittenJson {
    pub params: SamplingParams,
    pub stop: Stop,
    start: TextStart,
}

/// A question in tokens; the encoder says what becomes of special tokens' texts in it.
///
/// # Errors
///
/// The chat template fails; special tokens are refused, and there is one; a prompt or a word without tokens.
pub(crate) fn write(encoder: &mut SharedEncoder<'_>, question: &Question) -> Result<WrittenQuestion> {
    let (text, special) = guarded(encoder, &question.prompt)?;
    match &question.answer {
        WantedAnswer::Words(words) => {
            let words: Vec<String> =
                words.iter().map(|word| encoder.guard(word).map_err(refused)).collect::<Result<_>>()?;
            let choices = encoder.encode_choices(&[text], &words, special)?;
            let answer = WrittenAnswer::Words(choices.continuations);
            Ok(WrittenQuestion { prompt: choices.prompt.tokens, answer })
        }
        WantedAnswer::Json { schema, max_tokens } => {
            let json = json(encoder, &question.prompt, &text, schema, *max_tokens);
            let prompt = encoder.encode_levels(&[text], special)?.tokens;
            Ok(WrittenQuestion { prompt, answer: WrittenAnswer::Json(Box::new(json)) })
        }
    }
}

/// A prompt's text as it is encoded, and whether special tokens are added around it.
fn guarded(encoder: &SharedEncoder<'_>, prompt: &JudgePrompt) -> Result<(String, AddSpecial)> {
    match prompt {
        JudgePrompt::Text(text) => Ok((encoder.guard(text).map_err(refused)?, AddSpecial::Yes)),
        JudgePrompt::Chat { messages, options } => {
            let (tokenizer, how) = (encoder.tokenizer(), encoder.special_text());
            let (mut messages, mut options) = (messages.clone(), options.clone());
            tokenizer.guard_chat(how, &mut messages, &mut options).map_err(|(_, fault)| refused(fault))?;
            let text = tokenizer.chat_with(&messages, &options)?;
            let joined = if how == SpecialText::Refuse { tokenizer.special_joined(&text) } else { None };
            match joined {
                Some(found) => Err(refused(TextFault::Special(found))),
                None => Ok((text, AddSpecial::No)),
            }
        }
    }
}

fn refused(fault: TextFault) -> Error {
    match fault {
        TextFault::Special(found) => {
            Error::value("prompt of the judge", "a text without special tokens", format!("{found:?}"))
        }
        TextFault::Marks(error) => *error,
    }
}

/// How JSON is sampled behind a prompt with this guarded text. Reasoning that the model's template knows is free.
fn json(
    encoder: &SharedEncoder<'_>,
    prompt: &JudgePrompt,
    text: &str,
    schema: &Arc<Value>,
    max_tokens: usize,
) -> WrittenJson {
    let tokenizer = encoder.tokenizer();
    let (shown, template) = match prompt {
        // What a sample writes at its end begins no reasoning.
        JudgePrompt::Text(_) => (text.into(), None),
        JudgePrompt::Chat { options, .. } => (tokenizer.show_special(text), tokenizer.chosen_template(options)),
    };
    let begin = FormBegin::from(ContentStart::of(&shown, None, template));
    let form = SampleForm { begin, ..Form::Json(Value::clone(schema)).into() };
    WrittenJson {
        params: SamplingParams::greedy().form(form),
        // The marks around reasoning may be special tokens.
        stop: Stop { show_special: true, ..Stop::max_tokens(max_tokens) },
        start: TextStart::of(&shown, None),
    }
}

impl WrittenJson {
    /// The JSON value of a sampled text.
    ///
    /// # Errors
    ///
    /// The text ended before the value did.
    pub fn read(&self, finish: &Finish) -> Result<JudgeAnswer> {
        let content = ReasoningSplitter::new(self.start.clone()).push_last(&finish.text).content;
        serde_json::from_str(content.trim()).map(JudgeAnswer::Json).map_err(|_| {
            let text = shortened(finish.text.clone(), MOST_SHOWN);
            let (expected, found) = match finish.reason {
                FinishReason::Length => (
                    format!("JSON that ends within {} tokens (`max_tokens`)", self.stop.max_tokens),
                    format!("a text that is cut off: {text:?}"),
                ),
                FinishReason::ContextFull => (
                    "JSON that fits the judge's context behind its prompt".to_owned(),
                    format!("a text that is cut off: {text:?}"),
                ),
                _ => ("JSON".to_owned(), format!("{text:?} (its sampling ended so: {:?})", finish.reason)),
            };
            Error::value("answer of the judge", expected, found)
        })
    }
}

/// The probability of each word relative to the others, of the natural-log probability of each.
///
/// # Errors
///
/// None of them can follow the prompt.
pub(crate) fn shares(logprobs: &[f64]) -> Result<Vec<f64>> {
    let most = logprobs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if !most.is_finite() || logprobs.iter().any(|logprob| logprob.is_nan()) {
        let found = format!("the log-probabilities {logprobs:?}");
        return Err(Error::value("answer of the judge", "a word with a probability above 0", found));
    }
    let weights: Vec<f64> = logprobs.iter().map(|logprob| (logprob - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    Ok(weights.into_iter().map(|weight| weight / sum).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_relative_to_the_words() {
        let close = |logprobs: &[f64], expected: &[f64]| {
            let found = shares(logprobs).unwrap();
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
        };
        close(&[0.03_f64.ln(), 0.01_f64.ln()], &[0.75, 0.25]);
        close(&[-2000.0, -2000.0, f64::NEG_INFINITY], &[0.5, 0.5, 0.0]);
        assert!(shares(&[f64::NEG_INFINITY; 2]).is_err() && shares(&[0.0, f64::NAN]).is_err());
    }
}
