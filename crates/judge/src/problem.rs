//! A programming problem: how a sample's text becomes a program, and the tests for the program. Data only: `benchmark`
//! reads the files, the judge runs the tests.
#![warn(missing_docs)]

use crate::imports::with_imports;
use offshoot_core::json::RawJson;

pub use crate::limits::{FileForm, Limits};

/// One problem of a benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Its name in errors and results.
    pub id: String,
    /// How a sample's text becomes a program.
    pub assembly: Assembly,
    /// Its tests.
    pub suite: TestSuite,
    /// What a program may use.
    pub limits: Limits,
}

impl Problem {
    /// A problem whose programs read standard input and write standard output: each test is an input and the output
    /// that is expected, compared token by token.
    pub fn streams<I: Into<String>, O: Into<String>>(
        id: impl Into<String>,
        tests: impl IntoIterator<Item = (I, O)>,
    ) -> Problem {
        let test = |(input, output): (I, O)| StreamTest { input: input.into(), output: output.into() };
        let tests = tests.into_iter().map(test).collect();
        Problem::new(id, TestSuite::Streams(StreamSuite { tests, compare: Compare::Tokens }))
    }

    /// A problem whose functions are called by Python code: a program is accepted if the code raises nothing.
    pub fn script(id: impl Into<String>, code: impl Into<String>) -> Problem {
        let suite = ScriptSuite { helpers: String::new(), code: code.into(), entry: None };
        Problem::new(id, TestSuite::Script(suite))
    }

    /// A problem with these tests, whose samples are whole programs, with the limits of functions or of programs.
    pub fn new(id: impl Into<String>, suite: TestSuite) -> Problem {
        let form = match suite {
            TestSuite::Streams(_) => FileForm::Programs,
            TestSuite::Script(_) | TestSuite::Calls(_) | TestSuite::Reference(_) => FileForm::Functions,
        };
        Problem { id: id.into(), assembly: Assembly::Whole, suite, limits: Limits::of(form) }
    }
}

/// How a sample's text becomes a complete program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assembly {
    /// The text is the program.
    Whole,
    /// The text continues this one (HumanEval's `prompt`).
    After(String),
    /// The text is the program; missing imports of Python's standard library are added (APPS, LiveCodeBench).
    WithImports,
}

impl Assembly {
    /// The Python program of a sample's text.
    pub fn program(&self, text: &str) -> String {
        match self {
            Assembly::After(before) => format!("{before}{text}"),
            Assembly::Whole | Assembly::WithImports => self.whole(text),
        }
    }

    /// The Python program of a text that is already complete, even if this benchmark's samples usually continue a
    /// prompt.
    pub fn whole(&self, text: &str) -> String {
        match self {
            Assembly::Whole | Assembly::After(_) => text.to_string(),
            Assembly::WithImports => with_imports(text),
        }
    }
}

/// The tests of a problem.
#[derive(Clone, Debug, PartialEq)]
pub enum TestSuite {
    /// Python code that calls the candidate's functions.
    Script(ScriptSuite),
    /// Calls of Python functions, whose results are compared.
    Calls(CallSuite),
    /// Calls of Python functions, whose results are compared with a reference's.
    Reference(ReferenceSuite),
    /// Standard input and standard output.
    Streams(StreamSuite),
}

/// Python test code that calls the candidate's functions (HumanEval's `check`, MBPP's asserts). It runs in a process
/// that the candidate cannot access. A name that is defined neither by this code, nor by `helpers`, nor by Python is
/// looked up in the candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptSuite {
    /// Python code run before `code`, in the tests' process (functions that a HumanEval prompt defines completely).
    pub helpers: String,
    /// The tests: they pass if it raises nothing.
    pub code: String,
    /// The candidate's function under test, even if `helpers` defines that name.
    pub entry: Option<String>,
}

/// Python functions called with data; the results are compared as data (APPS and LiveCodeBench, call-based).
#[derive(Clone, Debug, PartialEq)]
pub struct CallSuite {
    /// A function, or a method of the class `Solution` if the program defines it.
    pub function: String,
    /// The calls.
    pub tests: Vec<CallTest>,
}

/// A call, and its accepted results.
#[derive(Clone, Debug, PartialEq)]
pub struct CallTest {
    /// A list of the arguments.
    pub arguments: RawJson,
    /// Accepted results.
    pub expected: Vec<RawJson>,
}

/// Python functions compared with a reference on given inputs (EvalPlus).
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceSuite {
    /// The complete reference program.
    pub program: String,
    /// The function under test.
    pub entry: String,
    /// Argument lists of the original benchmark.
    pub base: Vec<RawJson>,
    /// Argument lists that EvalPlus adds.
    pub plus: Vec<RawJson>,
    /// Absolute tolerance of floating-point results; 0: EvalPlus's default rule.
    pub atol: f64,
    /// The task's number in MBPP, if it is one of MBPP's: EvalPlus has special rules for some of them.
    pub mbpp: Option<u32>,
}

/// A program that reads standard input and writes standard output.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamSuite {
    /// Inputs and outputs.
    pub tests: Vec<StreamTest>,
    /// How outputs are compared.
    pub compare: Compare,
}

/// An input, and the output that is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamTest {
    /// Standard input.
    pub input: String,
    /// Standard output.
    pub output: String,
}

/// How an output is compared.
#[derive(Clone, Debug, PartialEq)]
pub enum Compare {
    /// Byte for byte.
    Exact,
    /// Line by line, ignoring white space at the ends of lines and empty lines at the end.
    Lines,
    /// Token by token; tokens are separated by white space.
    Tokens,
    /// Like `Tokens`, with an absolute or relative tolerance for numbers.
    Floats {
        /// The tolerance of numbers.
        tolerance: f64,
    },
    /// A Python program of the task: it receives the paths of input, output and expected output and exits with 0 if the
    /// output is right.
    Checker {
        /// Its text.
        program: String,
    },
}
