//! Where in a sample the content of an answer begins: at once, behind reasoning that the prompt has opened or that the
//! sample may open, or in the final channel. The prompt tells, and the chat template that wrote it. A form holds from
//! there on; `reasoning` splits the sampled text in the same places.
#![warn(missing_docs)]

use super::channels;
use super::reasoning::{MARKS, TextStart, opened};

/// Where in a sample the content of its answer begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentStart {
    /// With the first token.
    #[default]
    AtOnce,
    /// Behind the reasoning.
    BehindReasoning {
        /// The beginning of the mark that opens the reasoning, where the sample may open it or begin with the content;
        /// `None`: the prompt has opened it.
        open: Option<&'static str>,
        /// The mark that closes the reasoning.
        close: &'static str,
    },
    /// Behind the header of the channel `final` (gpt-oss' harmony format).
    FinalChannel,
}

impl ContentStart {
    /// Where the content begins in a sample behind `prompt`, which ends with `answer` where it has begun one.
    /// `template`: the source of the chat template that wrote the prompt; without one a sample may not open reasoning
    /// of its own.
    pub fn of(prompt: &str, answer: Option<&str>, template: Option<&str>) -> Self {
        if let Some(marks) = opened(prompt, answer) {
            return ContentStart::BehindReasoning { open: None, close: marks.close };
        }
        if let TextStart::Channels(begun) = TextStart::of(prompt, answer) {
            return begun.content_start();
        }
        if prompt.ends_with(channels::TURN) {
            return ContentStart::FinalChannel;
        }
        let has_content = answer.is_some_and(|answer| !answer.trim().is_empty());
        let is_closed = || MARKS.iter().any(|marks| prompt.trim_end().ends_with(marks.close));
        let Some(template) = template.filter(|_| !has_content && !is_closed()) else { return ContentStart::AtOnce };
        if template.contains(channels::BEGIN) {
            return ContentStart::FinalChannel;
        }
        // A template knows both marks, or only that behind which the content of earlier answers stands.
        let known = MARKS.iter().find(|marks| template.contains(marks.begin) || template.contains(marks.close));
        known.map_or(ContentStart::AtOnce, |marks| ContentStart::BehindReasoning {
            open: Some(marks.begin),
            close: marks.close,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(open: Option<&'static str>, close: &'static str) -> ContentStart {
        ContentStart::BehindReasoning { open, close }
    }

    #[test]
    fn prompt_and_template_tell_where_the_content_begins() {
        let hybrid = "{{ m.content.split('</think>')[-1] }}{% if not enable_thinking %}<think>\n\n</think>{% endif %}";
        let gemma = "{{ '<|channel>thought\n' }}{{ '<channel|>' }}";
        let harmony = "{{ '<|start|>assistant<|channel|>final<|message|>' }}";
        let may = behind(Some("<think>"), "</think>");
        let cases = [
            // The template of a model that never reasons, and a text without a template.
            ("[user] a\n[assistant]", None, Some("{{ m }}"), ContentStart::AtOnce),
            ("[user] a\n[assistant]", None, None, ContentStart::AtOnce),
            // The prompt opens the reasoning, closes it at once, or leaves it to the model.
            ("<|im_start|>assistant\n<think>\n", None, Some(hybrid), behind(None, "</think>")),
            ("<|im_start|>assistant\n<think>\n", None, None, behind(None, "</think>")),
            ("<|im_start|>assistant\n<think>\n\n</think>\n\n", None, Some(hybrid), ContentStart::AtOnce),
            ("<|im_start|>assistant\n", None, Some(hybrid), may),
            ("<|Assistant|></think>", None, Some("<think>"), ContentStart::AtOnce),
            ("<|turn>model\n", None, Some(gemma), behind(Some("<|channel>"), "<channel|>")),
            ("<|turn>model\n<|channel>thought\n", None, Some(gemma), behind(None, "<channel|>")),
            ("<|turn>model\n<|channel>thought\n<channel|>", None, Some(gemma), ContentStart::AtOnce),
            ("[INST]a[/INST]", None, Some("[THINK]"), behind(Some("[THINK]"), "[/THINK]")),
            ("<seed:bos>assistant\n", None, Some("<seed:think>"), behind(Some("<seed:think>"), "</seed:think>")),
            // An answer that goes on.
            ("a<think>so", Some("<think>so"), Some(hybrid), behind(None, "</think>")),
            ("a<thinking>so", Some("<thinking>so"), None, behind(None, "</thinking>")),
            ("a<think>so</think>{", Some("<think>so</think>{"), Some(hybrid), ContentStart::AtOnce),
            ("a{", Some("{"), Some(hybrid), ContentStart::AtOnce),
            ("a", Some(" "), Some(hybrid), may),
            // Channels.
            ("<|start|>assistant", None, Some(harmony), ContentStart::FinalChannel),
            ("<|start|>assistant<|channel|>analysis<|message|>so", None, Some(harmony), ContentStart::FinalChannel),
            ("<|start|>assistant<|channel|>final<|message|>", None, Some(harmony), ContentStart::AtOnce),
            ("<|start|>assistant<|channel|>final", None, Some(harmony), behind(None, "<|message|>")),
            ("<|start|>assis", None, None, ContentStart::FinalChannel),
            ("<|start|>assistant", Some("<|start|>assistant"), None, ContentStart::FinalChannel),
        ];
        for (prompt, answer, template, start) in cases {
            assert_eq!(ContentStart::of(prompt, answer, template), start, "{prompt:?} {answer:?} {template:?}");
        }
    }
}
