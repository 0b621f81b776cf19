//! What a tree-of-thought search asks the model about paths, and how it reads the thoughts that are generated.

use std::path::PathBuf;

use regex::Regex;
use serde_json::{Map, Value, json};

use crate::answer;
use crate::task::items::Item;
use crate::task::prompt::{PromptTemplate, TaskPrompt};
use crate::task::verdict::TaskVerdict;
use offshoot_core::error::Result;
use offshoot_core::figures::counted;
use offshoot_core::ids::TokenId;
use offshoot_search::tree::Prompt;
use offshoot_search::tree_of_thought::{Evaluate, Generate, Texts, ThoughtSearch, ThoughtTraversal};

/// Tree of thoughts (Yao et al., 2023): the search's settings, and how its texts are written and read.
#[derive(Debug)]
pub struct TreeOfThought {
    pub settings: ThoughtSearch<QuestionTemplate>,
    /// What a judge is asked about paths, where it scores them.
    pub judge: Option<TaskVerdict>,
    pub(super) thought: Option<Regex>,
    pub(super) end: Option<Regex>,
    pub(super) extract: Vec<(String, Regex)>,
    pub(super) state: Option<PromptTemplate>,
    /// The section of the task file from which it was read.
    pub(super) source: Value,
}

/// A template of a question about paths.
#[derive(Debug)]
pub struct QuestionTemplate(pub(super) Box<PromptTemplate>);

/// Equal if the sections of the task file are.
impl PartialEq for TreeOfThought {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for TreeOfThought {}

impl TreeOfThought {
    /// The search in words, for the first line of a summary.
    pub fn described(&self) -> String {
        let how = &self.settings;
        let paths = match how.search {
            ThoughtTraversal::Bfs => format!("breadth {}", how.breadth),
            ThoughtTraversal::Dfs { visits, .. } => counted(visits.into(), "visit"),
        };
        let drawn = match how.generate {
            Generate::Sample { thoughts, .. } => counted(thoughts.into(), "thought"),
            Generate::Propose { lists, .. } => counted(lists.into(), "list") + " of thoughts",
        };
        format!("{paths} x {drawn}, {}", counted(how.steps.into(), "step"))
    }

    /// A key that is equal for paths in the same state. `None`: the task does not define it.
    fn state(&self, item: &Item, thoughts: &[String]) -> Result<Option<String>> {
        let Some(template) = &self.state else { return Ok(None) };
        match template.render(&self.about(item, thoughts, &[]))? {
            TaskPrompt::Levels(levels) => Ok(Some(levels.concat())),
            TaskPrompt::Chat { .. } => unreachable!("a state is read as one template"),
        }
    }

    /// A question about the path of `thoughts`, with what `more` its template may name.
    fn ask(
        &self,
        question: &QuestionTemplate,
        item: &Item,
        thoughts: &[String],
        more: &[(&str, Value)],
    ) -> Result<TaskPrompt> {
        question.0.render(&self.about(item, thoughts, more))
    }

    /// Renders the questions about an item without thoughts, so that missing fields are found early.
    pub fn check_item(&self, item: &Item) -> Result<()> {
        self.state(item, &[])?;
        match &self.settings.generate {
            Generate::Sample { .. } => {}
            Generate::Propose { question, .. } => drop(self.ask(question, item, &[], &[])?),
        }
        match &self.settings.evaluate {
            Evaluate::Value { question, last, .. } => {
                self.ask(question, item, &[], &[])?;
                last.iter().try_for_each(|last| self.ask(last, item, &[], &[("answer", json!(""))]).map(drop))
            }
            Evaluate::Vote { question, .. } => self.ask(question, item, &[], &[("choices", json!([]))]).map(drop),
            Evaluate::Scorer => Ok(()),
        }
    }

    /// The files included in questions about `item`, without thoughts, by paths that are templates.
    pub(crate) fn prompt_files(&self, item: &Item) -> Result<Vec<PathBuf>> {
        let propose = match &self.settings.generate {
            Generate::Sample { .. } => None,
            Generate::Propose { question, .. } => Some(question),
        };
        let (evaluate, last) = match &self.settings.evaluate {
            Evaluate::Value { question, last, .. } => (Some(question), last.as_ref()),
            Evaluate::Vote { question, .. } => (Some(question), None),
            Evaluate::Scorer => (None, None),
        };
        let about = self.about(item, &[], &[("answer", json!("")), ("choices", json!([]))]);
        let questions = propose.into_iter().chain(evaluate).chain(last).map(|question| &*question.0);
        let mut files = Vec::new();
        for prompt in questions.chain(&self.state) {
            files.extend(prompt.files(&about)?);
        }
        Ok(files)
    }

    /// The item with the path's names added to its fields.
    fn about(&self, item: &Item, thoughts: &[String], more: &[(&str, Value)]) -> Item {
        let last = thoughts.last().map_or("", String::as_str);
        let mut fields: Map<String, Value> = item.fields.clone();
        for (name, regex) in &self.extract {
            fields.insert(name.clone(), found(regex, last).unwrap_or_default().into());
        }
        let own = [("last", json!(last)), ("path", json!(thoughts.join("\n"))), ("step", json!(thoughts.len()))];
        let names = own.into_iter().chain([("thoughts", json!(thoughts))]).chain(more.iter().cloned());
        fields.extend(names.map(|(name, value)| (name.to_string(), value)));
        Item { fields, ..item.clone() }
    }
}

/// A task's texts about `item`.
#[derive(Clone, Copy)]
pub struct ItemTexts<'a> {
    pub how: &'a TreeOfThought,
    pub item: &'a Item,
    /// A prompt as text and tokens.
    pub render: &'a dyn Fn(&TaskPrompt) -> Result<Prompt>,
    /// The tokens of a text that continues another.
    pub continuation: &'a dyn Fn(&str) -> Result<Vec<TokenId>>,
}

impl Texts for ItemTexts<'_> {
    type Question = QuestionTemplate;

    fn ask(&self, question: &QuestionTemplate, thoughts: &[String]) -> Result<Prompt> {
        (self.render)(&self.how.ask(question, self.item, thoughts, &[])?)
    }

    fn ask_about_answer(&self, question: &QuestionTemplate, thoughts: &[String], answer: &str) -> Result<Prompt> {
        (self.render)(&self.how.ask(question, self.item, thoughts, &[("answer", json!(answer))])?)
    }

    fn ask_for_choice(&self, question: &QuestionTemplate, paths: &[&[String]]) -> Result<Prompt> {
        let choices: Vec<String> = paths.iter().map(|thoughts| thoughts.join("\n")).collect();
        (self.render)(&self.how.ask(question, self.item, &[], &[("choices", json!(choices))])?)
    }

    /// The trimmed text or, if the task has a regex for thoughts, its match (its first group, or the whole match).
    fn thought(&self, text: &str) -> Option<String> {
        let text = text.trim();
        let thought = match &self.how.thought {
            Some(regex) => found(regex, text)?,
            None => text.to_string(),
        };
        (!thought.is_empty()).then_some(thought)
    }

    fn ends(&self, thought: &str) -> bool {
        self.how.end.as_ref().is_some_and(|end| end.is_match(thought))
    }

    fn state(&self, thoughts: &[String]) -> Result<Option<String>> {
        self.how.state(self.item, thoughts)
    }

    fn continuation(&self, text: &str) -> Result<Vec<TokenId>> {
        (self.continuation)(text)
    }
}

/// The first matched group of the regex's first match, or the whole match if it has no groups.
fn found(regex: &Regex, text: &str) -> Option<String> {
    regex.captures(text).and_then(|captures| answer::found(&captures)).map(|found| found.trim().to_string())
}
