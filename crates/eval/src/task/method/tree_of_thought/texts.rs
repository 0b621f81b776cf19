//! The texts of a tree-of-thought search about one item, from the task's templates and regexes.

use crate::task::items::Item;
use crate::task::prompt::TaskPrompt;
use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;
use offshoot_search::tree::Prompt;
use offshoot_search::tree_of_thought::Texts;

use super::questions::{QuestionTemplate, TreeOfThought};

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
        (self.render)(&self.how.ask(question, self.item, thoughts)?)
    }

    fn ask_about_answer(&self, question: &QuestionTemplate, thoughts: &[String], answer: &str) -> Result<Prompt> {
        (self.render)(&self.how.ask_about_answer(question, self.item, thoughts, answer)?)
    }

    fn ask_for_choice(&self, question: &QuestionTemplate, paths: &[&[String]]) -> Result<Prompt> {
        (self.render)(&self.how.ask_for_choice(question, self.item, paths)?)
    }

    fn thought(&self, text: &str) -> Option<String> {
        self.how.thought(text)
    }

    fn ends(&self, thought: &str) -> bool {
        self.how.ends(thought)
    }

    fn state(&self, thoughts: &[String]) -> Result<Option<String>> {
        self.how.state(self.item, thoughts)
    }

    fn continuation(&self, text: &str) -> Result<Vec<TokenId>> {
        (self.continuation)(text)
    }
}
