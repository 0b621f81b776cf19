//! The task files under tasks/: each loads, and renders the prompts of the data that it says it is for, where that is there.

use std::path::{Path, PathBuf};

use offshoot::task::{Overrides, Prompt, Task};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The first prompts of a task file on `data`, which lies beside the project; `None` and a word about it where it is absent.
fn prompts(task: &str, data: &str) -> Option<Vec<String>> {
    let data = root().join("../shared/data").join(data);
    if !data.exists() {
        eprintln!("skipped: {} is absent", data.display());
        return None;
    }
    let set = vec![format!("items.path={}", data.canonicalize().expect("it exists").display())];
    let task =
        Task::load(&root().join(task), &Overrides { set, ..Overrides::default() }).expect("the task file is right");
    let items = task.items(Some(3)).expect("the data are what the task is for");
    let text = |item| match task.prompt(item).expect("the prompt's fields are there") {
        Prompt::Levels(levels) => levels.concat(),
        Prompt::Chat { messages, .. } => messages.into_iter().map(|message| message.content).collect(),
    };
    Some(items.iter().map(text).collect())
}

#[test]
fn ready_tasks_render_their_data() {
    for (task, data, part) in [
        ("tasks/ready/gsm8k.json", "gsm8k/test.jsonl", "Question: Janet"),
        ("tasks/ready/humaneval.json", "humaneval/HumanEval.jsonl.gz", "def has_close_elements"),
        ("tasks/ready/mbpp.json", "mbpp/mbpp.jsonl", "assert "),
        ("tasks/ready/apps.json", "apps/apps_train_5.jsonl", "\nANSWER:\n"),
    ] {
        let Some(prompts) = prompts(task, data) else { continue };
        assert!(prompts[0].contains(part), "{task}: {}", prompts[0]);
    }
}

#[test]
fn every_ready_task_loads() {
    for name in ["gsm8k", "humaneval", "mbpp", "apps", "math500", "documents"] {
        let path = Path::new("tasks/ready").join(name).with_extension("json");
        let task = Task::load(&root().join(&path), &Overrides::default());
        assert!(task.is_ok(), "{}: {:?}", path.display(), task.err());
    }
}

#[test]
fn a_boxed_answer_may_hold_braces() {
    let task = Task::load(&root().join("tasks/ready/math500.json"), &Overrides::default()).expect("it loads");
    let answer = |text: &str| task.answer(text).map(|answer| answer.found);
    assert_eq!(answer(r"so \boxed{\frac{1}{\sqrt{2}}}.").as_deref(), Some(r"\frac{1}{\sqrt{2}}"));
    assert_eq!(answer(r"first \boxed{1}, then \boxed{ 42 }").as_deref(), Some(" 42 "));
    assert_eq!(answer("no box"), None);
}
