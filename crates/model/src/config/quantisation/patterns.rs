//! Patterns of module names, as the tools that quantise write them into config.json.

use regex::{RegexSet, escape};

/// Names of modules that any of some patterns matches.
#[derive(Clone, Debug)]
pub struct Patterns(RegexSet);

impl PartialEq for Patterns {
    fn eq(&self, other: &Self) -> bool {
        self.0.patterns() == other.0.patterns()
    }
}

/// How a tool writes patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternStyle {
    /// transformers' `modules_to_not_convert`: a regular expression for the beginning of a name, or the end of a name.
    Transformers,
    /// compressed-tensors: a whole name, or after `re:` a regular expression for the beginning of one.
    CompressedTensors,
    /// ModelOpt: a whole name, in which `*` stands for anything, or the module above.
    Glob,
}

impl Patterns {
    /// The pattern at fault if one is no regular expression.
    pub fn of(style: PatternStyle, texts: &[&str]) -> Result<Self, String> {
        let mut sources = Vec::new();
        for text in texts {
            let own: Vec<String> = match (style, text.strip_prefix("re:")) {
                (PatternStyle::CompressedTensors, Some(regex)) => vec![format!("^(?:{regex})")],
                (PatternStyle::CompressedTensors, None) => vec![format!("^{}$", escape(text))],
                (PatternStyle::Glob, _) => vec![format!(r"^{}(\..*)?$", escape(text).replace(r"\*", ".*"))],
                (PatternStyle::Transformers, _) => {
                    vec![format!("^(?:{text})"), format!("{}$", escape(text))]
                }
            };
            if RegexSet::new(&own).is_err() {
                return Err((*text).to_owned());
            }
            sources.extend(own);
        }
        RegexSet::new(sources).map(Self).map_err(|_| "all of them together, which are too large".to_owned())
    }

    /// What either of two matches.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let sources = self.0.patterns().iter().chain(other.0.patterns());
        Self(RegexSet::new(sources).unwrap_or_else(|_| self.0.clone()))
    }

    pub fn matches(&self, module: &str) -> bool {
        self.0.is_match(module)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_style_matches_as_its_tool_does() {
        let patterns = |style, text: &str| Patterns::of(style, &[text]).expect("a pattern");
        let (layer, head) = ("model.layers.3.mlp.gate", "lm_head");
        assert!(patterns(PatternStyle::Transformers, "model.layers.*.mlp").matches(layer));
        assert!(patterns(PatternStyle::Transformers, "gate").matches(layer));
        assert!(patterns(PatternStyle::Transformers, "lm_head").matches(head));
        assert!(!patterns(PatternStyle::Transformers, "mlp").matches(layer));
        assert!(patterns(PatternStyle::CompressedTensors, "re:.*mlp.gate$").matches(layer));
        assert!(!patterns(PatternStyle::CompressedTensors, "gate").matches(layer));
        assert!(patterns(PatternStyle::CompressedTensors, "lm_head").matches(head));
        assert!(patterns(PatternStyle::Glob, "model.layers.*.mlp").matches(layer));
        assert!(!patterns(PatternStyle::Glob, "model.layers.1").matches("model.layers.11.mlp"));
        assert_eq!(Patterns::of(PatternStyle::CompressedTensors, &["re:("]).expect_err("no expression"), "re:(");
    }
}
