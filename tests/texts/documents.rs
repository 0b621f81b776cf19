//! Document question answering: documents of every shape meet questions of every shape, mistakes in either are told in
//! a sentence, and prompts that share a document get the tokens of encoding each of them whole.

use crate::full::some_or_full;
use crate::shared;

use std::path::{Path, PathBuf};
use std::process::Command;

use offshoot_core::dice::Dice;
use offshoot_eval::task::{Item, Overrides, Task, TaskPrompt};
use offshoot_text::{AddSpecial, SharedEncoder, Tokenizer};
use serde_json::{Value, json};
use shared::shared;
use tempfile::TempDir;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder with a task file `t.json`, a folder `docs` of texts and whatever else is put there.
struct Desk {
    folder: TempDir,
}

impl Desk {
    fn new() -> Desk {
        let desk = Desk { folder: TempDir::new().expect("a temporary folder") };
        std::fs::create_dir(desk.folder.path().join("docs")).expect("it is writable");
        desk
    }

    /// With the documents `alice` and `bob`.
    fn with_two() -> Desk {
        let desk = Desk::new();
        desk.put("docs/bob.md", "\u{feff}Bob has\r\ntwo dogs.");
        desk.put("docs/alice.txt", "Alice has a cat.");
        desk
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).expect("the temporary folder is writable");
        path
    }

    fn items(&self, items: Value) -> Result<Vec<Item>, String> {
        self.task(items).and_then(|task| task.items(None).map_err(one_sentence))
    }

    fn task(&self, items: Value) -> Result<Task, String> {
        let task = json!({
            "items": items,
            "prompt": {"shared": "Examples.\n", "levels": ["{{document}}\n", "{{question}}"]},
            "method": {"sample": {"samples": 1}}
        });
        let path = self.put("t.json", task.to_string());
        Task::load(&path, &Overrides::default()).map_err(one_sentence)
    }

    /// Asserts that such items are refused with a message that has all of these in it.
    #[track_caller]
    fn refuses(&self, items: Value, parts: &[&str]) {
        let error = self.items(items).expect_err("refused");
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
}

fn one_sentence(error: offshoot_core::Error) -> String {
    assert_eq!(error.exit_code(), 2);
    let message = error.to_string();
    assert!(!message.contains('\n'), "more than one line: {message}");
    message
}

fn ids(items: &[Item]) -> Vec<&str> {
    items.iter().map(|item| item.id.as_str()).collect()
}

#[test]
fn a_folder_and_questions_that_name_its_files() {
    let desk = Desk::with_two();
    desk.put("docs/picture.png", [0xff, 0xfe]);
    desk.put("docs/.hidden.txt", "left out");
    let questions = ["bob.md/Which?", "alice/Who?", "bob/How many?"].map(|line| {
        let (document, question) = line.split_once('/').expect("both are there");
        json!({"document": document, "question": question, "answer": question.len()}).to_string()
    });
    desk.put("q.jsonl", questions.join("\n\n"));
    let items = json!({"path": "docs", "questions": {"path": "q.jsonl", "document": "document"}});
    let found = desk.items(items.clone()).expect("all is there");
    assert_eq!(ids(&found), ["alice/0", "bob/0", "bob/1"]);
    assert_eq!(found.iter().map(|item| item.index).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(found[2].fields["question"], "How many?");
    assert_eq!(found[2].fields["answer"], 9);
    assert_eq!(found[2].fields["name"], "bob.md");
    assert_eq!(found[2].fields["document"], "Bob has\ntwo dogs.", "no byte order mark, plain line ends");
    let prompt = desk.task(items).expect("as before").prompt(&found[1]).expect("its fields are there");
    assert_eq!(
        prompt,
        TaskPrompt::Levels(["Examples.\n", "Bob has\ntwo dogs.\n", "Which?"].map(str::to_string).to_vec())
    );
}

/// Questions of one's own may come without answers; a mistyped field of items with answers stays an error.
#[test]
fn questions_without_answers_are_not_graded() {
    let desk = Desk::with_two();
    let graded = |lines: &str| {
        desk.put("q.jsonl", lines);
        let mut task = json!({
            "items": {"path": "docs", "questions": {"path": "q.jsonl"}},
            "prompt": {"levels": ["{{document}}\n", "{{question}}"]},
            "method": {"sample": {"samples": 1}},
        });
        task["grade"] = json!({"exact": {"field": "answer"}});
        let task = Task::load(&desk.put("t.json", task.to_string()), &Overrides::default()).expect("a sound task");
        let items = task.items(None).map_err(one_sentence)?;
        Ok::<_, String>(items.iter().map(|item| task.grade(item, "a cat", None)).collect())
    };
    let none: Vec<Option<bool>> = graded("{\"question\": \"Who?\"}\n").expect("they need no answer");
    assert_eq!(none, [None, None]);
    assert_eq!(graded("{\"question\": \"Who?\", \"answer\": \"a cat\"}\n").expect("answers"), [Some(true); 2]);
    let some =
        graded("{\"question\": \"Who?\", \"answer\": \"x\"}\n{\"question\": \"Why?\"}\n").expect_err("one lacks it");
    assert!(some.contains("`answer`") && some.contains("item `alice/1`"), "{some}");
}

#[test]
fn every_question_of_every_document() {
    let desk = Desk::with_two();
    desk.put("q.csv", "question\nWho?\n\"What, then?\"\n");
    let all = desk.items(json!({"path": "docs", "questions": {"path": "q.csv"}})).expect("all is there");
    assert_eq!(ids(&all), ["alice/0", "alice/1", "bob/0", "bob/1"]);
    assert_eq!(all[3].fields["question"], "What, then?");
    let some = json!({"path": "docs", "questions": {"path": "q.csv"}, "skip": 1, "limit": 2});
    assert_eq!(ids(&desk.items(some).expect("two are left")), ["alice/1", "bob/0"]);
    let one = desk.items(json!({"path": "docs/bob.md", "questions": {"path": "q.csv"}})).expect("one document");
    assert_eq!(ids(&one), ["bob/0", "bob/1"]);
    assert_eq!(ids(&desk.items(json!("docs")).expect("without questions")), ["alice", "bob"]);
}

#[test]
fn documents_out_of_records() {
    let desk = Desk::new();
    desk.put("docs.jsonl", "{\"n\": 7, \"document\": \"seven\"}\n{\"n\": 8, \"document\": \"eight\"}\n");
    desk.put("q.json", r#"[{"of": 8, "question": "a"}, {"of": "7", "question": "b"}]"#);
    let items = json!({"path": "docs.jsonl", "id": "n", "questions": {"path": "q.json", "document": "of"}});
    let found = desk.items(items).expect("numbers are names too");
    assert_eq!(ids(&found), ["7/0", "8/0"]);
    assert_eq!([&found[0].fields["question"], &found[1].fields["document"]], ["b", "eight"]);
    assert!(!found[0].fields.contains_key("of"));
}

#[test]
fn mistakes_name_the_file_the_field_and_what_is_there() {
    let desk = Desk::with_two();
    let asked = |name: &str| json!({"path": "docs", "questions": {"path": name, "document": "document"}});
    desk.put("lost.jsonl", "{\"document\": \"bob\"}\n{\"document\": \"carol\"}\n{\"document\": \"dave\"}\n");
    desk.refuses(asked("lost.jsonl"), &["lost.jsonl", "document", "line 2", "carol", "docs"]);
    let mut limited = asked("lost.jsonl");
    limited["limit"] = 1.into();
    desk.refuses(limited, &["carol"]);
    desk.put("bare.jsonl", "{\"question\": \"a\"}\n");
    desk.refuses(asked("bare.jsonl"), &["bare.jsonl", "document", "line 1", "`question`"]);
    desk.put("list.jsonl", "{\"document\": [1]}\n");
    desk.refuses(asked("list.jsonl"), &["list.jsonl", "document", "a list of 1"]);
    desk.put("empty.jsonl", "");
    desk.refuses(asked("empty.jsonl"), &["docs", "no items"]);
    desk.refuses(asked("absent.jsonl"), &["absent.jsonl"]);
    desk.refuses(asked("q.pdf"), &["items.questions.path", "q.pdf"]);
    desk.refuses(json!({"path": "docs", "questions": 3}), &["items.questions", "3"]);
    desk.refuses(json!({"path": "docs", "questions": {"file": "x"}}), &["items.questions.file"]);
    desk.refuses(json!({"path": "docs", "columns": ["a"]}), &["items.columns", "CSV"]);
    desk.refuses(json!("docs/alice.pdf"), &["items.path", "alice.pdf", "folder", "txt"]);

    desk.put("docs/alice.md", "another");
    desk.refuses(json!("docs"), &["alice", "twice"]);
    desk.put("docs/alice.md", b"a\xffb");
    desk.refuses(json!("docs"), &["alice.md", "line 1, byte 2: not UTF-8 text (0xff)"]);
    std::fs::create_dir(desk.folder.path().join("none")).expect("it is writable");
    desk.put("none/a.pdf", "");
    desk.refuses(json!({"path": "none"}), &["none", "no .txt or .md file"]);
}

/// Words, numbers, white space of all kinds, marks, other scripts and what only looks like a special token.
fn text(dice: &mut Dice, least: usize) -> String {
    const PARTS: [&str; 32] = [
        "the",
        "war",
        "Anna",
        "Pavlovna",
        "don't",
        "x1",
        "1805",
        "3.14",
        "naïve",
        "Ünder",
        "e\u{301}",
        "мир",
        "戦争",
        "مرحبا",
        "🙂",
        ",",
        ".",
        "!?",
        "--",
        "\n",
        "\n\n",
        "\t",
        "  ",
        "    ",
        "<s>",
        "</s>",
        "<|endoftext|>",
        "def f(x):\n    return",
        "A",
        "a",
        "I",
        "\r\n",
    ];
    let mut text = String::new();
    while text.len() < least {
        text += PARTS[dice.below(PARTS.len())];
        text += [" ", " ", " ", ""][dice.below(4)];
    }
    text
}

fn tokenizers() -> Vec<Tokenizer> {
    let mut folders = vec![repository().join("tasks/models/demo")];
    for name in ["gpt2", "llama2", "llama3", "mistral", "codellama", "phi-2"] {
        folders.extend(shared(&format!("data/tokenizers/{name}")));
    }
    folders.iter().map(|folder| Tokenizer::load(folder).expect("a tokenizer")).collect()
}

/// Every prompt through one encoder, against each by itself.
#[track_caller]
fn same_as_whole(tokenizer: &Tokenizer, prompts: &[Vec<String>]) {
    let mut encoder = SharedEncoder::new(tokenizer);
    for (ix, levels) in prompts.iter().enumerate() {
        for special in [AddSpecial::Yes, AddSpecial::No] {
            let whole = tokenizer.encode_levels(levels, special);
            let found = encoder.encode_levels(levels, special);
            let folder = tokenizer.folder().display();
            match (whole, found) {
                (Ok(whole), Ok(found)) => assert!(whole == found, "{folder}: prompt {ix}, {special:?}"),
                (Err(whole), Err(found)) => assert_eq!(whole.to_string(), found.to_string(), "{folder}: prompt {ix}"),
                (whole, found) => panic!("{folder}: prompt {ix}: {:?} but {:?}", whole.err(), found.err()),
            }
        }
    }
}

#[test]
fn prompts_that_share_a_document_have_the_tokens_of_whole_ones() {
    for tokenizer in tokenizers() {
        let mut dice = Dice::new(7);
        // The third round has examples long enough to be shared.
        for &round in some_or_full(&[0, 2][..], &[0, 1, 2]) {
            let mut prompts = Vec::new();
            let examples = text(&mut dice, round * 3000);
            for _ in 0..3 {
                let document = {
                    let least = 5000 + dice.below(9000);
                    text(&mut dice, least)
                };
                for least in [1, 5, 400] {
                    prompts.push(vec![examples.clone(), document.clone(), text(&mut dice, least)]);
                }
            }
            // Also in an order in which no document's questions follow each other.
            let turned = (0..prompts.len()).map(|ix| prompts[ix * 5 % prompts.len()].clone()).collect::<Vec<_>>();
            same_as_whole(&tokenizer, &prompts);
            same_as_whole(&tokenizer, &turned);
        }
    }
}

#[test]
fn a_novel_has_the_tokens_of_whole_prompts() {
    let Some(path) = shared("data/war_and_peace/war_and_peace.txt") else { return };
    let novel = std::fs::read_to_string(path).expect("it is text");
    let ends = [20_000, 30_003].map(|end| novel.floor_char_boundary(end));
    for tokenizer in tokenizers() {
        let prompts = ends.iter().flat_map(|&end| {
            ["", " ", "s", "\n\nQuestion: Who is Prince Vasili?\nAnswer:", "\n\nQuestion: Why?\nAnswer:"]
                .map(|question| vec![novel[..end].to_string(), question.to_string()])
        });
        same_as_whole(&tokenizer, &prompts.collect::<Vec<_>>());
    }
}

/// White space and letters in runs longer than any word, where a text ends and the next question goes on.
#[test]
fn long_runs_at_the_seam() {
    let words = "a plain sentence of plain words ".repeat(200);
    // Longer than the encoder's margin of 1024 bytes: a cut is looked for within the run, and found before it. Of three
    // bytes each, longer than two margins: none is found. In full that holds for single bytes too.
    let lengths = some_or_full(&[1500][..], &[1500, 3000]);
    for tokenizer in tokenizers() {
        for run in [" ", "\n", "a", "-", "  \n", "1"] {
            for &length in lengths {
                let document = format!("{words}{}", run.repeat(length));
                let prompts = ["", " ", "x", "\nb", "1 c"].map(|question| vec![document.clone(), question.to_string()]);
                same_as_whole(&tokenizer, &prompts);
            }
        }
    }
}

/// The ready task on the documents beside it, by the command.
#[test]
fn the_ready_task_asks_about_the_documents_beside_it() {
    let out = TempDir::new().expect("a temporary folder");
    let folder = out.path().join("out");
    let ran = Command::new(env!("CARGO_BIN_EXE_offshoot"))
        .current_dir(repository())
        .env("CUDA_VISIBLE_DEVICES", "")
        .args(["run", "tasks/ready/documents.json", "--out"])
        .arg(&folder)
        .output()
        .expect("the binary starts");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let text = std::fs::read_to_string(folder.join("summary.json")).expect("it was written");
    let summary: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(summary["items"], 12, "{text}");
    let engine = &summary["engine"];
    let tokens = |key: &str| engine[key].as_f64().unwrap_or_else(|| panic!("no `{key}` in {text}"));
    let part = tokens("prompt_tokens_computed") / tokens("prompt_tokens_logical");
    // Four questions of each document, whose texts are most of the prompts.
    assert!(part < 0.35, "{part:.2} of the prompts' tokens were computed");
}
