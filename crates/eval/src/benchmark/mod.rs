//! Converts records of code benchmarks to problems: how a sample becomes a program, and which tests judge it. A
//! record's format is recognised by its fields. Text only; the judge runs programs.
//!
//! | format | recognised by | judged by |
//! |---|---|---|
//! | HumanEval | `test`, `entry_point` | `check(entry_point)` |
//! | EvalPlus (HumanEval+, MBPP+) | `base_input`, `entry_point` | the reference's results on `base_input` and `plus_input` |
//! | MBPP, full or sanitized | `test_list` | its asserts (or `test`, the larger script of MBPP+ on the Hub) |
//! | APPS | `input_output` | standard input and output, or calls if there is an `fn_name` |
//! | LiveCodeBench | `public_test_cases` | public and private tests: standard input and output, or calls |

mod apps;
mod fields;
mod format;
mod functions;
mod live_code_bench;
mod pickle;
mod read;

pub use format::{BenchmarkFormat, problem, prompt, references};
pub use functions::with_body;
pub use read::{BenchmarkRecord, Entries, Malformed, read};
