//! What a folder's files of sentence-transformers say of an embedder: at which token its vector is read, and whether
//! vectors have length 1. What the vectors are is left to the model.

use std::path::{Path, PathBuf};

use serde_json::Value;

use offshoot_core::error::{Error, Result};

use super::folder::read_json;

const MODULES: &str = "modules.json";

/// What becomes of an embedder's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbedderPooling {
    /// Whether vectors are brought to length 1.
    pub normalises: bool,
}

impl EmbedderPooling {
    /// Reads a model folder's modules.json and the config of its pooling. A folder without them has the last token's
    /// vector, of length 1.
    ///
    /// # Errors
    ///
    /// A file is not what it must be; or the vector is not that of the last token, or goes through further layers.
    pub fn read(folder: &Path) -> Result<EmbedderPooling> {
        let path = folder.join(MODULES);
        if !path.is_file() {
            return Ok(EmbedderPooling { normalises: true });
        }
        let mut normalises = false;
        for (kind, part) in modules(&path)? {
            match kind.as_str() {
                "Transformer" => {}
                "Pooling" => check_pooling(&folder.join(part).join("config.json"))?,
                "Normalize" => normalises = true,
                other => {
                    let expected = "the modules Transformer, Pooling and Normalize";
                    return Err(Error::field(&path, "type", expected, other));
                }
            }
        }
        Ok(EmbedderPooling { normalises })
    }
}

/// Whether a folder has the modules of an embedder. What is wrong with them is said where they are read.
pub fn pools(folder: &Path) -> bool {
    modules(&folder.join(MODULES)).is_ok_and(|modules| modules.iter().any(|(kind, _)| kind == "Pooling"))
}

/// The kinds of the modules, and their folders.
fn modules(path: &Path) -> Result<Vec<(String, PathBuf)>> {
    let json = read_json(path)?;
    let module = |module: &Value| {
        let kind = module["type"].as_str()?.rsplit('.').next()?;
        Some((kind.to_owned(), PathBuf::from(module["path"].as_str()?)))
    };
    let list = json.as_array().and_then(|list| list.iter().map(module).collect::<Option<Vec<_>>>());
    list.ok_or_else(|| Error::format(path, "expected a list of modules with `type` and `path`"))
}

/// Refuses a pooling of others than the last token.
fn check_pooling(path: &Path) -> Result<()> {
    let json = read_json(path)?;
    let asked: Vec<&str> = match (json["pooling_mode"].as_str(), json.as_object()) {
        (Some(mode), _) => vec![mode],
        (None, Some(fields)) => {
            let modes = fields.iter().filter(|(_, value)| **value == Value::Bool(true));
            modes.filter_map(|(name, _)| name.strip_prefix("pooling_mode_")).collect()
        }
        (None, None) => Vec::new(),
    };
    match asked[..] {
        ["lasttoken"] => Ok(()),
        _ => {
            let expected = "lasttoken alone, as the vector of a text is that of its last token";
            Err(Error::field(path, "pooling_mode", expected, format!("[{}]", asked.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(modules: &str, pooling: &str) -> tempfile::TempDir {
        let folder = tempfile::TempDir::new().unwrap();
        std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
        std::fs::write(folder.path().join(MODULES), modules).unwrap();
        std::fs::write(folder.path().join("1_Pooling/config.json"), pooling).unwrap();
        folder
    }

    const MODULE_LIST: &str = r#"[{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}NORMALIZE]"#;

    fn modules_with(more: &str) -> String {
        MODULE_LIST.replace("NORMALIZE", more)
    }

    #[test]
    fn the_last_token_is_read_and_vectors_are_normalised_where_the_modules_say_so() {
        let last = r#"{"pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true, "include_prompt": true}"#;
        let plain = folder(&modules_with(""), last);
        assert_eq!(EmbedderPooling::read(plain.path()).unwrap(), EmbedderPooling { normalises: false });
        let normalize = r#", {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}"#;
        let normalised = folder(&modules_with(normalize), r#"{"pooling_mode": "lasttoken"}"#);
        assert_eq!(EmbedderPooling::read(normalised.path()).unwrap(), EmbedderPooling { normalises: true });
        assert!(pools(normalised.path()));
        let bare = tempfile::TempDir::new().unwrap();
        assert_eq!(EmbedderPooling::read(bare.path()).unwrap(), EmbedderPooling { normalises: true });
        assert!(!pools(bare.path()));
    }

    #[test]
    fn other_poolings_and_modules_are_refused_by_name() {
        let mean = folder(&modules_with(""), r#"{"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": false}"#);
        let error = EmbedderPooling::read(mean.path()).unwrap_err().to_string();
        assert!(error.contains("1_Pooling") && error.contains("mean_tokens"), "{error}");
        let dense = r#", {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}"#;
        let dense = folder(&modules_with(dense), r#"{"pooling_mode": "lasttoken"}"#);
        let error = EmbedderPooling::read(dense.path()).unwrap_err().to_string();
        assert!(error.contains(MODULES) && error.contains("Dense"), "{error}");
    }
}
