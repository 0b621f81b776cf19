//! Names of models on the Hugging Face Hub: whether a path may be one, and how such a model is downloaded. Offshoot
//! reads folders only and never uses a network.

use std::path::{Component, Path};

/// Whether `path` is like a name on the Hub: `Qwen/Qwen2.5-Coder-1.5B`.
pub fn is_name(path: &Path) -> bool {
    let is_plain = |part: Component<'_>| {
        let Component::Normal(part) = part else { return false };
        let mut letters = part.to_str().unwrap_or_default().chars();
        letters.next().is_some_and(char::is_alphanumeric)
            && letters.all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    path.components().count() == 2 && path.components().all(is_plain)
}

/// The sentence about a model folder that does not exist; `typed`: its path as the user wrote it.
pub fn no_folder(typed: &Path) -> String {
    let name = typed.display();
    match typed.file_name().filter(|_| is_name(typed)) {
        Some(folder) => {
            let folder = folder.display();
            format!(
                "no such folder; if it is a model on the Hugging Face Hub, `hf download {name} --local-dir {folder}` \
                 makes the folder {folder}"
            )
        }
        None => "no such folder".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_an_owner_and_a_model() {
        for name in ["Qwen/Qwen2.5-Coder-1.5B", "meta-llama/Llama-3.1-8B"] {
            assert!(is_name(Path::new(name)), "{name}");
        }
        for path in ["model", "/models/x", "../models", "./x/y", "a/b/c", "runs/x y", "-a/b"] {
            assert!(!is_name(Path::new(path)), "{path}");
        }
    }
}
