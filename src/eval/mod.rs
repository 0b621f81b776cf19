//! Evaluation: a task from its file to results. `task` reads what is asked, `run` does it, `journal` keeps it, `report`
//! and `view` show it; `scoring` judges samples made elsewhere. How a tree is searched is left to `search`, how a
//! program is judged to `judge`.

pub mod answer;
pub mod benchmark;
pub mod journal;
pub(crate) mod records;
pub mod report;
pub mod run;
pub mod scoring;
pub(crate) mod source;
pub mod statistics;
pub mod task;
pub mod view;
