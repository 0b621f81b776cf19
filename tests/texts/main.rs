//! Files and texts: tasks, models, tokenizers, documents, and the drawing of the CUDA backend's folders.

#[path = "../common/full.rs"]
mod full;
#[path = "../common/shared.rs"]
mod shared;
#[path = "../common/skip.rs"]
mod skip;

mod documents;
mod documents_of_the_project;
mod features;
mod floors_cuda;
mod settings;
mod type_names;
