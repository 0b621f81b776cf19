//! How one prompt is sampled, checked once when Python makes it: the engine's parameters and stop conditions, the
//! number of samples, the seed.

use std::num::{NonZeroU16, NonZeroUsize};

use offshoot::{SamplingParams, Stop, TokenId};
use offshoot_engine::{ConfidenceStop, KeptForm, LogprobsMode, Records};
use offshoot_form::SampleForm;
use offshoot_text::reasoning::ContentStart;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::forms::NativeForm;

/// The sampling of one prompt, in the engine's terms.
#[pyclass(frozen, module = "offshoot._offshoot")]
#[derive(Clone)]
pub struct Sampling {
    pub params: SamplingParams,
    pub stop: Stop,
    /// Samples of a prompt.
    pub n: usize,
    /// How many of the likeliest tokens are reported in place of each of the prompt's, at least one: so that its rank
    /// is known, too. `None`: it is not scored.
    pub prompt_logprobs: Option<usize>,
}

#[pymethods]
impl Sampling {
    #[new]
    #[pyo3(signature = (
        *, n=1, temperature=1.0, top_p=1.0, top_k=None, min_p=0.0, repetition_penalty=1.0, frequency_penalty=0.0,
        presence_penalty=0.0, logit_bias=Vec::new(),
        allowed_token_ids=None, bad_words=Vec::new(), logprobs=None, prompt_logprobs=None, max_tokens=256, min_tokens=0,
        stop=Vec::new(), stop_token_ids=Vec::new(), ignore_eos=false, include_stop=false, show_special=false,
        logprobs_mode="raw_logprobs", return_kept=None, return_entropy=false,
        return_routed_experts=false, form=None, confidence_of=None, confidence_stop=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        n: usize,
        temperature: f32,
        top_p: f32,
        top_k: Option<u32>,
        min_p: f32,
        repetition_penalty: f32,
        frequency_penalty: f32,
        presence_penalty: f32,
        logit_bias: Vec<(u32, f32)>,
        allowed_token_ids: Option<Vec<u32>>,
        bad_words: Vec<Vec<u32>>,
        logprobs: Option<usize>,
        prompt_logprobs: Option<usize>,
        max_tokens: usize,
        min_tokens: usize,
        stop: Vec<String>,
        stop_token_ids: Vec<u32>,
        ignore_eos: bool,
        include_stop: bool,
        show_special: bool,
        logprobs_mode: &str,
        return_kept: Option<&str>,
        return_entropy: bool,
        return_routed_experts: bool,
        form: Option<&NativeForm>,
        confidence_of: Option<u16>,
        confidence_stop: Option<(usize, f64)>,
    ) -> PyResult<Sampling> {
        let kept = return_kept.map(|name| word("return_kept", &KeptForm::WORDS, name)).transpose()?;
        let params = SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            logit_bias: logit_bias.into_iter().map(|(token, bias)| (TokenId(token), bias)).collect(),
            allowed: allowed_token_ids.map(token_ids),
            form: form.map(|form| SampleForm::shared(form.0.clone())),
            bad_words: bad_words.into_iter().map(token_ids).collect(),
            top_logprobs: logprobs,
            logprobs_mode: word("logprobs_mode", &LogprobsMode::WORDS, logprobs_mode)?,
            records: Records {
                entropy: return_entropy,
                confidence: confidence_of.and_then(NonZeroU16::new),
                ..kept.map_or_else(Records::default, KeptForm::records)
            },
            routes: return_routed_experts,
        };
        let tokens = stop_token_ids.into_iter().map(TokenId).collect();
        let of_window = |(window, below)| Some(ConfidenceStop { window: NonZeroUsize::new(window)?, below });
        let (strings, confidence) = (stop, confidence_stop.and_then(of_window));
        let stop = Stop { max_tokens, min_tokens, strings, tokens, ignore_eos, include_stop, show_special, confidence };
        let prompt_logprobs = prompt_logprobs.map(|most| most.max(1));
        Ok(Sampling { params, stop, n, prompt_logprobs })
    }

    #[getter]
    fn n(&self) -> usize {
        self.n
    }

    /// The sampling behind a prompt, of its text: where it has a form, that begins where the content of the answer
    /// does. `answer`: the end of the prompt with which it has begun an answer; `template`: the source of the chat
    /// template that wrote the prompt.
    #[pyo3(signature = (prompt, answer=None, template=None))]
    fn behind(&self, prompt: &str, answer: Option<&str>, template: Option<&str>) -> Sampling {
        self.beginning(|| ContentStart::of(prompt, answer, template))
    }
}

impl Sampling {
    /// The same with a form that begins there.
    pub fn beginning(&self, content: impl FnOnce() -> ContentStart) -> Sampling {
        let mut sampling = self.clone();
        if let Some(form) = &mut sampling.params.form {
            form.begin = content().into();
        }
        sampling
    }
}

/// What `name` stands for among the values of an argument.
pub fn word<T: Copy>(argument: &str, words: &[(&str, T)], name: &str) -> PyResult<T> {
    let found = words.iter().find(|(word, _)| *word == name);
    found.map(|&(_, value)| value).ok_or_else(|| {
        let expected: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        PyValueError::new_err(format!("{argument}: expected one of {}, found {name:?}", expected.join(", ")))
    })
}

/// Token ids of Python's.
pub fn token_ids(tokens: Vec<u32>) -> Vec<TokenId> {
    tokens.into_iter().map(TokenId).collect()
}
