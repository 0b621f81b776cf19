//! A loaded model, as a program holds it: opens folders, encodes prompts, begins trees and samples lists of prompts.
//! What a search does with its tree is left to the search.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use offshoot_backend::{KvDtype, StateDtype};
use offshoot_core::ids::TokenId;
use offshoot_core::setting::TENSOR_PARALLEL;
use offshoot_core::{Error, Result};
use offshoot_engine::{EngineHandle, Metrics};
use offshoot_kv::plan::Planner;
use offshoot_launch::{Devices, EngineOptions, PrefixFolder};
use offshoot_model::{ActivationChoice, MadeFormat};
use offshoot_search::tree::{Prompt, SamplingTree};
use offshoot_text::{AddSpecial, Message, Tokenizer};

use crate::generate::Generate;

/// A model in memory and the engine that runs it. Clones share it; threads may, too, and what they sample runs in one
/// batch. The memory is free once the last clone and the last tree are dropped.
#[derive(Clone)]
pub struct Model {
    engine: EngineHandle,
    tokenizer: Arc<Tokenizer>,
    not_cuda: Option<String>,
}

impl Model {
    /// Opens a model folder as Hugging Face has it, or a GGUF file, on the first usable GPU with room for it, else on
    /// the CPU. [`Model::builder`] chooses devices and memory.
    ///
    /// # Errors
    ///
    /// The folder is no model that is known, or no device has room for it.
    pub fn open(path: impl AsRef<Path>) -> Result<Model> {
        Model::builder(path).open()
    }

    /// The settings of a model that is not open yet.
    pub fn builder(path: impl AsRef<Path>) -> ModelBuilder {
        ModelBuilder { path: path.as_ref().to_path_buf(), options: EngineOptions::default(), ranks: 1 }
    }

    /// A tree whose root is a prompt: a text, tokens, or a conversation for the model's chat template.
    ///
    /// ```no_run
    /// # fn main() -> offshoot::Result<()> {
    /// # let model = offshoot::Model::open("tasks/models/demo")?;
    /// let mut tree = model.tree("Question: What is 2 + 2?\nAnswer:")?.seed(1);
    /// let answers = tree.fork(tree.root(), 8)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The prompt is empty or longer than the model's context, or cannot be encoded; the engine has stopped.
    pub fn tree(&self, prompt: impl ToPrompt) -> Result<SamplingTree> {
        SamplingTree::new(self.engine.clone(), prompt.to_prompt(self)?)
    }

    /// A prompt with its tokens, as [`SamplingTree::ask`] takes it.
    ///
    /// # Errors
    ///
    /// The tokenizer cannot encode the text, or the model has no chat template.
    pub fn prompt(&self, prompt: impl ToPrompt) -> Result<Prompt> {
        prompt.to_prompt(self)
    }

    /// Samples each of several prompts: for jobs that need no tree. What prompts begin with alike is computed once.
    pub fn generate<P: ToPrompt>(&self, prompts: impl IntoIterator<Item = P>) -> Generate<'_> {
        Generate::new(&self.engine, prompts.into_iter().map(|prompt| prompt.to_prompt(self)).collect())
    }

    /// The tokens of a text that continues another, as [`SamplingTree::score`] and [`SamplingTree::extend_given`] take
    /// them: without the special tokens that begin a prompt.
    ///
    /// # Errors
    ///
    /// The tokenizer cannot encode this text.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>> {
        self.tokenizer.encode(text, AddSpecial::No)
    }

    /// The text of tokens, without special tokens. Bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        self.tokenizer.decode(tokens)
    }

    /// The text of tokens that continue others, whose text is left out.
    pub fn decode_after(&self, before: &[TokenId], tokens: &[TokenId]) -> String {
        self.tokenizer.stream(before).text_of(tokens)
    }

    /// The device in one line, and why it is not a GPU if none was usable.
    pub fn device(&self) -> String {
        let device = &self.engine.facts().device;
        self.not_cuda.as_ref().map_or_else(|| device.clone(), |why| format!("{device}; {why}"))
    }

    /// Most tokens of a prompt and what follows it.
    pub fn context(&self) -> usize {
        self.engine.facts().context
    }

    /// Number of tokens in the model's vocabulary.
    pub fn vocab(&self) -> usize {
        self.engine.facts().vocab
    }

    /// The engine's counters since it started: tokens asked for and computed, memory held.
    ///
    /// # Errors
    ///
    /// The engine has stopped.
    pub fn metrics(&self) -> Result<Metrics> {
        self.engine.metrics()
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("folder", &self.tokenizer.folder()).field("device", &self.device()).finish()
    }
}

/// How a model is opened. What is not set follows from the device and the model.
///
/// ```no_run
/// use offshoot::{DeviceChoice, KvDtype, Model};
///
/// # fn main() -> offshoot::Result<()> {
/// let model = Model::builder("models/llama").devices(DeviceChoice::Cuda { ordinal: 0 }).tensor_parallel(2)
///     .kv_dtype(KvDtype::Fp8).memory(0.8).open()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ModelBuilder {
    path: PathBuf,
    options: EngineOptions,
    ranks: usize,
}

impl ModelBuilder {
    /// Chooses the device ([`DeviceChoice`](crate::DeviceChoice)), or several, each of which then has the whole model
    /// and serves a part of the prompts. Both can be parsed: `"cuda:1".parse::<DeviceChoice>()?`.
    pub fn devices(mut self, devices: impl Into<Devices>) -> Self {
        self.options.devices = devices.into();
        self
    }

    /// Has so many devices compute one model together: those of [`devices`](Self::devices), or the one device and those
    /// after it. GPUs without NVLink exchange through NCCL, if `NCCL_NVLS_ENABLE=0` is in the environment.
    pub fn tensor_parallel(mut self, devices: usize) -> Self {
        self.ranks = devices;
        self
    }

    /// Takes this share of each device's free memory for keys and values: above 0, at most 1.
    pub fn memory(mut self, share: f64) -> Self {
        self.options.budget.memory = Some(share);
        self
    }

    /// Takes this share on GPUs alone, whose memory no other program needs.
    pub fn gpu_memory(mut self, share: f64) -> Self {
        self.options.budget.gpu_memory = Some(share);
        self
    }

    /// Takes so many bytes of each device for keys and values.
    pub fn kv_memory(mut self, bytes: usize) -> Self {
        self.options.budget.pool_bytes = Some(bytes);
        self
    }

    /// Takes so many bytes of the memory for keys and values for copies of latents that are expanded, for a model with
    /// latent attention. Where the device is exact without them, results then depend on what others read, by rounding.
    pub fn latent_copies(mut self, bytes: usize) -> Self {
        self.options.budget.latent_copies = Some(bytes);
        self
    }

    /// Takes so many bytes of host memory for nodes that have to wait because the device's memory is full.
    pub fn swap_memory(mut self, bytes: usize) -> Self {
        self.options.budget.swap_bytes = Some(bytes);
        self
    }

    /// Extends at most so many nodes at once; others wait.
    pub fn max_branches(mut self, branches: usize) -> Self {
        self.options.budget.max_branches = Some(branches);
        self
    }

    /// Limits a prompt and what follows it to so many tokens.
    pub fn context(mut self, tokens: usize) -> Self {
        self.options.budget.context = Some(tokens);
        self
    }

    /// Makes results bit-identical on GPUs, too, at the cost of speed. On the CPU they always are.
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.options.budget.deterministic = deterministic;
        self
    }

    /// Keeps the experts that a mixture's layers choose for each token, for samples that ask for them
    /// ([`SamplingParams::routes`](crate::SamplingParams::routes)).
    pub fn keeps_routes(mut self, keeps: bool) -> Self {
        self.options.budget.keeps_routes = keeps;
        self
    }

    /// Chooses how keys and values are stored.
    pub fn kv_dtype(mut self, dtype: KvDtype) -> Self {
        self.options.budget.kv = dtype;
        self
    }

    /// Chooses how the states of delta-rule layers are stored.
    pub fn state_dtype(mut self, dtype: StateDtype) -> Self {
        self.options.budget.states = dtype;
        self
    }

    /// Makes dense weights smaller when they are loaded.
    pub fn weights(mut self, format: MadeFormat) -> Self {
        self.options.budget.weights.weights = Some(format);
        self
    }

    /// Chooses what activations are rounded to before they are multiplied with smaller weights.
    pub fn activations(mut self, choice: ActivationChoice) -> Self {
        self.options.budget.weights.activations = choice;
        self
    }

    /// Chooses how attention is shared: for comparisons. Samples are the same.
    pub fn plan(mut self, planner: Planner) -> Self {
        self.options.plan = Some(planner);
        self
    }

    /// Keeps computed prompts in a folder, at most so many bytes, for models that are opened later.
    pub fn prefix_store(mut self, folder: impl AsRef<Path>, most_bytes: u64) -> Self {
        self.options.prefix_store = Some(PrefixFolder::new(folder.as_ref().to_path_buf(), most_bytes));
        self
    }

    /// Loads the model and starts its engine.
    ///
    /// # Errors
    ///
    /// A setting is out of its range; the folder is no model that is known; a device cannot be used, or has no room.
    pub fn open(self) -> Result<Model> {
        let ModelBuilder { path, mut options, ranks } = self;
        match ranks {
            0 => return Err(Error::value(TENSOR_PARALLEL, "a number from 1 up", "0")),
            1 => {}
            _ => options.devices = options.devices.together(ranks)?,
        }
        let (launched, tokenizer) = options.open(&path)?;
        let not_cuda = launched.not_cuda.map(|why| why.to_string());
        Ok(Model { engine: launched.engine, tokenizer, not_cuda })
    }
}

/// What can be a prompt: a text, tokens, the turns of a conversation, or a prompt that was encoded before.
pub trait ToPrompt {
    /// The tokens of this prompt for `model`, and its text.
    ///
    /// # Errors
    ///
    /// The tokenizer cannot encode the text, or the model has no chat template.
    fn to_prompt(&self, model: &Model) -> Result<Prompt>;
}

/// A text, with the special tokens that the tokenizer adds to a prompt.
impl ToPrompt for str {
    fn to_prompt(&self, model: &Model) -> Result<Prompt> {
        Ok(Prompt { tokens: model.tokenizer.encode(self, AddSpecial::Yes)?, text: self.to_string() })
    }
}

impl ToPrompt for String {
    fn to_prompt(&self, model: &Model) -> Result<Prompt> {
        self.as_str().to_prompt(model)
    }
}

/// Tokens as they are.
impl ToPrompt for [TokenId] {
    fn to_prompt(&self, model: &Model) -> Result<Prompt> {
        Ok(Prompt { text: model.tokenizer.decode_with_special(self), tokens: self.to_vec() })
    }
}

/// A conversation in the model's chat template, up to the start of the assistant's turn.
impl ToPrompt for [Message] {
    fn to_prompt(&self, model: &Model) -> Result<Prompt> {
        let text = model.tokenizer.chat(self)?;
        Ok(Prompt { tokens: model.tokenizer.encode(&text, AddSpecial::No)?, text })
    }
}

impl<T, const N: usize> ToPrompt for [T; N]
where
    [T]: ToPrompt,
{
    fn to_prompt(&self, model: &Model) -> Result<Prompt> {
        self.as_slice().to_prompt(model)
    }
}

impl<T> ToPrompt for Vec<T>
where
    [T]: ToPrompt,
{
    fn to_prompt(&self, model: &Model) -> Result<Prompt> {
        self.as_slice().to_prompt(model)
    }
}

impl ToPrompt for Prompt {
    fn to_prompt(&self, _: &Model) -> Result<Prompt> {
        Ok(self.clone())
    }
}

impl<T: ToPrompt + ?Sized> ToPrompt for &T {
    fn to_prompt(&self, model: &Model) -> Result<Prompt> {
        (**self).to_prompt(model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceChoice, SamplingParams, Stop};

    fn demo() -> Model {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tasks/models/demo");
        Model::builder(folder).devices(DeviceChoice::Cpu).open().expect("the bundled model opens")
    }

    #[test]
    fn completions_are_the_forks_of_trees() {
        let model = demo();
        let prompts = ["Question: What is 2 + 2?\nAnswer:", "Question: What is 3 + 4?\nAnswer:"];
        let (how, stop) = (SamplingParams::default().temperature(0.8), Stop::max_tokens(20).at("\n"));
        let completions = model.generate(prompts).samples(3).params(how.clone()).stop(stop.clone()).seed(7);
        let completions = completions.run().expect("it samples");
        for (number, (prompt, samples)) in prompts.iter().zip(&completions).enumerate() {
            let mut tree = model.tree(prompt).expect("a short prompt").seed(7).named(number.to_string());
            let forks = tree.fork(tree.root(), 3).expect("the root is open");
            tree.extend(&forks, &how, &stop).expect("it samples");
            let tokens = forks.iter().map(|&node| &tree.node(node).tokens);
            assert!(tokens.eq(samples.iter().map(|sample| &sample.tokens)), "{prompt}");
            assert!(forks.iter().zip(samples).all(|(&node, sample)| tree.path_text(node) == sample.text));
        }
        let again = model.generate(prompts).samples(3).params(how).stop(stop).seed(8).run().expect("it samples");
        assert_ne!(again, completions, "another seed");
    }

    #[test]
    fn a_prompt_is_a_text_or_tokens_or_a_conversation() {
        let model = demo();
        let text = model.prompt("Question: What is 2 + 2?").expect("a text");
        assert_eq!(text.text, "Question: What is 2 + 2?");
        let tokens = model.prompt(&text.tokens).expect("tokens");
        assert_eq!(tokens.tokens, text.tokens);
        assert_eq!(model.prompt(&tokens).expect("a prompt"), tokens);
        assert_eq!(model.decode(&text.tokens), text.text);
        let (before, after) = text.tokens.split_at(text.tokens.len() / 2);
        assert_eq!(model.decode(before) + &model.decode_after(before, after), text.text);
        let chat = [Message::system("Be short."), Message::user("What is 2 + 2?")];
        let chat = model.prompt(&chat).expect("a conversation");
        assert_eq!(chat.text, "<|begin_of_text|>Be short.\n\nQuestion: What is 2 + 2?\nAnswer:");
        assert_eq!(model.decode(&chat.tokens), "Be short.\n\nQuestion: What is 2 + 2?\nAnswer:");
    }

    #[test]
    #[should_panic(expected = "before the first fork")]
    fn the_seed_is_set_before_the_first_fork() {
        let mut tree = demo().tree("Question:").expect("a short prompt");
        tree.fork(tree.root(), 1).expect("the root is open");
        drop(tree.seed(2));
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let refused = |builder: ModelBuilder| builder.open().expect_err("out of range").to_string();
        let builder = || Model::builder("no/folder");
        for (said, name) in [
            (refused(builder().memory(1.5)), "`memory`"),
            (refused(builder().kv_memory(0)), "`kv_memory`"),
            (refused(builder().max_branches(0)), "`max_branches`"),
            (refused(builder().tensor_parallel(0)), "`tensor_parallel`"),
            (refused(builder()), "no/folder"),
        ] {
            assert!(said.contains(name), "{said}");
        }
    }
}
