//! Completions of a list of prompts in one call, for programs that need no tree.

use offshoot_core::Result;
use offshoot_engine::{EngineHandle, Finish, Hear, Priority, SamplingParams, Stop, UniformKey};
use offshoot_launch::{PromptRequest, generate};
use offshoot_search::tree::Prompt;

/// Samples of a list of prompts ([`Model::generate`](crate::Model::generate)): one of each, at temperature 1 and of at
/// most 256 tokens, unless it is set otherwise.
///
/// ```no_run
/// use offshoot::{Model, SamplingParams, Stop};
///
/// # fn main() -> offshoot::Result<()> {
/// let model = Model::open("tasks/models/demo")?;
/// let questions = ["Question: What is 2 + 2?\nAnswer:", "Question: What is 3 + 4?\nAnswer:"];
/// let how = SamplingParams::default().temperature(0.7);
/// for samples in model.generate(questions).samples(4).params(how).stop(Stop::max_tokens(100)).run()? {
///     println!("{}", samples[0].text);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is sampled before `run`"]
pub struct Generate<'a> {
    engine: &'a EngineHandle,
    prompts: Result<Vec<Prompt>>,
    samples: usize,
    params: SamplingParams,
    stop: Stop,
    seed: u64,
}

impl<'a> Generate<'a> {
    pub(crate) fn new(engine: &'a EngineHandle, prompts: Result<Vec<Prompt>>) -> Self {
        let (params, stop) = (SamplingParams::default(), Stop::default());
        Generate { engine, prompts, samples: 1, params, stop, seed: 0 }
    }

    /// Takes so many samples of each prompt.
    pub fn samples(self, samples: usize) -> Self {
        Generate { samples, ..self }
    }

    /// Chooses how tokens are sampled.
    pub fn params(self, params: SamplingParams) -> Self {
        Generate { params, ..self }
    }

    /// Chooses when a sample ends.
    pub fn stop(self, stop: Stop) -> Self {
        Generate { stop, ..self }
    }

    /// Sets the seed, 0 unless it is set. Prompt number `i` has the samples that forks of the root have in
    /// `model.tree(prompt)?.seed(seed).named(i.to_string())`.
    pub fn seed(self, seed: u64) -> Self {
        Generate { seed, ..self }
    }

    /// Samples, and returns the samples of each prompt in their order. Blocks.
    ///
    /// # Errors
    ///
    /// A prompt cannot be encoded or does not fit the model's context; a parameter is out of range; memory is too small
    /// for a sample; the engine has stopped.
    pub fn run(self) -> Result<Vec<Vec<Finish>>> {
        let Generate { engine, prompts, samples, params, stop, seed } = self;
        let prompts = prompts?;
        let prompts = prompts.iter().enumerate();
        let requests = prompts.map(|(number, Prompt { tokens, .. })| PromptRequest {
            tokens,
            n: samples,
            prompt_logprobs: None,
            params: &params,
            stop: &stop,
            uniforms: UniformKey::root(seed, &number.to_string()),
            priority: Priority::default(),
        });
        generate(engine, requests.collect(), Hear::Finishes).collect_all()
    }
}
