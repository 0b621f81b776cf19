//! What a model folder's config.json says of a scorer beside its shapes: its class, the names of its head's columns,
//! what becomes of its values, and its padding token. What the head computes is left to the crate that reads models.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::form::Activation;
use crate::output::HeadFacts;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_core::{input, json};

/// What config.json says of a scorer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScorerConfig {
    class: String,
    labels: Vec<String>,
    padding: Option<TokenId>,
    activation: Option<Activation>,
}

impl ScorerConfig {
    /// Reads a model folder's config.json.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is no JSON; it names no class; its labels have other numbers than 0, 1 and so on; its
    /// padding token is no token; its values go through a function that is not known.
    pub fn read(folder: &Path) -> Result<ScorerConfig> {
        let path = folder.join("config.json");
        let bytes = input::model_file(&path)?;
        let config: Value =
            serde_json::from_slice(&bytes).map_err(|error| Error::format(&path, format!("not JSON: {error}")))?;
        let file = ConfigFile { path, config };
        let (class, labels, padding) = (file.class()?, file.labels()?, file.padding()?);
        Ok(ScorerConfig { class, labels, padding, activation: file.activation()? })
    }

    /// The first of `architectures`.
    pub fn class(&self) -> &str {
        &self.class
    }

    /// These facts and the width of the head, which its tensors tell.
    pub fn head(&self, width: usize) -> HeadFacts {
        HeadFacts { width, labels: self.labels.clone(), padding: self.padding }
    }

    /// What becomes of the values of a head of this width where they are asked for as probabilities: what the file
    /// says, or else a softmax of several and the sigmoid of one.
    pub fn activation(&self, width: usize) -> Activation {
        match self.activation {
            // A softmax over one value is 1 whatever it is.
            Some(Activation::Softmax) | None if width == 1 => Activation::Sigmoid,
            None => Activation::Softmax,
            Some(activation) => activation,
        }
    }
}

struct ConfigFile {
    path: PathBuf,
    config: Value,
}

impl ConfigFile {
    /// The config of a model that reads texts among other things has the text's part in a field of its own.
    fn value(&self, name: &str) -> Option<&Value> {
        let written = |config: &&Value| config.get(name).is_some_and(|value| !value.is_null());
        let parts = [Some(&self.config), self.config.get("text_config")];
        parts.into_iter().flatten().find(written)?.get(name)
    }

    fn wrong(&self, name: &str, expected: &str, found: Option<&Value>) -> Error {
        let found = found.map_or_else(|| "nothing".to_owned(), |found| json::cut_json(found, 60));
        Error::field(&self.path, name, expected, found)
    }

    fn class(&self) -> Result<String> {
        let found = self.value("architectures");
        let first = match found {
            Some(Value::Array(classes)) => classes.first().and_then(Value::as_str),
            Some(Value::String(class)) => Some(class.as_str()),
            _ => None,
        };
        let expected = "a list with the class of the model, such as \"Qwen3ForSequenceClassification\"";
        first.map(str::to_owned).ok_or_else(|| self.wrong("architectures", expected, found))
    }

    /// The labels in the order of their numbers, which are the keys.
    fn labels(&self) -> Result<Vec<String>> {
        let Some(found) = self.value("id2label") else { return Ok(Vec::new()) };
        let in_order = || -> Option<Vec<String>> {
            let labels = found.as_object()?;
            (0..labels.len()).map(|ix| Some(labels.get(&ix.to_string())?.as_str()?.to_owned())).collect()
        };
        let expected = "an object with a name for each of \"0\", \"1\" and so on";
        in_order().ok_or_else(|| self.wrong("id2label", expected, Some(found)))
    }

    /// What becomes of the values, as transformers and sentence-transformers write it; `None`: it follows from the
    /// head's width.
    fn activation(&self) -> Result<Option<Activation>> {
        match self.value("problem_type").and_then(Value::as_str) {
            Some("regression") => return Ok(Some(Activation::None)),
            Some("single_label_classification") => return Ok(None),
            Some("multi_label_classification") => return Ok(Some(Activation::Sigmoid)),
            _ => {}
        }
        const FIELDS: [&str; 2] = ["sentence_transformers.activation_fn", "sbert_ce_default_activation_function"];
        let nested = self.value("sentence_transformers").and_then(|part| part.get("activation_fn"));
        let named = [nested, self.value(FIELDS[1])].into_iter().zip(FIELDS);
        let Some((found, field)) = named.filter_map(|(value, field)| Some((value?, field))).find(|(v, _)| !v.is_null())
        else {
            return Ok(None);
        };
        match found.as_str().and_then(|name| name.rsplit('.').next()) {
            Some("Identity") => Ok(Some(Activation::None)),
            // As vLLM has it, either becomes the one that the width asks for.
            Some("Sigmoid" | "Softmax") => Ok(None),
            _ => Err(self.wrong(field, "Identity, Sigmoid or Softmax of torch.nn.modules", Some(found))),
        }
    }

    /// Some configs write -1 for none.
    fn padding(&self) -> Result<Option<TokenId>> {
        let Some(found) = self.value("pad_token_id") else { return Ok(None) };
        if found.as_i64().is_some_and(|id| id < 0) {
            return Ok(None);
        }
        let id = found.as_u64().and_then(|id| u32::try_from(id).ok());
        id.map(|id| Some(TokenId(id))).ok_or_else(|| self.wrong("pad_token_id", "a token", Some(found)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &str) -> Result<ScorerConfig> {
        let folder = tempfile::TempDir::new().unwrap();
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        ScorerConfig::read(folder.path())
    }

    #[test]
    fn class_labels_and_padding() {
        let config = read(
            r#"{"architectures": ["Qwen2ForTokenClassification"], "pad_token_id": 7,
                "id2label": {"1": "right", "0": "wrong", "2": "a", "3": "b", "4": "c", "5": "d", "6": "e", "7": "f",
                             "8": "g", "9": "h", "10": "i"}}"#,
        );
        let config = config.unwrap();
        assert_eq!(config.class(), "Qwen2ForTokenClassification");
        let head = config.head(11);
        assert_eq!((&*head.labels[1], &*head.labels[10], head.padding), ("right", "i", Some(TokenId(7))));
        let bare = read(r#"{"architectures": "LlamaForScore", "pad_token_id": -1, "id2label": null}"#).unwrap();
        assert_eq!(bare.head(1), HeadFacts { width: 1, labels: Vec::new(), padding: None });
        let inner = r#"{"architectures": ["X"], "pad_token_id": null, "text_config": {"pad_token_id": 3}}"#;
        assert_eq!(read(inner).unwrap().head(1).padding, Some(TokenId(3)));
    }

    #[test]
    fn what_becomes_of_values() {
        let of = |fields: &str, width: usize| {
            read(&format!(r#"{{"architectures": ["X"], {fields}}}"#)).unwrap().activation(width)
        };
        let nothing = r#""problem_type": null"#;
        assert_eq!((of(nothing, 1), of(nothing, 3)), (Activation::Sigmoid, Activation::Softmax));
        let regression = r#""problem_type": "regression""#;
        assert_eq!((of(regression, 1), of(regression, 3)), (Activation::None, Activation::None));
        assert_eq!(of(r#""problem_type": "multi_label_classification""#, 3), Activation::Sigmoid);
        assert_eq!(of(r#""problem_type": "single_label_classification""#, 1), Activation::Sigmoid);
        let torch = r#""sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}"#;
        assert_eq!(of(torch, 1), Activation::None);
        let older = r#""sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid""#;
        assert_eq!((of(older, 1), of(older, 2)), (Activation::Sigmoid, Activation::Softmax));
    }

    #[test]
    fn a_wrong_field_is_named() {
        let cases = [
            (
                r#"{"architectures": ["X"], "sbert_ce_default_activation_function": "os.system"}"#,
                "sbert_ce_default_activation_function",
                "os.system",
            ),
            ("{}", "architectures", "nothing"),
            (r#"{"architectures": []}"#, "architectures", "[]"),
            (r#"{"architectures": ["X"], "id2label": {"1": "a"}}"#, "id2label", "\"1\""),
            (r#"{"architectures": ["X"], "id2label": {"0": 1}}"#, "id2label", "\"0\""),
            (r#"{"architectures": ["X"], "pad_token_id": "x"}"#, "pad_token_id", "\"x\""),
            (r#"{"architectures": ["X"], "pad_token_id": 4294967296}"#, "pad_token_id", "4294967296"),
            ("{", "not JSON", "config.json"),
        ];
        for (config, field, found) in cases {
            let error = read(config).unwrap_err().to_string();
            assert!(error.contains(field) && error.contains(found), "{config}: {error}");
        }
        let missing = ScorerConfig::read(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(missing.contains("config.json"), "{missing}");
    }
}
