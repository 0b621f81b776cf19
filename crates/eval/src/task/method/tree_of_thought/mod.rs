//! The settings of `tree_of_thought` in a task file: how thoughts are generated, judged and chosen, and the templates
//! of the questions to the model. `search::tree_of_thought` is the driver.
//!
//! Its prompts have the shape of the task's `prompt`: Jinja templates over the item's fields and these names:
//!
//! | name | value |
//! |---|---|
//! | `thoughts` | the path's thoughts, a list of texts |
//! | `last` | the last of them; empty before the first |
//! | `path` | all of them, one per line |
//! | `step` | their number |
//! | names of `extract` | the regex's match in `last` (its first group, or the whole match); empty without a match |
//! | `choices` | in a vote: the paths to choose among |
//! | `answer` | in `value.last`: the path's answer |

mod questions;
mod read;

pub use questions::{ItemTexts, QuestionTemplate, TreeOfThought};
pub(crate) use read::TreeOfThoughtSettings;
