//! Adds imports of Python's standard library to contest programs: APPS and LiveCodeBench import many names for every
//! program, as the contest sites did. Only the names that a program uses are imported, to save time.

use std::sync::LazyLock;

use regex::Regex;

/// Modules, each with the names that programs use without the module's name.
const MODULES: [(&str, &[&str]); 14] = [
    ("bisect", &["bisect", "bisect_left", "bisect_right", "insort", "insort_left", "insort_right"]),
    ("collections", &["ChainMap", "Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"]),
    ("copy", &["copy", "deepcopy"]),
    ("functools", &["cache", "cmp_to_key", "lru_cache", "partial", "reduce"]),
    ("heapq", &["heapify", "heappop", "heappush", "heappushpop", "heapreplace", "merge", "nlargest", "nsmallest"]),
    (
        "itertools",
        &[
            "accumulate",
            "chain",
            "combinations",
            "combinations_with_replacement",
            "count",
            "cycle",
            "groupby",
            "islice",
            "pairwise",
            "permutations",
            "product",
            "repeat",
            "starmap",
            "takewhile",
            "zip_longest",
        ],
    ),
    (
        "math",
        &[
            "ceil",
            "comb",
            "cos",
            "exp",
            "factorial",
            "fabs",
            "floor",
            "gcd",
            "hypot",
            "inf",
            "isqrt",
            "lcm",
            "log",
            "log10",
            "log2",
            "perm",
            "pi",
            "prod",
            "sin",
            "sqrt",
            "tan",
        ],
    ),
    ("operator", &["add", "and_", "attrgetter", "itemgetter", "mul", "or_", "sub", "xor"]),
    ("random", &["choice", "randint", "randrange", "shuffle"]),
    ("re", &["findall", "fullmatch", "match"]),
    ("statistics", &["mean", "median"]),
    ("string", &["ascii_letters", "ascii_lowercase", "ascii_uppercase", "digits", "punctuation"]),
    (
        "typing",
        &[
            "Any",
            "Callable",
            "Deque",
            "DefaultDict",
            "Dict",
            "Generator",
            "Iterable",
            "Iterator",
            "List",
            "Optional",
            "Sequence",
            "Set",
            "Tuple",
            "TypeVar",
            "Union",
        ],
    ),
    ("sys", &["stdin", "stdout", "setrecursionlimit"]),
];

/// Modules of which only the module itself is imported.
const WHOLE: [&str; 4] = ["datetime", "json", "os", "time"];

/// Both benchmarks set this recursion limit.
const PREAMBLE: &str = "import sys; sys.setrecursionlimit(50000)";

/// A word, and the dot after it if there is one.
static WORD: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\b([A-Za-z_][A-Za-z0-9_]*)\b(\.?)").expect("a constant pattern"));

/// The program with one more line, which imports the names that it uses. The line comes first, or after `from
/// __future__` if the program has that.
pub(crate) fn with_imports(program: &str) -> String {
    let line = imports(program);
    let future = program.match_indices("from __future__").filter(|(at, _)| *at == 0 || program[..*at].ends_with('\n'));
    let at = future.last().map_or(0, |(at, _)| program[at..].find('\n').map_or(program.len(), |end| at + end + 1));
    let gap = if at > 0 && !program[..at].ends_with('\n') { "\n" } else { "" };
    format!("{}{gap}{line}\n{}", &program[..at], &program[at..])
}

fn imports(program: &str) -> String {
    let (mut bare, mut whole) = (Vec::new(), Vec::new());
    for word in WORD.captures_iter(program) {
        let name = word.get(1).expect("the pattern has the group");
        let list = if word[2].is_empty() { &mut bare } else { &mut whole };
        // A word after a dot is an attribute.
        if !program[..name.start()].ends_with('.') && !list.contains(&name.as_str()) {
            list.push(name.as_str());
        }
    }
    let mut line = PREAMBLE.to_string();
    for (module, names) in MODULES {
        // A module and a name in it may be the same word (`bisect`, `copy`); it is the module if a dot follows.
        let used: Vec<&str> = names.iter().copied().filter(|name| bare.contains(name)).collect();
        if !used.is_empty() {
            line.push_str(&format!("; from {module} import {}", used.join(", ")));
        }
        if whole.contains(&module) && module != "sys" {
            line.push_str(&format!("; import {module}"));
        }
    }
    for module in WHOLE.iter().filter(|module| whole.contains(module)) {
        line.push_str(&format!("; import {module}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_program_names_is_imported() {
        let program = "class Solution:\n    def f(self, a: List[int]):\n        return math.gcd(*a) + x.count(1)\n";
        let line = "import sys; sys.setrecursionlimit(50000); import math; from typing import List\n";
        assert_eq!(with_imports(program), format!("{line}{program}"));
        assert_eq!(with_imports("print(1)"), format!("{PREAMBLE}\nprint(1)"));
    }

    #[test]
    fn from_future_stays_first() {
        let program = "'''doc'''\nfrom __future__ import annotations\nx = 1\n";
        let expected = format!("'''doc'''\nfrom __future__ import annotations\n{PREAMBLE}\nx = 1\n");
        assert_eq!(with_imports(program), expected);
        let short = "from __future__ import annotations";
        assert_eq!(with_imports(short), format!("{short}\n{PREAMBLE}\n"));
    }
}
