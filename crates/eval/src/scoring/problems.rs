//! The problems on which samples are scored; finds them by id, by index in the file or by prompt.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::benchmark;
use crate::benchmark::{BenchmarkFormat, BenchmarkRecord, Malformed};
use crate::task::candidate::LimitChanges;
use offshoot_core::error::{Error, Result};
use offshoot_judge::problem::{Assembly, Problem};

/// One record of the problem file.
pub struct ListedProblem {
    pub id: String,
    /// `None`: the record has no tests.
    pub problem: Result<Option<Problem>, Malformed>,
    /// LiveCodeBench's other fields, which are copied to its result file.
    pub about: Map<String, Value>,
    pub references: Vec<String>,
}

impl ListedProblem {
    /// The problem that judges its samples; `None` without tests.
    pub fn tests(&self) -> Option<&Problem> {
        self.problem.as_ref().ok()?.as_ref()
    }

    pub fn is_untested(&self) -> bool {
        matches!(self.problem, Ok(None))
    }
}

pub struct Problems {
    pub format: BenchmarkFormat,
    pub list: Vec<ListedProblem>,
    by_id: HashMap<String, usize>,
    /// Indices by the number at the end of the id; `None` if several ids end in it.
    by_number: HashMap<String, Option<usize>>,
    /// Prompts, by the head of their last function.
    by_head: HashMap<String, Vec<(String, usize)>>,
}

impl Problems {
    /// `references`: keep the file's own solutions too.
    pub fn read(
        path: &Path,
        format: Option<BenchmarkFormat>,
        changes: LimitChanges,
        references: bool,
    ) -> Result<Problems> {
        let mut entries = benchmark::read(path, format)?;
        let mut list: Vec<ListedProblem> = Vec::new();
        let (mut by_id, mut by_number) = (HashMap::new(), HashMap::new());
        let mut by_head: HashMap<String, Vec<(String, usize)>> = HashMap::new();
        while let Some(entry) = entries.next().transpose()? {
            let format = entries.format();
            let ix = list.len();
            if by_id.insert(entry.id.clone(), ix).is_some() {
                return Err(Error::format(path, format!("the problem `{}` occurs twice", entry.id)));
            }
            if let Some(number) = number_of(&entry.id) {
                by_number.entry(number).and_modify(|place| *place = None).or_insert(Some(ix));
            }
            let prompt = match &entry.problem {
                Ok(Some(Problem { assembly: Assembly::After(prompt), .. })) => Some(prompt.as_str()),
                Ok(_) => None,
                Err(Malformed { .. }) => entry.fields.get("prompt").and_then(Value::as_str),
            };
            if let Some(prompt) = prompt {
                by_head.entry(head(prompt).to_string()).or_default().push((prompt.trim().to_string(), ix));
            }
            list.push(listed(entry, format, changes, references));
        }
        let format = entries.format().filter(|_| !list.is_empty());
        let format = format.ok_or_else(|| Error::format(path, "no problems"))?;
        // If no record is a valid problem, the whole file is invalid.
        match list.iter().find_map(|listed| listed.problem.as_ref().err()) {
            Some(Malformed { why }) if list.iter().all(|listed| listed.tests().is_none()) => {
                Err(Error::format(path, why))
            }
            _ => Ok(Problems { format, list, by_id, by_number, by_head }),
        }
    }

    /// The problems with tests, in order.
    pub fn tests(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter().filter_map(ListedProblem::tests)
    }

    /// Finds a problem by its id, else by the number at the end of the id (`Mbpp/2`, `2` and, as a folder's name,
    /// `Mbpp_2`).
    pub fn find(&self, id: &str) -> Option<usize> {
        self.by_id.get(id).copied().or_else(|| *self.by_number.get(&number_of(id)?)?)
    }

    /// Finds a problem by the prompt of its samples, ignoring surrounding white space. Some files omit a docstring's
    /// examples, so it is the prompt that ends in the same function and has the longest common prefix. `None` if that
    /// is ambiguous.
    pub fn with_prompt(&self, prompt: &str) -> Option<usize> {
        let prompt = prompt.trim();
        let common = |known: &str| known.bytes().zip(prompt.bytes()).take_while(|(a, b)| a == b).count();
        let alike = || self.by_head.get(head(prompt)).into_iter().flatten();
        if let Some((_, place)) = alike().find(|(known, _)| known == prompt) {
            return Some(*place);
        }
        let longest = alike().map(|(known, _)| common(known)).max()?;
        let mut nearest = alike().filter(|(known, _)| common(known) == longest);
        nearest.next().filter(|_| nearest.next().is_none()).map(|(_, place)| *place)
    }
}

fn listed(
    entry: BenchmarkRecord,
    format: Option<BenchmarkFormat>,
    changes: LimitChanges,
    references: bool,
) -> ListedProblem {
    let BenchmarkRecord { id, mut problem, mut fields } = entry;
    if let Ok(Some(problem)) = &mut problem {
        changes.apply(&mut problem.limits);
    }
    let wanted = if references { benchmark::references(format, &id, &fields) } else { Ok(Vec::new()) };
    let (references, problem) = match (wanted, problem) {
        (Err(error), Ok(_)) => (Vec::new(), Err(Malformed { why: error.to_string() })),
        (wanted, problem) => (wanted.unwrap_or_default(), problem),
    };
    if format == Some(BenchmarkFormat::LiveCodeBench) {
        fields.retain(|name, _| !matches!(name.as_str(), "public_test_cases" | "private_test_cases" | "metadata"));
    } else {
        fields.clear();
    }
    ListedProblem { id, problem, about: fields, references }
}

/// The first line of the last function of a prompt; empty if there is none.
fn head(prompt: &str) -> &str {
    prompt.lines().map(str::trim_end).rfind(|line| line.starts_with("def ")).unwrap_or_default()
}

fn number_of(id: &str) -> Option<String> {
    let tail = id.rsplit(['/', '_']).next().filter(|tail| !tail.is_empty())?;
    let digits = tail.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| tail.trim_start_matches('0').to_string())
}
