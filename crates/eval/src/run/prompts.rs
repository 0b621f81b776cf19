//! The prompts of a task's items. Their texts are rendered and checked before a run starts; each is encoded shortly
//! before its search begins, so that a run neither waits for all of them nor keeps them. The task defines the texts,
//! the tokenizer encodes them.

use std::collections::{HashMap, HashSet};

use crate::task::choose::OfferedAnswer;
use crate::task::{Choose, Item, Method, OwnQuestion, Task, TaskPrompt};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_core::setting::SKIP_TOO_LONG;
use offshoot_core::sorting::sort_by_number;
use offshoot_kv::PromptTree;
use offshoot_launch::TextKey;
use offshoot_model::ModelFolder;
use offshoot_search::choose::{Neutral, OfferedChoice};
use offshoot_search::scorer::ScoreQuestion;
use offshoot_text::reasoning::ContentStart;
use offshoot_text::{LevelTokens, LongBeginning, SharedEncoder, Tokenizer};

/// Prompts that may be too long are encoded at the start, longest first, until this many bytes have been encoded. A
/// later error only fails its item.
const CHECKED_BYTES: usize = 1 << 18;
/// Most special tokens around a text.
const SPECIAL_TOKENS: usize = 8;

/// The longest sequence of a run: the model's context, or less if the user chose so.
#[derive(Clone, Copy, Debug)]
pub struct ContextLimit {
    pub tokens: usize,
    is_chosen: bool,
}

impl ContextLimit {
    pub fn new(model: &ModelFolder, chosen: Option<usize>) -> Self {
        let of_model = model.config.context;
        match chosen.filter(|&chosen| chosen < of_model) {
            Some(tokens) => Self { tokens, is_chosen: true },
            None => Self { tokens: of_model, is_chosen: false },
        }
    }

    /// The error of `what`, whose tokens do not fit.
    fn exceeded_by(self, what: String, tokens: usize) -> Error {
        let context = self.tokens;
        match self.is_chosen {
            true => Error::BeyondChosenContext { what, tokens, context },
            false => Error::ContextTooLong { what, tokens, context },
        }
    }
}

/// Facts about an item's prompt before it is encoded.
pub struct PromptText {
    pub key: TextKey,
    /// Bytes of the prompt with the longest offered answer, or of the scorer's prompt if that is longer.
    pub bytes: usize,
}

impl PromptText {
    /// Renders all texts that the item's search needs at its start. `is_own`: whether the run's own model is the judge.
    ///
    /// # Errors
    ///
    /// A template or a field of the item that cannot be used.
    pub fn of(task: &Task, item: &Item, tokenizer: &Tokenizer, is_own: bool) -> Result<Self> {
        let prompt = task.prompt(item)?;
        task.method.check_item(item)?;
        let text = prompt.text(tokenizer).map_err(|error| of_item(task, item, error))?;
        let offered = match &task.method {
            Method::Choose(choose) => choose.offers(item)?.iter().map(|offer| offer.text.len()).max().unwrap_or(0),
            _ => 0,
        };
        for verdict in task.verdicts().into_iter().flatten() {
            verdict.first_prompt(task.items_path(), item)?;
        }
        let asked = match task.own_question(is_own) {
            Some(own) => {
                let longest = own.words.iter().map(|(word, _)| word.len()).max().unwrap_or(0);
                own.verdict.prompt_about(item, "")?.text(tokenizer)?.len() + longest
            }
            None => 0,
        };
        Ok(Self { key: TextKey::of(&text), bytes: asked.max(text.len() + offered) })
    }

    /// Upper bound on the tokens. Only a tokenizer that replaces characters by longer ones exceeds it.
    pub fn most_tokens(&self) -> usize {
        self.bytes + SPECIAL_TOKENS
    }
}

/// One item and its prompt in tokens.
pub struct ItemPrompt<'a> {
    pub item: &'a Item,
    pub text: String,
    pub levels: LevelTokens,
    /// The offered answers, for the method `choose`. The prompt then ends before the first token that a choice could
    /// change.
    pub choices: Vec<OfferedChoice>,
    /// Where in a sample its content begins, and so the task's form.
    pub content: ContentStart,
}

impl ItemPrompt<'_> {
    pub fn tokens(&self) -> &[TokenId] {
        &self.levels.tokens
    }
}

impl AsRef<[TokenId]> for ItemPrompt<'_> {
    fn as_ref(&self) -> &[TokenId] {
        self.tokens()
    }
}

/// Encodes the prompts of a task, one after another.
pub struct PromptEncoder<'a> {
    task: &'a Task,
    model: &'a ModelFolder,
    context: ContextLimit,
    prompts: SharedEncoder<'a>,
    questions: SharedEncoder<'a>,
    /// What the model is asked about solutions.
    own: Option<OwnQuestion<'a>>,
}

impl<'a> PromptEncoder<'a> {
    /// `is_own`: whether the model is the judge, too.
    pub fn new(
        task: &'a Task,
        model: &'a ModelFolder,
        tokenizer: &'a Tokenizer,
        context: ContextLimit,
        is_own: bool,
    ) -> Self {
        let (prompts, questions) = (task.encoder(tokenizer), task.encoder_of_questions(tokenizer));
        Self { task, model, context, prompts, questions, own: task.own_question(is_own) }
    }

    /// # Errors
    ///
    /// A prompt, or a scorer's prompt, is empty, too long, or has tokens outside the model's vocabulary.
    pub fn encode(&mut self, item: &'a Item) -> Result<ItemPrompt<'a>> {
        let prompt = self.task.prompt(item)?;
        let text = prompt.text(self.prompts.tokenizer())?;
        let content = prompt.content_start(&text, self.prompts.tokenizer());
        self.check_beginning(item, &text)?;
        self.check_question(item)?;
        let encoded = match &self.task.method {
            Method::Choose(choose) => offered(choose, &prompt, item, &mut self.prompts),
            _ => prompt.encode(&mut self.prompts).map(|levels| (levels, Vec::new())),
        };
        let (levels, choices) = encoded.map_err(|error| of_item(self.task, item, error))?;
        let longest = choices.iter().map(|choice| choice.tokens.len()).max();
        self.check_fits(|| about("the prompt", self.task, item), &levels.tokens, longest)?;
        Ok(ItemPrompt { item, text, levels, choices, content })
    }

    /// Refuses a text that is far too long before all of it is encoded.
    fn check_beginning(&self, item: &Item, text: &str) -> Result<()> {
        match self.prompts.tokenizer().beginning_beyond(text, self.context.tokens)? {
            None => Ok(()),
            Some(LongBeginning { bytes, tokens }) => {
                let what = about(&format!("the beginning ({bytes} bytes) of the prompt"), self.task, item);
                Err(self.context.exceeded_by(what, tokens))
            }
        }
    }

    /// Checks the question of the method's scorer, if it has one, for an empty solution of `item`: an error in it would
    /// occur for every solution.
    fn check_question(&mut self, item: &Item) -> Result<()> {
        let Some(own) = self.own else { return Ok(()) };
        let question = question_of(own, item, "", &mut self.questions)?;
        let longest = question.words.iter().map(Vec::len).max();
        self.check_fits(|| about("the scorer's prompt", self.task, item), &question.prompt, longest)
    }

    /// Checks that a prompt fits into the context with what follows it: a sample's first token, or continuations of at
    /// most `longest` tokens; and that its tokens are in the vocabulary.
    fn check_fits(&self, what: impl Fn() -> String, tokens: &[TokenId], longest: Option<usize>) -> Result<()> {
        let needed = tokens.len() + longest.unwrap_or(1);
        if needed > self.context.tokens {
            return Err(self.context.exceeded_by(what(), longest.map_or(tokens.len(), |_| needed)));
        }
        let vocab = self.model.config.vocab;
        let Some(token) = tokens.iter().find(|token| token.ix() >= vocab) else { return Ok(()) };
        let expected = format!("tokens below the model's vocabulary of {vocab} (config.json)");
        Err(Error::field(&self.model.path, "tokenizer", expected, format!("token {token} in {}", what())))
    }

    /// Encodes the prompts of `items` that are most likely to be refused: those that may be too long, longest first and
    /// up to `CHECKED_BYTES`, and an empty one; otherwise the first one, which shows errors that all of them have.
    ///
    /// `skip_too_long`: prompts that are too long are no error, unless all are.
    ///
    /// # Errors
    ///
    /// A prompt is too long, or no prompt can be encoded. Another error of one prompt is its item's alone.
    pub fn check(&mut self, items: &'a [Item], texts: &HashMap<usize, PromptText>, skip_too_long: bool) -> Result<()> {
        let (context, text) = (self.context.tokens, |item: &Item| &texts[&item.index]);
        let mut doubtful: Vec<&Item> = items.iter().filter(|item| text(item).most_tokens() >= context).collect();
        sort_by_number(&mut doubtful, |item| u64::MAX - text(item).bytes as u64);
        let mut encoded = 0;
        doubtful.retain(|item| {
            let before = encoded;
            encoded += text(item).bytes;
            before < CHECKED_BYTES
        });
        doubtful.extend(items.iter().find(|item| text(item).key.as_ref().is_empty()));
        if doubtful.is_empty() {
            doubtful.extend(items.first());
        }
        let (mut first, mut is_sound) = (None, false);
        for &item in &doubtful {
            match self.encode(item) {
                Ok(_) => is_sound = true,
                Err(error) if error.is_too_long() && !skip_too_long => return Err(with_advice(self.task, error)),
                Err(error) => first = first.or(Some(error)),
            }
        }
        let Some(error) = first.filter(|_| !is_sound) else { return Ok(()) };
        let seen: HashSet<usize> = doubtful.iter().map(|item| item.index).collect();
        let mut others = items.iter().filter(|item| !seen.contains(&item.index));
        if others.any(|item| self.encode(item).is_ok()) { Ok(()) } else { Err(error) }
    }
}

/// Adds to the error of a prompt that is too long how its item is left out.
pub fn with_advice(task: &Task, error: Error) -> Error {
    match error.is_too_long() {
        true => Error::format(&task.path, format!("{error} ({SKIP_TOO_LONG} leaves such items out)")),
        false => error,
    }
}

/// Says of a prompt that is too long who leaves such items out, where the caller doesn't.
pub fn every_item_counts(task: &Task, error: Error) -> Error {
    match error.is_too_long() {
        true => Error::format(
            &task.path,
            format!("{error} (every item is counted here; a run with {SKIP_TOO_LONG} leaves such items out)"),
        ),
        false => error,
    }
}

/// Sorts prompts so that those that share a prefix follow each other; equal ones keep the order of the items.
pub fn in_token_order(prompts: Vec<ItemPrompt<'_>>) -> Vec<ItemPrompt<'_>> {
    let tree = PromptTree::new(prompts.as_slice());
    let mut prompts: Vec<Option<ItemPrompt<'_>>> = prompts.into_iter().map(Some).collect();
    let next = |prompt: u32| prompts[prompt as usize].take().expect("each prompt has one place in the order");
    tree.sorted().iter().map(|sorted| sorted.prompt).map(next).collect()
}

/// Adds the file and the item to an error about an item's prompt.
fn of_item(task: &Task, item: &Item, error: Error) -> Error {
    match error {
        Error::Value { what, expected, found } => {
            let field = if what == "prompt" { "prompt" } else { "method.choose.choices" };
            let expected = format!("{expected} in the {what} of item `{}`", item.id);
            Error::field(&task.path, field, expected, found)
        }
        Error::Format { path, what } => {
            let place = format!("item `{}` of {}", item.id, task.items_path().display());
            Error::format(path, format!("{what} ({place})"))
        }
        other => other,
    }
}

fn about(what: &str, task: &Task, item: &Item) -> String {
    format!("{what} of item `{}` of {}", item.id, task.items_path().display())
}

/// The offered answers of an item, in tokens, and the tokens of the prompt before them.
fn offered(
    choose: &Choose,
    prompt: &TaskPrompt,
    item: &Item,
    encoder: &mut SharedEncoder,
) -> Result<(LevelTokens, Vec<OfferedChoice>)> {
    let offers = choose.offers(item)?;
    let texts: Vec<String> = offers.iter().map(|offer| offer.text.clone()).collect();
    let encoded = prompt.encode_choices(encoder, &texts)?;
    let mut neutral = match &choose.neutral {
        Some(text) => {
            let text = TaskPrompt::Levels(vec![text.clone()]);
            let encoded = text.encode_choices(encoder, &texts)?;
            let prompt = encoded.prompt.tokens;
            encoded.continuations.into_iter().map(|tokens| Neutral { prompt: prompt.clone(), tokens }).collect()
        }
        None => Vec::new(),
    }
    .into_iter();
    let choice =
        |(OfferedAnswer { label, bytes, .. }, tokens)| OfferedChoice { label, bytes, tokens, neutral: neutral.next() };
    let choices = offers.into_iter().zip(encoded.continuations).map(choice).collect();
    Ok((encoded.prompt, choices))
}

/// A question of the run's own model about a solution of `item`, in tokens.
pub fn question_of(
    own: OwnQuestion<'_>,
    item: &Item,
    thoughts: &str,
    encoder: &mut SharedEncoder,
) -> Result<ScoreQuestion> {
    let words: Vec<String> = own.words.iter().map(|(word, _)| word.clone()).collect();
    let encoded = own.verdict.prompt_about(item, thoughts)?.encode_choices(encoder, &words)?;
    Ok(ScoreQuestion { prompt: encoded.prompt.tokens, words: encoded.continuations })
}
