//! From a task file to prompts in tokens: everything that can be wrong about a job is found here, before a model is loaded.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::model::ModelFolder;
use crate::model::check::{Facts, facts};
use crate::task::{Item, Overrides, Task};
use crate::tokenizer::Tokenizer;

use super::RunOptions;

/// A job whose prompts are known.
pub struct Prepared {
    pub task: Task,
    pub model: PathBuf,
    pub folder: ModelFolder,
    pub facts: Facts,
    pub tokenizer: Arc<Tokenizer>,
    /// In the order in which they are run: by tokens, so that prompts which share a prefix follow each other.
    pub prompts: Vec<ItemPrompt>,
}

/// One item and what the model is given for it.
pub struct ItemPrompt {
    pub item: Item,
    pub text: String,
    pub tokens: Vec<TokenId>,
    /// Where each level ends in `tokens`.
    pub level_ends: Vec<usize>,
}

impl Prepared {
    pub fn new(path: &std::path::Path, options: &RunOptions) -> Result<Self> {
        let overrides = Overrides {
            set: options.set.clone(),
            samples: options.samples,
            seed: options.seed,
            model: options.model.clone(),
        };
        let task = Task::load(path, &overrides)?;
        let Some(model) = task.model.clone() else {
            return Err(Error::field(
                path,
                "model",
                "a model folder here or by --model",
                "nothing (the key is missing)",
            ));
        };
        let folder = ModelFolder::open(&model)?;
        let facts = facts(&folder)?;
        let tokenizer = Arc::new(Tokenizer::load(&model)?);
        let context = folder.config.context;
        let mut prompts = Vec::new();
        for item in task.items(options.limit)? {
            prompts.push(ItemPrompt::new(&task, item, &tokenizer, context)?);
        }
        if prompts.is_empty() {
            return Err(Error::field(task.items_path(), "items", "at least one item", "none"));
        }
        prompts.sort_by(|a, b| a.tokens.cmp(&b.tokens).then(a.item.index.cmp(&b.item.index)));
        Ok(Self { task, model, folder, facts, tokenizer, prompts })
    }

    /// Tokens of the prefix tree of all prompts: each shared run counted once.
    pub fn distinct_tokens(&self) -> usize {
        let mut previous: &[TokenId] = &[];
        let mut distinct = 0;
        for prompt in &self.prompts {
            let shared = previous.iter().zip(&prompt.tokens).take_while(|(a, b)| a == b).count();
            distinct += prompt.tokens.len() - shared;
            previous = &prompt.tokens;
        }
        distinct
    }

    /// Most tokens of keys and values worth having: every prompt, and the samples of `in_flight` items at their longest, each in
    /// pages of its own.
    pub fn most_kv_tokens(&self, in_flight: usize, page_tokens: usize) -> usize {
        let longest = (self.task.sampling.max_tokens as usize).min(self.folder.config.context) + 2 * page_tokens;
        let samples = in_flight * self.task.method.samples() as usize * longest;
        self.prompt_tokens() + 2 * page_tokens * self.prompts.len() + samples
    }

    /// Tokens of all prompts, each counted in full.
    pub fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.tokens.len()).sum()
    }
}

impl ItemPrompt {
    fn new(task: &Task, item: Item, tokenizer: &Tokenizer, context: usize) -> Result<Self> {
        let prompt = task.prompt(&item)?;
        let text = prompt.text(tokenizer)?;
        let encoded = prompt.encode(tokenizer)?;
        let tokens = encoded.tokens;
        if tokens.len() >= context {
            let what = format!("the prompt of item `{}` of {}", item.id, task.items_path().display());
            return Err(Error::ContextTooLong { what, tokens: tokens.len(), context });
        }
        Ok(Self { item, text, tokens, level_ends: encoded.level_ends })
    }
}
