//! The task files under tasks/: each loads, and renders the prompts of the data that it says it is for, where that is
//! there.

use std::path::{Path, PathBuf};

use offshoot_eval::task::{Overrides, Task, TaskPrompt};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The first prompts of a task file on `data`, which lies beside the project; `None` and a word about it where it is
/// absent.
fn prompts(task: &str, data: &str) -> Option<Vec<String>> {
    let data = root().join("../shared/data").join(data);
    if !data.exists() {
        crate::skip::skipped(format_args!("{} is absent", data.display()));
        return None;
    }
    let set = vec![format!("items.path={}", data.canonicalize().expect("it exists").display())];
    let task =
        Task::load(&root().join(task), &Overrides { set, ..Overrides::default() }).expect("the task file is right");
    let items = task.items(Some(3)).expect("the data are what the task is for");
    let text = |item| match task.prompt(item).expect("the prompt's fields are there") {
        TaskPrompt::Levels(levels) => levels.concat(),
        TaskPrompt::Chat { messages, .. } => {
            messages.into_iter().filter_map(|message| Some(message.last_text()?.to_owned())).collect()
        }
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
        ("tasks/ready/mmlu.json", "mmlu/test/professional_law_test.csv", "(with answers) about professional law."),
    ] {
        let Some(prompts) = prompts(task, data) else { continue };
        assert!(prompts[0].contains(part), "{task}: {}", prompts[0]);
    }
}

#[test]
fn every_ready_task_loads() {
    for name in ["gsm8k", "humaneval", "mbpp", "apps", "math500", "mmlu", "documents", "judge-pairs", "judge-reference"]
    {
        let path = Path::new("tasks/ready").join(name).with_extension("json");
        let task = Task::load(&root().join(&path), &Overrides::default());
        assert!(task.is_ok(), "{}: {:?}", path.display(), task.err());
    }
}

/// Rows with the fields of MATH-500's file; problems and solutions are our own.
const MATH_ROWS: &str = concat!(
    r#"{"problem": "What is half of $1$?", "solution": "It is $\\boxed{\\dfrac{1}{2}}$.", "answer": "\\frac{1}{2}", "#,
    r#""subject": "Prealgebra", "level": 1, "unique_id": "test/prealgebra/1.json"}

{"problem": "Where does $y = x$ meet $y = 2 - x$?", "solution": "At $\\boxed{(1,1)}$.", "#,
    r#""answer": "\\left( 1, 1 \\right)", "subject": "Algebra", "level": 2, "unique_id": "test/algebra/2.json"}
{"problem": "Who is it?", "solution": "$\\boxed{\\text{Mia}}$", "answer": "\\text{Mia}", "#,
    r#""subject": "Prealgebra", "level": 5, "unique_id": "test/prealgebra/3.json"}
"#
);

fn math500(set: &[&str], rows: &str) -> (tempfile::TempDir, Task) {
    let folder = tempfile::tempdir().expect("a folder for the rows");
    let path = folder.path().join("test.jsonl");
    std::fs::write(&path, rows).expect("the folder takes a file");
    let mut set: Vec<String> = set.iter().map(|set| set.to_string()).collect();
    set.push(format!("items.path={}", path.display()));
    let overrides = Overrides { set, ..Overrides::default() };
    (folder, Task::load(&root().join("tasks/ready/math500.json"), &overrides).expect("the task file is right"))
}

#[test]
fn math_is_read_and_graded_as_it_is() {
    let (_folder, task) = math500(&[], MATH_ROWS);
    let items = task.items(None).expect("the rows are what the task is for");
    assert_eq!(items.iter().map(|item| &item.id[..]).collect::<Vec<_>>()[1], "test/algebra/2.json");
    let TaskPrompt::Chat { messages, .. } = task.prompt(&items[0]).expect("the row has a problem") else {
        panic!("a chat")
    };
    let shown = messages[0].last_text().expect("a text");
    assert!(shown.contains("half of $1$"), "{shown}");
    let right = |item: usize, text: &str| {
        task.grade(&items[item], text, task.answer(text).as_ref()).expect("the task says what is right")
    };
    for half in [
        r"so \boxed{\frac12}.",
        r"\boxed{0.5}",
        r"\boxed{2}, no: $\fbox{ \tfrac{1}{2} }$",
        "The answer is $1/2$.\nGood.",
    ] {
        assert!(right(0, half), "{half}");
    }
    for other in [r"\boxed{\frac13}", r"\boxed{\frac12}, no: \boxed{2}", "1/2", r"\boxed{}"] {
        assert!(!right(0, other), "{other}");
    }
    assert!(right(1, r"\boxed{(1,1)}") && !right(1, r"\boxed{[1,1]}"));
    assert!(right(2, r"\boxed{Mia}") && !right(2, r"\boxed{Leo}"));
}

#[test]
fn answers_that_mean_the_same_are_one_vote() {
    let (_folder, task) = math500(&[], MATH_ROWS);
    let vote = |text: &str| task.answer(text).expect("there is a box").value;
    let half = [r"\boxed{\frac12}", r"\boxed{0.5}", r"\boxed{\dfrac{1}{2}}", r"\boxed{x = \frac{2}{4}}"].map(vote);
    assert!(half.iter().all(|vote| vote == r"\frac{1}{2}"), "{half:?}");
}

#[test]
fn solutions_can_be_graded_by_where_there_is_no_field_for_answers() {
    let (_folder, task) = math500(&[r#"grade={"exact":{"field":"solution","boxed":true}}"#], MATH_ROWS);
    let items = task.items(None).expect("the solutions have boxes");
    assert_eq!(items[0].reference().as_deref(), Some(r"\frac{1}{2}"));
    let (_folder, task) = math500(&[], r#"{"problem": "?", "solution": "\\boxed{1}", "unique_id": "a"}"#);
    let error = task.items(None).expect_err("refused").to_string();
    assert!(error.contains("`answer`") && error.contains("item `a`") && error.contains("`solution`"), "{error}");
}

#[test]
fn a_boxed_answer_may_hold_braces() {
    let task = Task::load(&root().join("tasks/ready/math500.json"), &Overrides::default()).expect("it loads");
    let answer = |text: &str| task.answer(text).map(|answer| answer.found);
    assert_eq!(answer(r"so \boxed{\frac{1}{\sqrt{2}}}.").as_deref(), Some(r"\frac{1}{\sqrt{2}}"));
    assert_eq!(answer(r"\boxed{\{\frac{a_{1}}{b^{c^{d}}}\}}").as_deref(), Some(r"\{\frac{a_{1}}{b^{c^{d}}}\}"));
    assert_eq!(answer(r"first \boxed{1}, then \boxed{ 42 }").as_deref(), Some(" 42 "));
    assert_eq!(answer("no box"), None);
}
