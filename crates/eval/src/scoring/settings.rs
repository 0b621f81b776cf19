//! The settings that verdicts depend on, besides the samples: problems, limits, language, extraction. Their fingerprint
//! is stored next to the results: a scoring is resumed only with the same settings.

use std::fs;
use std::path::Path;

use super::options::ScoreOptions;
use super::problems::{ListedProblem, Problems};
use offshoot_core::error::{Error, Result};
use offshoot_core::out::files::with_ending;
use offshoot_core::setting::RESUME;

/// Writes the fingerprint next to `lines`; if `lines` is resumed, fails unless the existing fingerprint is equal.
pub(super) fn check(lines: &Path, options: &ScoreOptions, problems: &Problems) -> Result<()> {
    let path = with_ending(lines, ".settings");
    let now = fingerprint(options, problems);
    if options.resume && lines.exists() {
        let before = fs::read_to_string(&path).map_err(Error::io(&path, "read the settings of the verdicts"))?;
        if before.trim() != now {
            let expected = "the same problems, limits, language and extraction as before";
            return Err(Error::value(format!("{RESUME} of {}", lines.display()), expected, "others"));
        }
        return Ok(());
    }
    match lines.exists() {
        true => Ok(()),
        false => fs::write(&path, now + "\n").map_err(Error::io(&path, "write")),
    }
}

fn fingerprint(options: &ScoreOptions, problems: &Problems) -> String {
    let mut hasher = blake3::Hasher::new();
    for listed in &problems.list {
        hasher.update(problem_text(listed).as_bytes());
    }
    let ScoreOptions { language, extract, all_tests, .. } = options;
    hasher.update(format!("{language:?}\0{extract:?}\0{all_tests}").as_bytes());
    hasher.finalize().to_hex().to_string()
}

/// The text of one problem that is hashed. It contains names of types and fields: with others, the verdicts of earlier
/// versions cannot be resumed.
fn problem_text(listed: &ListedProblem) -> String {
    format!("{}\0{:?}\0", listed.id, listed.problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::candidate::LimitChanges;

    #[test]
    fn a_malformed_record_has_the_same_text_as_in_earlier_versions() {
        let records = [
            r#"{"task_id": "f/0", "prompt": "def f():\n", "entry_point": "f", "test": "def check(f):\n    f()\n"}"#,
            r#"{"task_id": "f/1", "prompt": "def f():\n", "entry_point": "f", "test": 1}"#,
        ];
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("problems.jsonl");
        fs::write(&path, records.join("\n")).expect("the temporary folder is writable");
        let problems = Problems::read(&path, None, LimitChanges::default(), false).expect("one problem is valid");
        let [_, malformed] = &problems.list[..] else { panic!("two problems") };
        let expected = "f/1\0Err(Malformed { why: \"`test`: expected a text, at line 2, found 1\" })\0";
        assert_eq!(problem_text(malformed), expected);
    }
}
