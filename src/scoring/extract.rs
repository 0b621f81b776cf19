//! Where a sample's program stands in its text: all of it, or the code between a chat model's fences.

use clap::ValueEnum;

use super::samples::Text;
use crate::task::benchmark::with_body;
use crate::task::language::Language;
use crate::task::problem::{Assembly, Problem};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Extract {
    /// A fenced block where the text is to be a whole program and has one
    Auto,
    /// The text as it stands
    None,
    /// A fenced block, also where samples continue a prompt
    Fence,
}

/// The program to judge.
pub fn program(problem: &Problem, language: &Language, text: &Text, extract: Extract) -> String {
    let fenced = |text: &str| match extract {
        Extract::None => None,
        Extract::Auto | Extract::Fence => block(text).map(str::to_string),
    };
    if *language != Language::Python {
        return fenced(text.as_str()).unwrap_or_else(|| text.as_str().to_string());
    }
    match (text, &problem.assembly) {
        (Text::Completion(text), Assembly::After(prompt)) => match fenced(text).filter(|_| extract == Extract::Fence) {
            // The block defines the function anew; the prompt's imports and helpers stand above it.
            Some(block) => format!("{}\n{block}", with_body(prompt)),
            None => problem.assembly.program(text),
        },
        (Text::Completion(text), Assembly::Whole | Assembly::WithImports) | (Text::Program(text), _) => {
            problem.assembly.whole(&fenced(text).unwrap_or_else(|| text.clone()))
        }
    }
}

/// The longest block between lines that begin with three backticks, the first of equals; one that does not end counts to the
/// text's end.
fn block(text: &str) -> Option<&str> {
    let mut blocks = Vec::new();
    let (mut start, mut at) = (None, 0);
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        if line.trim_start().starts_with("```") {
            start = match start {
                None => Some(end),
                Some(start) => {
                    blocks.push(&text[start..at]);
                    None
                }
            };
        }
        at = end;
    }
    blocks.extend(start.map(|start| &text[start..]));
    blocks.into_iter().rev().max_by_key(|block| block.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_block() {
        let chat = "Here:\n```python\nx = 1\nprint(x)\n```\nand\n```\nls\n```\n";
        assert_eq!(block(chat), Some("x = 1\nprint(x)\n"));
        assert_eq!(block("so\n```py\nx = 1"), Some("x = 1"), "a block that does not end");
        assert_eq!(block("print('```')"), None);
        assert_eq!(block("```"), Some(""));
    }
}
