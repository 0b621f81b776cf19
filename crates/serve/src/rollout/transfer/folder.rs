//! A folder with the tensors of an update, as trainers leave one for each step: `step_7` holds the whole model, or
//! what changed, and the empty file `STABLE` once everything is written.

use std::path::{Path, PathBuf};

use offshoot_openai::protocol::{Refusal, RefusalKind};

/// The file that says that a folder of a step is complete.
const COMPLETE: &str = "STABLE";
/// The beginning of the name of a step's folder; the number of the step follows.
const STEP: &str = "step_";

/// A folder that can be read.
pub struct StepFolder {
    pub path: PathBuf,
    /// The number of its step, by which the new weights are called; `None`: its name has none.
    pub label: Option<String>,
}

impl StepFolder {
    /// # Errors
    ///
    /// There is no such folder, or it is one of a step that is not complete.
    pub fn find(path: &str) -> Result<StepFolder, Refusal> {
        let path = PathBuf::from(path);
        if !path.is_dir() {
            let shown = path.display().to_string();
            return Err(Refusal::value("weight_dir", "a folder that this machine has", &format!("{shown:?}")));
        }
        let label = step(&path);
        if label.is_some() && !path.join(COMPLETE).is_file() {
            let what = format!(
                "`weight_dir`: expected a folder with the file {COMPLETE}, which says that it is complete, found {} \
                 without it",
                path.display()
            );
            return Err(Refusal::of_kind(RefusalKind::Conflict, "incomplete_folder", what).about("weight_dir"));
        }
        Ok(StepFolder { path, label })
    }
}

/// The number of the step whose folder this is.
fn step(path: &Path) -> Option<String> {
    let number = path.file_name()?.to_str()?.strip_prefix(STEP)?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then(|| number.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_a_step_is_complete_and_has_its_number() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (step, other) = (root.path().join("step_12"), root.path().join("step_last"));
        for folder in [&step, &other] {
            std::fs::create_dir(folder).expect("the folder is writable");
        }
        let find = |path: &Path| StepFolder::find(path.to_str().expect("UTF-8"));
        let code = |path: &Path| find(path).err().map(|refusal| (refusal.code, refusal.status()));
        assert_eq!(code(&step), Some(("incomplete_folder", 409)));
        std::fs::write(step.join(COMPLETE), "").expect("the folder is writable");
        assert_eq!(find(&step).expect("it is complete").label.as_deref(), Some("12"));
        assert_eq!(find(&other).expect("it is no step's").label, None);
        assert_eq!(code(&root.path().join("step_13")), Some(("invalid_value", 400)));
        assert_eq!(code(&step.join(COMPLETE)), Some(("invalid_value", 400)));
    }
}
