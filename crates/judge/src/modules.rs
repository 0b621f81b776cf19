//! The modules that the tests of problems import, as far as the interpreter lacks them: known before a run begins,
//! instead of by its first failure. Found in the text, without running it; the judge itself finds out for certain.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::LazyLock;

use regex::Regex;

use super::judge::Judge;
use crate::problem::{Compare, Problem, StreamSuite, TestSuite};
use offshoot_core::error::Result;
use offshoot_core::figures::counted;
use offshoot_core::setting::PYTHON;

/// A module that tests import and the interpreter lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LackingModule {
    pub name: String,
    /// The problems whose tests import it: their number, and the first one's id.
    pub problems: u64,
    pub first: String,
    /// The interpreter that lacks it.
    pub python: PathBuf,
}

impl fmt::Display for LackingModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LackingModule { name, problems, first, python } = self;
        let problems = counted(*problems, "problem");
        write!(
            f,
            "the tests of {problems} (first {first}) import {name}, which {} lacks: they cannot be judged; {PYTHON} \
             chooses another interpreter or a virtual environment",
            python.display()
        )
    }
}

/// An import statement that fills its line; a docstring's sentence seldom does.
static IMPORT: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = concat!(
        r"(?m)^[ \t]*(?:from[ \t]+([A-Za-z_]\w*)[\w.]*[ \t]+import\b|import[ \t]+([\w.]+(?:[ \t]+as[ \t]+\w+)?",
        r"(?:[ \t]*,[ \t]*[\w.]+(?:[ \t]+as[ \t]+\w+)?)*)[ \t]*(?:[;#].*)?\r?$)",
    );
    Regex::new(pattern).expect("a constant pattern")
});

impl Judge {
    /// The modules that the tests and references of these problems import and the interpreter lacks, by name.
    pub fn lacking(&self, problems: &mut dyn Iterator<Item = &Problem>) -> Result<Vec<LackingModule>> {
        let mut importers: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
        for problem in problems {
            let mut modules: Vec<_> = test_code(&problem.suite).into_iter().flat_map(imported).collect();
            modules.sort_unstable();
            modules.dedup();
            for module in modules {
                importers.entry(module).or_insert((0, &problem.id)).0 += 1;
            }
        }
        if importers.is_empty() {
            return Ok(Vec::new());
        }
        let python = self.interpreter()?;
        let lacks = python.lacks(&importers.keys().copied().collect::<Vec<_>>())?;
        let lacking = lacks.into_iter().filter_map(|name| {
            let (problems, first) = importers.get(name.as_str())?;
            Some(LackingModule { problems: *problems, first: first.to_string(), python: python.path.clone(), name })
        });
        Ok(lacking.collect())
    }
}

/// The Python code that belongs to the tests.
fn test_code(suite: &TestSuite) -> Vec<&str> {
    match suite {
        TestSuite::Script(script) => vec![&script.helpers, &script.code],
        TestSuite::Reference(reference) => vec![&reference.program],
        TestSuite::Streams(StreamSuite { compare: Compare::Checker { program }, .. }) => vec![program],
        TestSuite::Calls(_) | TestSuite::Streams(_) => Vec::new(),
    }
}

/// The modules that a text imports, without the modules in them.
fn imported(code: &str) -> impl Iterator<Item = &str> {
    IMPORT.captures_iter(code).flat_map(|found| {
        let from = found.get(1).into_iter().map(|module| module.as_str());
        let listed = found.get(2).into_iter().flat_map(|list| list.as_str().split(','));
        from.chain(listed.filter_map(|part| part.split_whitespace().next()?.split('.').next())).collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn import_statements_are_found_in_a_text() {
        let code = "import numpy as np\nfrom os.path import join\n  import a.b, c as d  # why\r\nimport e; e.f()\n\
                    \"\"\"Text to\n    import from the list that follows\nfrom here on\n    import\"\"\"\n\
                    from . import g\n";
        assert_eq!(imported(code).collect::<Vec<_>>(), ["numpy", "os", "a", "c", "e"]);
    }
}
