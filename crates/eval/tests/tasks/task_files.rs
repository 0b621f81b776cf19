//! Task files from the outside: what they may say, what each mistake is answered with, and that answers and grades
//! agree with other people's data.

use crate::shared;

use std::io::Write;
use std::num::{NonZeroU16, NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

use offshoot_core::ids::TokenId;
use offshoot_engine::GroupEnd;
use offshoot_eval::answer::ExtractedAnswer;
use offshoot_eval::task::{Item, Method, Overrides, RewardScoring, Sampling, Task, TaskPrompt, help, scaffold};
use offshoot_score::{FormChoice, ScoreForm};
use offshoot_search::OnScorerError;
use offshoot_search::confidence::{ConfidenceSource, ConfidenceVote, Measure, Windows};
use offshoot_search::settings::{
    Aggregate, BestBy, Decide, EntropyBranching, ParticleSearch, Resampling, RolloutScoring, StepEnd, StepSettings,
    TreePo,
};
use offshoot_search::vote::{Decided, VoteTally};
use offshoot_text::{Message, Tokenizer};
use serde_json::{Value, json};
use shared::shared;
use tempfile::TempDir;

/// A folder with a task file `t.json` and whatever else is put there.
pub struct Desk {
    folder: TempDir,
}

impl Desk {
    pub fn new() -> Desk {
        Desk { folder: TempDir::new().unwrap() }
    }

    pub fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn load_with(&self, task: &Value, overrides: &Overrides) -> Result<Task, String> {
        let path = self.put("t.json", serde_json::to_string_pretty(task).unwrap());
        Task::load(&path, overrides).map_err(|e| {
            assert_eq!(e.exit_code(), 2);
            one_sentence(e.to_string())
        })
    }

    pub fn load(&self, task: &Value) -> Result<Task, String> {
        self.load_with(task, &Overrides::default())
    }

    pub fn items(&self, items: Value) -> Result<Vec<Item>, String> {
        let mut task = sample_task();
        task["items"] = items;
        self.load(&task).unwrap().items(None).map_err(|e| one_sentence(e.to_string()))
    }
}

fn one_sentence(message: String) -> String {
    assert!(!message.contains('\n'), "more than one line: {message}");
    message
}

pub fn sample_task() -> Value {
    json!({"items": [{"q": "1+1?", "a": 2}], "prompt": "{{q}}", "method": {"sample": {"samples": 1}}})
}

/// The sample task with one key (a dotted path) set otherwise.
pub fn with(key: &str, value: Value) -> Value {
    let mut task = sample_task();
    let mut place = &mut task;
    for part in key.split('.') {
        place = &mut place[part];
    }
    *place = value;
    task
}

/// Asserts that the task is refused with a message that has all of these in it.
#[track_caller]
pub fn refused(task: &Value, parts: &[&str]) {
    let error = Desk::new().load(task).expect_err("refused");
    assert!(error.contains("t.json"), "{error}");
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

fn levels(task: &Task, item: &Item) -> Vec<String> {
    match task.prompt(item).unwrap() {
        TaskPrompt::Levels(levels) => levels,
        chat => panic!("{chat:?}"),
    }
}

#[test]
fn the_example_of_the_design() {
    let desk = Desk::new();
    desk.put("gsm8k.jsonl", "{\"task_id\": 7, \"question\": \"How many?\", \"answer\": \"so\\n#### 1,000\"}\n");
    desk.put("fewshot.txt", "\u{feff}Question: a\r\nAnswer: b {{verbatim}}\r\n\r\n");
    let task = desk
        .load(&json!({
            "name": "gsm8k-vote",
            "model": "models/demo",
            "items": {"path": "gsm8k.jsonl", "id": "task_id"},
            "prompt": {"shared": {"file": "fewshot.txt"}, "item": "Question: {{question}}\nAnswer:"},
            "method": {"self_consistency": {"samples": 40, "stop_when_decided": true}},
            "sampling": {"temperature": 0.7, "top_p": 0.95, "max_tokens": 256, "stop": ["Question:"], "seed": 1,
                         "logit_bias": {"13": -100, "7": 0.5}},
            "answer": {"regex": "#### (-?[0-9.,]+)", "normalise": "number"},
            "grade": {"exact": {"field": "answer", "regex": "#### (-?[0-9.,]+)"}},
        }))
        .unwrap();
    assert_eq!(task.name, "gsm8k-vote");
    assert_eq!(task.model, Some(desk.folder.path().join("models/demo")));
    assert_eq!(
        task.method,
        Method::SelfConsistency {
            samples: 40,
            stop: Decided::Certain,
            min_finished: None,
            confidence: None,
            scorer: None
        }
    );
    let expected = Sampling {
        temperature: 0.7,
        top_p: 0.95,
        stop: vec!["Question:".into()],
        seed: 1,
        logit_bias: vec![(13, -100.0), (7, 0.5)],
        ..Sampling::default()
    };
    assert_eq!(task.sampling, expected);
    let items = task.items(None).unwrap();
    assert_eq!((items[0].id.as_str(), items[0].index), ("7", 0));
    assert_eq!(items[0].reference().as_deref(), Some("1000"));
    assert_eq!(levels(&task, &items[0]), ["Question: a\nAnswer: b {{verbatim}}\n\n", "Question: How many?\nAnswer:"]);
    let answer = task.answer("500 + 500\n#### 1000.0\n").unwrap();
    assert_eq!(answer, ExtractedAnswer { value: "1000".into(), found: "1000.0".into() });
    assert!(task.grade(&items[0], "", Some(&answer)).unwrap());
    assert!(!task.grade(&items[0], "1000", None).unwrap(), "no answer is wrong");
}

#[test]
fn unknown_and_missing_keys_are_named() {
    refused(&with("promt", json!("x")), &["unknown key `promt`", "did you mean `prompt`?", "`sampling`"]);
    refused(&with("sampling", json!({"temprature": 1})), &["`sampling.temprature`", "`temperature`?"]);
    refused(&with("sampling", json!({"zzz": 1})), &["`sampling.zzz` (known in `sampling`: `temperature`"]);
    refused(&with("items", json!({"path": "x.jsonl", "file": 1})), &["unknown key `items.file`"]);
    refused(&with("prompt", json!({"item": "x", "levels": ["y"]})), &["`prompt`", "more than one of them"]);
    refused(&with("prompt", json!({})), &["`prompt`", "`item`, `levels` or `chat`", "none of them"]);
    refused(&with("prompt", json!({"item": {"fil": "x"}})), &["`prompt.item.fil`", "`file`"]);
    refused(
        &with("method", json!({"forest_of_thought": {}})),
        &["`method.forest_of_thought`", "`self_consistency`", "`best_of_n`", "`sample`"],
    );
    refused(
        &with("method", json!({"sample": {"samples": 1}, "best_of_n": {}})),
        &["exactly one of", "found 2 of them"],
    );
    refused(&with("method", json!({"sample": {}})), &["`method.sample.samples`", "nothing (the key is missing)"]);
    for key in ["items", "prompt", "method"] {
        refused(&with(key, Value::Null), &[&format!("`{key}`"), "nothing (the key is missing)"]);
    }
    refused(&with("grade", json!({"exact": {"regex": "x"}})), &["`grade.exact.field`", "the name of an item's field"]);
}

#[test]
fn wrong_types_and_ranges_are_named() {
    let sampling = |key: &str, value: Value, parts: &[&str]| {
        let mut settings = serde_json::Map::new();
        settings.insert(key.into(), value);
        let field = format!("`sampling.{key}`");
        refused(&with("sampling", settings.into()), &[&[field.as_str()], parts].concat());
    };
    sampling("temperature", json!("hot"), &["a 32-bit number of at least 0", "\"hot\""]);
    sampling("temperature", json!(-0.1), &["-0.1"]);
    sampling("top_p", json!(0), &["above 0, at most 1"]);
    sampling("top_p", json!(1.5), &["1.5"]);
    sampling("temperature", json!(1e39), &["a 32-bit number of at least 0", "1e+39"]);
    sampling("min_p", json!(1.1), &["from 0 to 1", "1.1"]);
    sampling("top_k", json!(0), &["at least 1"]);
    sampling("max_tokens", json!(0), &["at least 1"]);
    sampling("max_tokens", json!(1u64 << 40), &["at most 4294967295"]);
    sampling("min_tokens", json!(300), &["at most `max_tokens`, 256"]);
    sampling("stop", json!([1]), &["a string or a list of strings"]);
    sampling("stop", json!([""]), &["not empty"]);
    sampling("stop_token_ids", json!(["x"]), &["a list of token ids"]);
    sampling("repetition_penalty", json!(0), &["above 0"]);
    sampling("repetition_penalty", json!(1e-60), &["above 0", "1e-60"]);
    sampling("frequency_penalty", json!(-1e39), &["a 32-bit number", "-1e+39"]);
    sampling("presence_penalty", json!("much"), &["a 32-bit number", "\"much\""]);
    for bias in [json!([1]), json!({"x": 1}), json!({"1": "x"}), json!({"1": 1e39})] {
        sampling("logit_bias", bias, &["an object of 32-bit numbers by token id"]);
    }
    sampling("logprobs", json!(21), &["at most 20"]);
    sampling("logprobs_mode", json!("raw_logits"), &["raw_logprobs", "processed_logprobs"]);
    sampling("return_kept", json!("mask"), &["count", "ids"]);
    sampling("return_entropy", json!("yes"), &["true or false"]);
    sampling("ignore_eos", json!("yes"), &["true or false"]);
    sampling("seed", json!(-1), &["whole number"]);
    refused(&with("method", json!({"sample": {"samples": 0}})), &["`method.sample.samples`", "at least 1", "found 0"]);
    refused(&with("method", json!({"sample": 3})), &["`method.sample`", "an object", "found 3"]);
    refused(
        &with("method", json!({"best_of_n": {"samples": 2, "by": "luck"}})),
        &["`logprob`, `mean_logprob`, `grade`", "\"luck\""],
    );
    refused(&with("method", json!({"best_of_n": {"samples": 2, "by": "grade"}})), &["`grade`", "`best_of_n`"]);
    refused(&with("method", json!({"self_consistency": {"samples": 2}})), &["`answer`", "votes"]);
    refused(&with("name", json!(3)), &["`name`", "a string", "found 3"]);
    refused(&json!([1]), &["the task", "a list of 1"]);
}

#[test]
fn broken_patterns_and_templates_are_named() {
    refused(&with("answer", json!({"regex": ["a", "#### ([0-9"]})), &["`answer.regex`", "`#### ([0-9`", "unclosed"]);
    refused(&with("answer", json!({"regex": "(?=x)"})), &["look-around"]);
    refused(&with("grade", json!({"regex": {"pattern": "*"}})), &["`grade.regex.pattern`", "`*`"]);
    refused(&with("grade", json!({"regex": {"pattern": "a", "field": "b"}})), &["either `field` or `pattern`"]);
    refused(&with("answer", json!({"normalise": "numeric"})), &["`answer.normalise`", "`number`"]);
    refused(&with("answer", json!({"take": "best"})), &["`answer.take`", "`last`, `first`, `all`"]);
    refused(
        &with("answer", json!({"take": "all", "normalise": "number"})),
        &["`answer.take`", "`last` or `first`", "`latex`", "found `all`"],
    );
    refused(&with("prompt", json!({"item": "{{ q"})), &["`prompt.item`", "a template", "line 1 of the template"]);
    refused(&with("prompt", json!({"chat": {"system": "x"}})), &["`prompt.chat.user`", "user's turn"]);
    let error = Desk::new().load(&with("prompt", json!({"item": {"file": "none.txt"}}))).err().unwrap();
    assert!(error.contains("none.txt: cannot open"), "{error}");
}

#[test]
fn a_file_that_is_not_json_says_where() {
    let desk = Desk::new();
    let load = |text: &str| Task::load(&desk.put("t.json", text), &Overrides::default()).err().unwrap().to_string();
    let error = load("{\n  // a comment\n  \"name\" \"x\"\n}");
    assert!(error.contains("t.json: not a JSON task file") && error.contains("line 3 column 10"), "{error}");
    let missing = Task::load(&desk.folder.path().join("none.json"), &Overrides::default()).err().unwrap().to_string();
    assert!(missing.contains("none.json: cannot open"), "{missing}");
    let text = sample_task().to_string().replace(",\"prompt\"", ", // why\r\n\"prompt\"").replace("}}}", "},},}");
    assert!(Task::load(&desk.put("t.json", format!("\u{feff}{text}\r\n")), &Overrides::default()).is_ok(), "{text}");
}

#[test]
fn overrides_from_the_command_line() {
    let desk = Desk::new();
    let set = |assignments: &[&str]| {
        let set = assignments.iter().map(ToString::to_string).collect();
        desk.load_with(&sample_task(), &Overrides { set, ..Overrides::default() })
    };
    let task = set(&["sampling.temperature=0.25", "sampling.stop=Question:", "name=other", "method.sample.samples=8"])
        .unwrap();
    assert_eq!(
        (task.sampling.temperature, task.name.as_str(), task.method),
        (0.25, "other", Method::Sample { samples: 8, min_finished: None })
    );
    assert_eq!(task.sampling.stop, ["Question:"]);
    assert_eq!(task.source["sampling"]["temperature"], 0.25);
    let task = set(&[r#"method={"best_of_n": {"samples": 4, "by": "mean_logprob"}}"#]).unwrap();
    assert_eq!(
        task.method,
        Method::BestOfN { samples: 4, by: BestBy::MeanLogprob, stop_when_passed: false, min_finished: None }
    );
    let method = |text: &str| set(&[&format!("method={text}")]).map(|task| task.method);
    assert_eq!(
        method(r#"{"tree_po": {"samples": 9, "tokens": 700}}"#).unwrap(),
        Method::TreePo(TreePo { samples: 9, segment: 64, branches: 2, tokens: 700 })
    );
    assert_eq!(
        method(r#"{"entropy_branching": {"paths": 2, "branches": 3}}"#).unwrap(),
        Method::EntropyBranching(EntropyBranching { paths: 2, forks: 3, branches: 3 })
    );
    assert_eq!(method(r#"{"entropy_branching": {}}"#).unwrap().samples(), 4 * (1 + 3));
    let least = method(r#"{"sample": {"samples": 8, "min_finished": 6}}"#).unwrap();
    assert_eq!(least.group_end(), Some(GroupEnd::new(6.try_into().unwrap())));
    assert!(!least.draws_all(), "the samples that finish first are the short ones");
    let too_many = method(r#"{"self_consistency": {"samples": 8, "min_finished": 9}}"#).unwrap_err();
    assert!(too_many.contains("method.self_consistency.min_finished") && too_many.contains("at most"), "{too_many}");
    let question = r#"{"prompt": {"item": "{{thoughts}}"}, "words": {"a": 1}}"#;
    let asking = format!(r#"{{"best_of_n": {{"samples": 4, "min_finished": 2, "by": {question}}}}}"#);
    assert!(method(&asking).unwrap_err().contains("method.best_of_n.min_finished"));
    assert!(method(r#"{"tree_po": {"samples": 9, "segment": 0}}"#).unwrap_err().contains("method.tree_po.segment"));
    let scorer = |by: &str| format!("method={{\"best_of_n\": {{\"samples\": 4, \"by\": {by}}}}}");
    let asked = set(&[&scorer(r#"{"prompt": {"item": "{{q}} {{thoughts}} right?"}, "words": {" yes": 1, " no": 0}}"#)]);
    let asked = asked.unwrap().method;
    assert!(matches!(asked, Method::BestByScorer { samples: 4, .. }), "{asked:?}");
    let words = asked.verdict().and_then(|verdict| verdict.own_question()).unwrap().words.to_vec();
    assert_eq!(words, [(" yes".to_string(), 1.0), (" no".to_string(), 0.0)]);
    let task = set(&["items.0.q=changed"]).unwrap();
    assert_eq!(levels(&task, &task.items(None).unwrap()[0]), ["changed"]);

    let error = |assignment: &str| set(&[assignment]).err().unwrap();
    assert!(error("sampling.temprature=1").contains("`sampling.temprature` (given on the command line); did you mean"));
    assert!(error("sampling.temperature=hot").contains("found \"hot\" (given on the command line)"));
    assert!(error("method={\"sample\": {\"samples\": 0}}").contains("found 0 (given on the command line)"));
    assert!(error("prompt.item=x").contains("`set` prompt.item: expected an object or a list at `prompt`"));
    let wordless = error(&scorer(r#"{"prompt": {"item": "{{thoughts}}"}}"#));
    assert!(wordless.contains("`method.best_of_n.by`") && wordless.contains("one of `words`, `score`"), "{wordless}");
    let unasked = scorer(r#"{"prompt": {"item": "x"}, "words": {" yes": 1, " no": 0}}"#);
    assert!(error(&unasked).contains("`method.best_of_n.by.prompt`"));
    assert!(error("seed").contains("`set`: expected key=value, found `seed`"));

    let set = vec!["sampling.seed=9".into()];
    let options = Overrides { set, samples: Some(3), model: Some("here".into()), adapter: Some("tuned".into()) };
    let task = desk.load_with(&with("model", json!("there")), &options).unwrap();
    assert_eq!((task.method.samples(), task.sampling.seed, task.model), (3, 9, Some("here".into())));
    let none = Overrides { samples: Some(0), ..Overrides::default() };
    let error = desk.load_with(&sample_task(), &none).err().unwrap();
    assert!(
        error.contains("`method.sample.samples`") && error.contains("found 0 (given on the command line)"),
        "{error}"
    );
}

#[test]
fn items_of_every_format_whatever_the_line_ends() {
    let desk = Desk::new();
    let lines = "\u{feff}{\"q\": \"a\", \"n\": 1}\r\n\r\n{\"q\": \"b\", \"n\": 2}\r\n\n  \n";
    desk.put("a.jsonl", lines);
    desk.put("b.ndjson", lines.trim_end());
    desk.put("c.json", "\u{feff}[{\"q\": \"a\", \"n\": 1},\r\n {\"q\": \"b\", \"n\": 2}]\r\n");
    desk.put("d.csv", "\u{feff}q,n\r\na,1\r\n\r\nb,2\r\n");
    desk.put("e.csv", "a,1\nb,2");
    let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zip.write_all(lines.as_bytes()).unwrap();
    desk.put("f.jsonl.gz", zip.finish().unwrap());
    desk.put("g.txt", lines);
    let sources = [
        json!("a.jsonl"),
        json!("b.ndjson"),
        json!("c.json"),
        json!("d.csv"),
        json!({"path": "e.csv", "columns": ["q", "n"]}),
        json!("f.jsonl.gz"),
        json!({"path": "g.txt", "format": "jsonl"}),
        json!([{"q": "a", "n": 1}, {"q": "b", "n": 2}]),
    ];
    for source in sources {
        let items = desk.items(source.clone()).unwrap();
        let fields: Vec<(String, String)> = items
            .iter()
            .map(|item| (item.fields["q"].as_str().unwrap().into(), item.fields["n"].to_string().replace('"', "")))
            .collect();
        assert_eq!(fields, [("a".into(), "1".into()), ("b".into(), "2".into())], "{source}");
        assert_eq!(items.iter().map(|item| item.id.as_str()).collect::<Vec<_>>(), ["0", "1"]);
    }
    let ids = |items: Vec<Item>| items.into_iter().map(|item| (item.id, item.index)).collect::<Vec<_>>();
    let skipped = desk.items(json!({"path": "a.jsonl", "id": "q", "skip": 1, "limit": 5})).unwrap();
    assert_eq!(ids(skipped), [("b".into(), 1)]);
    let task = desk.load(&with("items", json!({"path": "a.jsonl", "limit": 2}))).unwrap();
    assert_eq!(task.items(Some(1)).unwrap().len(), 1);
    assert_eq!(task.items(Some(9)).unwrap().len(), 2);
}

#[test]
fn bad_items_are_named_with_file_and_line() {
    let desk = Desk::new();
    let error = |name: &str, content: &str, more: Value| {
        desk.put(name, content);
        let mut items = json!({"path": name});
        items.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let error = desk.items(items).expect_err("refused");
        assert!(error.contains(name), "{error}");
        error
    };
    let none = json!({});
    let e = error("a.jsonl", "{\"q\": 1}\r\n\r\n{\"q\": }\r\n", none.clone());
    assert!(e.contains("line 3, column 7: not JSON: expected value"), "{e}");
    assert!(error("a.jsonl", "{\"q\": 1}\n[1]\n", none.clone()).contains("line 2: not a JSON object"));
    assert!(error("a.jsonl", "{\"q\": 1}\n{\"q\": 2", none.clone()).contains("line 2, column 7: not JSON: EOF"));
    assert!(error("a.jsonl", "\n\n", none.clone()).contains("no items"));
    assert!(error("a.jsonl", "{\"q\": 1}", json!({"skip": 4})).contains("no items after skipping 4"));
    let e = error("a.jsonl", "{\"q\": 1}", json!({"id": "task_id"}));
    assert!(e.contains("`task_id`: expected an id, a string or a number, at line 1, found the fields `q`"), "{e}");
    let e = error("a.jsonl", "{\"q\": 1}\n{\"q\": \"1\"}", json!({"id": "q"}));
    assert!(e.contains("line 2: the id `1` occurs twice, first at line 1"), "{e}");
    assert!(error("a.json", "{\"q\": 1}", none.clone()).contains("\"format\": \"jsonl\""));
    assert!(error("a.csv", "a,b\n1,2\n1,2,3\n", none.clone()).contains("line 3: expected 2 fields, found 3"));
    assert!(error("a.csv", "a,b\n1,\"2\n", none.clone()).contains("line 2: a quoted field does not end"));
    assert!(error("a.jsonl.gz", "not gzip", none).contains("cannot read"));
    refused(&with("items", json!({"path": "a.feather"})), &["`items.path`", "`jsonl`", "a.feather"]);
    refused(&with("items", json!({"path": "a.jsonl", "format": "xml"})), &["`items.format`", "\"xml\""]);
    refused(&with("items", json!({"path": "a.jsonl", "columns": ["x"]})), &["`items.columns`", "CSV"]);
    let missing = desk.items(json!("none.jsonl")).err().unwrap();
    assert!(missing.contains("none.jsonl: cannot open"), "{missing}");
}

#[test]
fn documents_with_questions_become_items() {
    let desk = Desk::new();
    let documents = json!([
        {"id": "d1", "document": "Long.",
         "questions": [{"question": "a?", "answer": "A"}, {"question": "b?", "answer": "B"}]},
        {"id": "d2", "document": "Short.", "questions": ["c?"], "answer": "C"},
        {"id": "d3", "document": "None.", "questions": []},
    ]);
    desk.put("docs.json", documents.to_string());
    let mut task = sample_task();
    task["items"] = json!({"path": "docs.json", "id": "id", "questions": "questions"});
    task["prompt"] = json!({"shared": ["Read.\n"], "levels": ["{{document}}\n\n", "Question: {{question}}\nAnswer:"]});
    task["grade"] = json!({"exact": {"field": "answer"}});
    let task = desk.load(&task).unwrap();
    let items = task.items(None).unwrap();
    let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
    assert_eq!(ids, ["d1/0", "d1/1", "d2/0"]);
    assert_eq!(levels(&task, &items[1]), ["Read.\n", "Long.\n\n", "Question: b?\nAnswer:"]);
    assert_eq!(levels(&task, &items[2])[1], "Short.\n\n");
    assert!(task.grade(&items[1], " b.\n", None).unwrap());
    assert_eq!(task.items(Some(2)).unwrap().len(), 2);

    desk.put("docs.jsonl", "{\"id\": \"d\", \"document\": \"x\"}");
    let error = desk.items(json!({"path": "docs.jsonl", "questions": "questions"})).err().unwrap();
    assert!(
        error.contains("`questions`: expected a list of questions at line 1, found the fields `id`, `document`"),
        "{error}"
    );
}

#[test]
fn a_prompt_that_lacks_a_field_names_item_and_field() {
    let desk = Desk::new();
    let mut task = sample_task();
    task["items"] = json!([{"id": "x9", "q": "a", "deep": {"a": 1}}]);
    let error = |prompt: &str| {
        let mut task = task.clone();
        task["prompt"] = json!({"item": prompt});
        let task = desk.load(&task).unwrap();
        one_sentence(task.prompt(&task.items(None).unwrap()[0]).unwrap_err().to_string())
    };
    let e = error("{{question}} {{ hint }}");
    assert!(
        e.contains(
            "t.json: `prompt.item`: expected fields `hint`, `question` in item `x9`, found the fields `id`, `q`, `deep`"
        ),
        "{e}"
    );
    assert!(
        error("{{ deep.b }}").contains("item `x9` fills, found undefined value: a value of the type dict has no `b`"),
        "{}",
        error("{{ deep.b }}")
    );
    task["prompt"] = json!("{{ q.upper() }}{% if note is defined %}!{% endif %}{{ deep.a }} <b>\n");
    let task = desk.load(&task).unwrap();
    assert_eq!(levels(&task, &task.items(None).unwrap()[0]), ["A1 <b>\n"]);
}

#[test]
fn a_prompt_that_prints_null_names_item_and_field() {
    let desk = Desk::new();
    let prompt = |prompt: &str| {
        let mut task = with("prompt", json!({"item": prompt}));
        task["items"] = json!([{"id": "x9", "q": null, "deep": {"a": null}, "list": [1, null]}]);
        let task = desk.load(&task).unwrap();
        let prompt = task.prompt(&task.items(None).unwrap()[0]).map_err(|e| one_sentence(e.to_string()))?;
        let TaskPrompt::Levels(levels) = prompt else { panic!("no chat") };
        Ok::<String, String>(levels.concat())
    };
    for (template, field) in
        [("Q: {{ q }}", "`q`"), ("{{ deep.a }}", "`deep.a`"), ("{{ q }}{{ deep.a }}", "`deep.a`, `q`")]
    {
        let error = prompt(template).unwrap_err();
        assert!(error.contains("`prompt.item`: expected a text or number in "), "{error}");
        assert!(error.contains(&format!("{field} of item `x9`")) && error.contains("found null"), "{error}");
    }
    let error = prompt("{% for one in list %}{{ one }}{% endfor %}").unwrap_err();
    assert!(error.contains("item `x9`") && error.contains("null"), "{error}");
    let tested = "{% if q is none %}no{% endif %}{{ q or '' }}{{ deep.a if deep.a else 'thing' }}";
    assert_eq!(prompt(tested).as_deref(), Ok("nothing"));
}

/// In JSON lines, a JSON list and inline alike.
#[test]
fn numbers_of_items_keep_the_digits_of_the_file() {
    let (one, other) = ("12345678901234567890123", "12345678901234567890124");
    let item =
        |id: &str| format!(r#"{{"id": {id}, "q": {id}, "a": {id}, "x": [0.1000000000000000055, 1.5, {{"y": {id}}}]}}"#);
    let lines = format!("{}\n{}\n", item(one), item(other));
    let list = format!("[{}, {}]", item(one), item(other));
    for (name, items) in [("i.jsonl", &lines), ("i.json", &list), ("", &list)] {
        let desk = Desk::new();
        let named = match name {
            "" => items.clone(),
            name => {
                desk.put(name, items);
                json!({"path": name, "id": "id"}).to_string()
            }
        };
        let rest = r#""prompt": "{{q}} {{x[0]}} {{x[1] * 2}} {{x[2].y}}", "method": {"sample": {"samples": 1}},
            "answer": {"normalise": "latex"}, "grade": {"exact": {"field": "a"}}"#;
        let path = desk.put("t.json", format!(r#"{{"items": {named}, {rest}, }} // end"#));
        let task = Task::load(&path, &Overrides::default()).unwrap();
        let items = task.items(None).unwrap();
        for (item, digits) in items.iter().zip([one, other]) {
            assert_eq!((item.id.as_str(), item.reference().as_deref()), (digits, Some(digits)), "{name}");
            assert_eq!(levels(&task, item), [format!("{digits} 0.1000000000000000055 3.0 {digits}")], "{name}");
            let right = |text: &str| task.grade(item, text, task.answer(text).as_ref()).unwrap();
            assert_eq!((right(one), right(other)), (digits == one, digits == other), "{name}");
        }
        assert_eq!(items.len(), 2);
    }
}

#[test]
fn numbers_with_exponents_are_references_of_their_value() {
    for (number, text) in [("1e-7", "0.0000001"), ("1e20", "100000000000000000000"), ("-2.5E+3", "-2500")] {
        for normalise in ["latex", "number"] {
            let desk = Desk::new();
            let task = format!(
                r#"{{"items": [{{"q": "", "a": {number}}}], "prompt": "{{{{q}}}}",
                "method": {{"sample": {{"samples": 1}}}},
                "answer": {{"normalise": "{normalise}"}}, "grade": {{"exact": {{"field": "a"}}}}}}"#
            );
            let task = Task::load(&desk.put("t.json", task), &Overrides::default()).unwrap();
            let items = task.items(None).unwrap();
            assert!(task.grade(&items[0], text, task.answer(text).as_ref()).unwrap(), "{number} {normalise}");
        }
    }
}

#[test]
fn a_chat_prompt() {
    let desk = Desk::new();
    desk.put("system.txt", "Be {{mood}}.\r\n");
    let chat = json!({
        "system": {"file": "system.txt"},
        "messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}],
        "user": "{{q}}",
        "options": {"enable_thinking": false},
    });
    let mut task = with("prompt", json!({"chat": chat}));
    task["items"] = json!([{"q": "2+2?", "mood": "brief"}]);
    let task = desk.load(&task).unwrap();
    let TaskPrompt::Chat { messages, options } = task.prompt(&task.items(None).unwrap()[0]).unwrap() else {
        panic!("a chat")
    };
    let say = |role: &str, content: &str| Message::new(role, content);
    let expected = [say("system", "Be brief.\n"), say("user", "1+1?"), say("assistant", "2"), say("user", "2+2?")];
    assert_eq!(messages, expected);
    assert_eq!(options.variables["enable_thinking"], false);
    let call = json!({"type": "function", "function": {"name": "add", "arguments": {"a": 1}}});
    let tool = json!({"type": "function", "function": {"name": "add"}});
    let chat = json!({
        "messages": [
            {"role": "user", "content": "{{q}}"},
            {"role": "assistant", "reasoning_content": "{{q}} is easy", "tool_calls": [call],
             "fields": {"mood": "calm"}},
            {"role": "tool", "content": "2", "tool_call_id": "c1", "name": "add"},
        ],
        "tools": [tool],
    });
    let mut task = with("prompt", json!({"chat": chat}));
    task["items"] = json!([{"q": "1+1?"}]);
    let task = desk.load(&task).unwrap();
    let TaskPrompt::Chat { messages, options } = task.prompt(&task.items(None).unwrap()[0]).unwrap() else {
        panic!("a chat")
    };
    let easy = say("assistant", "").with("reasoning_content", "1+1? is easy").completed();
    let easy = easy.with("tool_calls", json!([call])).with("mood", "calm");
    let answer = say("tool", "2").with("tool_call_id", "c1").with("name", "add");
    assert_eq!((messages, options.tools), (vec![say("user", "1+1?"), easy, answer], vec![tool]));
    refused(&with("prompt", json!({"shared": "x", "chat": {"user": "y"}})), &["`shared` beside `chat`"]);
    refused(&with("prompt", json!({"chat": {"messages": [{"role": "user"}]}})), &["`prompt.chat.messages.0.content`"]);
}

/// As of requests: escaped or refused in prompts of all forms, and in the answers of `choose`.
#[test]
fn special_tokens_in_items_are_tokens_text_or_refused() {
    const END: &str = "<|end_of_text|>";
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tasks/models/demo"));
    let tokenizer = Tokenizer::load(model).expect("the demo model is part of the project");
    let desk = Desk::new();
    let encoded = |prompt: Value, how: &str| {
        let mut task = with("prompt", prompt);
        task["items"] = json!([{"q": format!("a{END}"), "half": "<|end_", "rest": "of_text|>"}]);
        task["special_tokens"] = json!(how);
        let task = desk.load(&task).unwrap();
        let prompt = task.prompt(&task.items(None).unwrap()[0]).unwrap();
        let mut encoder = task.encoder(&tokenizer);
        let tokens = prompt.encode(&mut encoder).map(|levels| levels.tokens);
        let choices = prompt.encode_choices(&mut encoder, &["x".to_owned(), END.to_owned()]);
        (tokens, choices.map(|choices| choices.continuations[1].clone()))
    };
    let ends = |tokens: &[TokenId]| tokens.iter().filter(|token| token.0 == 1).count();
    let forms = [
        json!("{{q}} b"),
        json!({"levels": ["{{half}}", "{{rest}}"]}),
        json!({"chat": {"user": "{{q}}"}}),
        json!({"chat": {"system": "{{half}}{{rest}}", "user": "b"}}),
    ];
    for form in forms {
        let (tokens, choice) = encoded(form.clone(), "escape");
        assert_eq!((ends(&tokens.unwrap()), ends(&choice.unwrap())), (0, 0), "{form}");
        let (tokens, choice) = encoded(form.clone(), "refuse");
        for error in [tokens.unwrap_err(), choice.unwrap_err()].map(|error| error.to_string()) {
            assert!(error.contains("without special tokens") && error.contains(END), "{form}: {error}");
        }
        let (tokens, choice) = encoded(form.clone(), "allow");
        assert_eq!((ends(&tokens.unwrap()), ends(&choice.unwrap())), (1, 1), "{form}");
    }
    refused(&with("special_tokens", json!("keep")), &["`special_tokens`"]);
}

#[test]
fn graders() {
    let desk = Desk::new();
    let verdict = |answer: Value, grade: Value, item: Value, text: &str| {
        let mut task = sample_task();
        (task["answer"], task["grade"], task["items"]) = (answer, grade, json!([item]));
        let task = desk.load(&task).unwrap();
        let items = task.items(None).map_err(|e| one_sentence(e.to_string()))?;
        Ok::<bool, String>(task.grade(&items[0], text, task.answer(text).as_ref()).unwrap())
    };
    let right = |answer: Value, grade: Value, item: Value, text: &str| verdict(answer, grade, item, text).unwrap();
    let number = json!({"regex": "= (.*)", "normalise": "number"});
    let exact = json!({"exact": {"field": "a"}});
    assert!(right(number.clone(), exact.clone(), json!({"q": "", "a": 18}), "= 18.00"));
    assert!(!right(number.clone(), exact.clone(), json!({"q": "", "a": 18}), "18"), "no answer");
    assert!(right(Value::Null, exact.clone(), json!({"q": "", "a": ["New York", "NYC"]}), " nyc.\n"));
    assert!(!right(
        Value::Null,
        json!({"exact": {"field": "a", "normalise": "none"}}),
        json!({"q": "", "a": "NYC"}),
        "nyc"
    ));
    let near = json!({"number": {"field": "a", "tolerance": 0.01}});
    assert!(right(number.clone(), near.clone(), json!({"q": "", "a": "3.14"}), "= 3.1416"));
    assert!(!right(number.clone(), near.clone(), json!({"q": "", "a": "3.14"}), "= 3.2"));
    assert!(right(number.clone(), json!({"number": {"field": "a"}}), json!({"q": "", "a": 1e3}), "= 1,000"));
    assert!(right(
        Value::Null,
        json!({"contains": {"field": "a", "ignore_case": true}}),
        json!({"q": "", "a": "Blue"}),
        "It is BLUE"
    ));
    assert!(!right(Value::Null, json!({"contains": {"field": "a"}}), json!({"q": "", "a": "Blue"}), "It is BLUE"));
    assert!(right(Value::Null, json!({"regex": {"field": "a"}}), json!({"q": "", "a": "^[ab]+$"}), "abba"));
    assert!(!right(Value::Null, json!({"regex": {"pattern": "^x"}}), json!({"q": ""}), "abba"));
    assert!(right(json!({"normalise": "choice"}), exact.clone(), json!({"q": "", "a": "B"}), " (b)"));

    let error = verdict(Value::Null, exact.clone(), json!({"q": "", "b": 1}), "").unwrap_err();
    assert!(
        error.contains("`a`: expected a string, a number or a list of them in item `0`, found the fields `q`, `b`"),
        "{error}"
    );
    let error = verdict(number.clone(), near, json!({"q": "", "a": "many"}), "").unwrap_err();
    assert!(error.contains("a text in which `grade` finds an answer in item `0`, found \"many\""), "{error}");
    let error = verdict(Value::Null, json!({"regex": {"field": "a"}}), json!({"q": "", "a": "(x"}), "").unwrap_err();
    assert!(error.contains("`a`: expected a regular expression in item `0`, found `(x` (unclosed group)"), "{error}");
}

/// GSM8K's own model solutions: what we extract from a solution and its reference agrees with the authors' verdict.
#[test]
fn extraction_agrees_with_gsm8k_s_own_grading() {
    let Some(solutions) = shared("data/gsm8k/example_model_solutions.jsonl") else { return };
    let desk = Desk::new();
    let mut task = with("answer", json!({"regex": r"\nA: ([^\n]+)", "normalise": "number"}));
    task["items"] = json!({"path": solutions});
    task["grade"] = json!({"exact": {"field": "ground_truth", "regex": r"\nA: (\-?[0-9\.\,]+)"}});
    task["prompt"] = json!("Q: {{question}}\nA:");
    let task = desk.load(&task).unwrap();
    let items = task.items(None).unwrap();
    let test = shared("data/gsm8k/test.jsonl").unwrap();
    let official = desk
        .load(&json!({
            "items": {"path": test}, "prompt": "{{question}}", "method": {"sample": {"samples": 1}},
            "answer": {"regex": "#### (\\-?[0-9\\.\\,]+)", "normalise": "number"},
            "grade": {"exact": {"field": "answer", "regex": "#### (\\-?[0-9\\.\\,]+)"}},
        }))
        .unwrap();
    let references = official.items(None).unwrap();
    assert_eq!((items.len(), references.len()), (1319, 1319));
    let mut differ = Vec::new();
    for (item, reference) in items.iter().zip(&references) {
        let of =
            |task: &Task, item: &Item, field: &str| task.answer(item.fields[field].as_str().unwrap()).map(|a| a.value);
        assert_eq!(of(&task, item, "ground_truth"), of(&official, reference, "answer"), "item {}", item.id);
        assert!(of(&official, reference, "answer").is_some());
        for model in ["6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"] {
            let solution = &item.fields[model];
            let text = solution["solution"].as_str().unwrap();
            let is_right = task.grade(item, text, task.answer(text).as_ref()).unwrap();
            if is_right != solution["is_correct"].as_bool().unwrap() {
                differ.push((item.id.clone(), model, text.to_string(), is_right, item.reference()));
            }
        }
    }
    assert!(differ.is_empty(), "{} of 5276: {:#?}", differ.len(), &differ[..differ.len().min(5)]);
}

#[test]
fn other_people_s_items_load() {
    let Some(humaneval) = shared("data/humaneval/HumanEval.jsonl.gz") else { return };
    let desk = Desk::new();
    let items = desk.items(json!({"path": humaneval, "id": "task_id"})).unwrap();
    assert_eq!((items.len(), items[163].id.as_str()), (164, "HumanEval/163"));
    let puzzles =
        desk.items(json!({"path": shared("data/game24/24.csv"), "id": "Rank", "skip": 900, "limit": 100})).unwrap();
    assert_eq!(
        (puzzles.len(), puzzles[0].id.as_str(), &puzzles[0].fields["Puzzles"]),
        (100, "901", &json!("4 5 6 10"))
    );
    let columns = json!(["question", "A", "B", "C", "D", "answer"]);
    let law =
        desk.items(json!({"path": shared("data/mmlu/test/professional_law_test.csv"), "columns": columns})).unwrap();
    assert_eq!(law.len(), 1534);
    assert!(law.iter().all(|item| "ABCD".contains(item.fields["answer"].as_str().unwrap())));
    let facts =
        desk.items(json!({"path": shared("demo/eval/facts.jsonl"), "id": "id", "questions": "questions"})).unwrap();
    assert_eq!((facts.len(), facts[5].id.as_str()), (800, "facts-500-1/1"));
    assert!(facts.iter().all(|item| item.fields.contains_key("document") && item.fields.contains_key("question")));
}

#[test]
fn a_new_task_works_as_it_is_written() {
    let desk = Desk::new();
    let folder = desk.folder.path().join("new");
    let files = scaffold::write(&folder, "my-task").unwrap();
    assert_eq!(files, [folder.join("my-task.json"), folder.join("my-task.jsonl")]);
    let task = Task::load(&files[0], &Overrides::default()).unwrap();
    let items = task.items(None).unwrap();
    assert_eq!((task.name.as_str(), task.model.clone(), items.len()), ("my-task", None, 3));
    let prompt = levels(&task, &items[0]).concat();
    assert!(prompt.ends_with("How many pears does Ida have now?\nAnswer:"), "{prompt}");
    let mut tally = VoteTally::default();
    for (ix, text) in ["35 - 8 = 27\n#### 27", "#### 26", "#### 27.0"].iter().enumerate() {
        tally.add(ix, task.answer(text).map(|a| a.value).as_deref());
    }
    let winner = tally.leader().unwrap().value.clone();
    let answer = ExtractedAnswer { found: winner.clone(), value: winner };
    assert!(task.grade(&items[0], "", Some(&answer)).unwrap());

    std::fs::remove_file(&files[0]).unwrap();
    let error = scaffold::write(&folder, "my-task").unwrap_err().to_string();
    assert!(error.contains("my-task.jsonl: already exists"), "{error}");
    assert!(!files[0].exists(), "nothing is written where one of the files exists");
    assert!(scaffold::write(&folder, "../x").unwrap_err().to_string().contains("\"../x\""));
}

#[test]
fn inline_items_are_named_by_their_id() {
    let ids = |items: Value| -> Vec<String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("t.json");
        let task = json!({"items": items, "prompt": "{{q}}", "method": {"sample": {"samples": 1}}});
        std::fs::write(&path, task.to_string()).expect("writable");
        let task = Task::load(&path, &Overrides::default()).expect("a sound task");
        task.items(None).expect("sound items").into_iter().map(|item| item.id).collect()
    };
    assert_eq!(ids(json!([{"id": "b", "q": "x"}, {"id": "a", "q": "y"}])), ["b", "a"]);
    assert_eq!(ids(json!([{"id": "b", "q": "x"}, {"q": "y"}])), ["0", "1"], "by number where one has none");
}

/// A path in `--set` is one of the current folder, as it was typed; where it has none, one of the task file's.
#[test]
fn a_path_of_the_command_line_is_one_of_the_current_folder() {
    let (here, desk) = (std::env::current_dir().unwrap(), Desk::new());
    desk.put("beside.jsonl", "{\"q\": \"beside\"}\n");
    let set = |assignment: &str| {
        let overrides = Overrides { set: vec![assignment.into()], ..Overrides::default() };
        desk.load_with(&with("items", json!({"path": "beside.jsonl"})), &overrides)
    };
    // `cargo test` runs in the folder of the crate.
    let task = set("items.path=../../tasks/words.jsonl").unwrap();
    assert_eq!(task.items_path(), here.join("../../tasks/words.jsonl"));
    assert_eq!(
        task.source["items"]["path"],
        json!(here.join("../../tasks/words.jsonl")),
        "a run records what was meant"
    );
    let task = set("items.path=beside.jsonl").unwrap();
    assert_eq!(task.source["items"]["path"], "beside.jsonl", "as it was typed");
    assert_eq!(task.items(None).unwrap()[0].fields["q"], "beside");
    let task = set("items=../../tasks/words.jsonl").unwrap();
    assert_eq!(task.items_path(), here.join("../../tasks/words.jsonl"));
    let pattern = set("items={\"path\": \"../../tasks/w*.jsonl\", \"matched\": \"part\"}").unwrap();
    assert_eq!(pattern.items(Some(1)).unwrap()[0].fields["part"], "ords");
    let error = set("items.path=none.jsonl").unwrap_err();
    for place in [here.join("none.jsonl"), desk.folder.path().join("none.jsonl")] {
        assert!(
            error.contains("`set` items.path: expected a file or folder") && error.contains(place.to_str().unwrap()),
            "{error}"
        );
    }
    assert!(set("prompt={\"item\": {\"file\": \"none.txt\"}}").unwrap_err().contains("`set` prompt.item.file"));
    // Not every text is a path.
    assert!(set("prompt=none.txt").is_ok());
}

#[test]
fn of_two_changes_of_a_key_the_last_counts() {
    let set = ["temperature=0.1", "temperature=0.6", "top_p=0.9", "max_tokens=7"].map(|set| format!("sampling.{set}"));
    let options = Overrides { set: set.to_vec(), ..Overrides::default() };
    let task = Desk::new().load_with(&sample_task(), &options).unwrap();
    assert_eq!((task.sampling.temperature, task.sampling.top_p, task.sampling.max_tokens), (0.6, 0.9, 7));
    assert_eq!(task.source["sampling"], json!({"temperature": 0.6, "top_p": 0.9, "max_tokens": 7}));
    let wrong = Overrides { set: vec!["sampling.top_p=2".into()], ..Overrides::default() };
    let error = Desk::new().load_with(&sample_task(), &wrong).unwrap_err();
    assert!(error.contains("`sampling.top_p`") && error.contains("found 2 (given on the command line)"), "{error}");
}

#[test]
fn no_message_shows_a_whole_long_value() {
    let long = "word ".repeat(20_000);
    let mut chosen = sample_task();
    chosen["method"] = json!({"choose": {"choices": {"field": "c"}}});
    let task = Desk::new().load(&chosen).unwrap();
    let mut item = task.items(None).unwrap().remove(0);
    item.fields.insert("c".into(), json!([long]));
    let Method::Choose(choose) = &task.method else { panic!("choose") };
    let few = choose.offers(&item).unwrap_err().to_string();
    assert!(few.contains("t.json: `method.choose.choices`") && few.contains("item `0`"), "{few}");
    let error = |task: Value| Desk::new().load(&task).unwrap_err();
    let messages = [
        few,
        error(with("answer", json!({"regex": format!("({long}")}))),
        error(with("answer", json!({"normalise": long}))),
        error(with("items", json!(format!("{long}.feather")))),
        error(with(&long, json!(1))),
    ];
    for message in messages {
        assert!(message.len() < 3000, "{} bytes: {}", message.len(), &message[..3000]);
    }
}

#[test]
fn the_schema_names_every_key_and_is_what_checks() {
    let schema: Value = serde_json::from_str(&help::schema()).unwrap();
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(schema["properties"]["sampling"]["$ref"], "#/$defs/Sampling");
    let page = help::text();
    for line in [
        "sampling.temperature: a 32-bit number of at least 0 [default: 1.0]\n",
        "sampling.max_tokens: a whole number of at least 1 [default: 256]\n",
        "method.self_consistency.samples: a whole number of at least 1 [required]\n",
        "method.mcts.by: ",
        "items.path: a path, relative to the task file [required]\n",
        "items.questions.document: a string\n",
        "prompt.item.shots.count: ",
        "prompt.chat.messages[].role: ",
        "grade.exact.normalise: one of ",
        "grade.judge.memory_mb: ",
    ] {
        assert!(page.contains(line), "{line:?} is missing:\n{page}");
    }
    assert!(page.lines().all(|line| line.chars().count() <= 140), "{page}");
    assert!(Desk::new().load(&with("$schema", json!("offshoot.schema.json"))).is_ok());
}

#[test]
fn a_vote_may_be_decided_by_windows() {
    let voting = |stop: Value| {
        let mut task = with("method", json!({"self_consistency": {"samples": 20, "stop_when_decided": stop}}));
        task["answer"] = json!({"regex": "(.*)"});
        task
    };
    let window = NonZeroU32::new(5).expect("5");
    let task = Desk::new().load(&voting(json!({"window": 5}))).unwrap();
    let stop = Decided::Agreeing(window);
    assert_eq!(
        task.method,
        Method::SelfConsistency { samples: 20, stop, min_finished: None, confidence: None, scorer: None }
    );
    assert_eq!((task.method.samples_at_once(), task.method.draws_all()), (5, false));
    let key = "method.self_consistency.stop_when_decided";
    refused(&voting(json!({"window": 1})), &[key, "window", "at least 2"]);
    refused(&voting(json!({"window": 5, "confidence": 0.9})), &[key, "{\"window\": N}"]);
}

#[test]
fn particles_are_set_by_the_task() {
    let of = |method: Value| with("method", method);
    let word = |worth: f64| json!({"prompt": "{{thoughts}}?", "words": {"y": worth, "n": 0}});
    let task = Desk::new().load(&of(json!({"particle_filtering": {"samples": 8, "scorer": word(1.0)}}))).unwrap();
    let Method::Particles { search, .. } = &task.method else { panic!("{:?}", task.method) };
    let steps = StepSettings::delimited("\n", 40);
    let expected = ParticleSearch {
        samples: 8,
        iterations: 1,
        references: 0,
        steps,
        aggregate: Aggregate::Last,
        resampling: Resampling::Multinomial,
        by: Decide::Best,
    };
    assert_eq!(search, &expected);
    assert_eq!((task.method.name(), task.method.samples_at_once()), ("particle_filtering", 8));
    let gibbs = |more: Value| {
        let mut settings = json!({"samples": 12, "scorer": "mean_logprob"});
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        of(json!({"particle_gibbs": settings}))
    };
    let more = json!({"iterations": 3, "references": 2, "resampling": "systematic", "aggregate": "mean"});
    let task = Desk::new().load(&gibbs(more)).unwrap();
    let Method::Particles { search, .. } = &task.method else { panic!("{:?}", task.method) };
    let (aggregate, resampling) = (Aggregate::Mean, Resampling::Systematic);
    assert_eq!(
        search,
        &ParticleSearch { samples: 12, iterations: 3, references: 2, aggregate, resampling, ..expected }
    );
    assert_eq!((task.method.name(), task.method.samples_at_once()), ("particle_gibbs", 4));
    refused(&gibbs(json!({"iterations": 5})), &["method.particle_gibbs.samples", "a multiple of `iterations`, 5"]);
    let few = gibbs(json!({"iterations": 3, "references": 4}));
    refused(&few, &["method.particle_gibbs.references", "less than the particles of an iteration, 4"]);
    let odds = of(json!({"particle_filtering": {"samples": 8, "scorer": word(20.0)}}));
    refused(&odds, &["method.particle_filtering.scorer.words", "from 0 to 1"]);
}

#[test]
fn beams_may_look_ahead() {
    for name in ["step_beam", "dvts"] {
        let beams = |more: Value| {
            let mut task = with("method", json!({name: {"samples": 4, "scorer": "mean_logprob", "by": "best"}}));
            task["method"][name]["lookahead"] = more;
            task
        };
        let task = Desk::new().load(&beams(json!(2))).unwrap();
        let (Method::StepBeam { search, .. } | Method::Dvts { search, .. }) = &task.method else { panic!("{name}") };
        assert_eq!(search.lookahead, 2);
        refused(&beams(json!(-1)), &[&format!("method.{name}.lookahead")]);
    }
}

#[test]
fn confidences_weigh_votes_where_they_are_recorded() {
    let voting = |more: Value, sampling: Value| {
        let mut method = json!({"samples": 20});
        method.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut task = with("method", json!({"self_consistency": method}));
        (task["answer"], task["sampling"]) = (json!({"regex": "(.*)"}), sampling);
        task
    };
    let logprobs = json!({"logprobs": 20});
    let more = json!({"confidence": {"weigh_by": "tail", "window": 32, "keep": 0.5}});
    let task = Desk::new().load(&voting(more.clone(), logprobs.clone())).unwrap();
    let size = NonZeroUsize::new(32).expect("32");
    let windows = Windows { tail: size, window: size, bottom: 0.1, keep: 0.5 };
    let Method::SelfConsistency { confidence, .. } = &task.method else { panic!("{:?}", task.method) };
    let source = ConfidenceSource::Listed;
    assert_eq!(confidence, &Some(ConfidenceVote { by: Some(Measure::Tail), windows, source }));
    assert!(task.method.draws_all());
    refused(&voting(more.clone(), json!({})), &["sampling.logprobs", "from 1 to 20"]);
    let processed = json!({"logprobs": 20, "logprobs_mode": "processed_logprobs"});
    refused(&voting(more, processed), &["sampling.logprobs_mode", "raw_logprobs"]);
    let stopped = json!({"confidence": {}, "stop_when_decided": true});
    refused(&voting(stopped, logprobs.clone()), &["method.self_consistency.stop_when_decided", "false"]);
    refused(&voting(json!({"confidence": {"keep": 0}}), logprobs), &["confidence.keep", "above 0, at most 1"]);
    let refused_alone = |more: Value, what: &[&str]| refused(&voting(more, json!({})), what);
    refused_alone(json!({"confidence": {"weigh_by": "most"}}), &["confidence.weigh_by"]);
    refused_alone(json!({"confidence": {"warm_up": 0}}), &["confidence.warm_up", "1"]);
    refused_alone(json!({"confidence": {"top": 0}}), &["confidence.top", "at least 1"]);
    let least = json!({"confidence": {"warm_up": 8}, "min_finished": 7});
    refused_alone(least, &["min_finished", "at least `confidence.warm_up`, 8", "7"]);
    let more = json!({"confidence": {"warm_up": 21}});
    refused_alone(more, &["confidence.warm_up", "at most `samples`, 20", "21"]);
    let recorded = json!({"return_confidence": 5});
    let unlike = voting(json!({"confidence": {"top": 6}}), recorded.clone());
    refused(&unlike, &["sampling.return_confidence", "the number of tokens that `confidence` is the mean of", "5"]);
    Desk::new().load(&voting(json!({"confidence": {"top": 5}}), recorded)).unwrap();
}

#[test]
fn a_warm_up_sets_the_bar_that_ends_samples() {
    let vote = |more: Value| {
        let mut method = json!({"samples": 20});
        method.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut task = with("method", json!({"self_consistency": method}));
        task["answer"] = json!({"regex": "(.*)"});
        Desk::new().load(&task)
    };
    let task = vote(json!({"confidence": {"window": 16, "keep": 0.9, "warm_up": 8}})).unwrap();
    let size = NonZeroUsize::new(16).expect("16");
    let windows = Windows { keep: 0.9, ..Windows::of_size(size) };
    let (top, warm_up) = (NonZeroU16::new(20).expect("20"), NonZeroU32::new(8));
    let source = ConfidenceSource::Sampler { top, warm_up };
    let Method::SelfConsistency { confidence, .. } = &task.method else { panic!("{:?}", task.method) };
    assert_eq!(confidence, &Some(ConfidenceVote { by: Some(Measure::Lowest), windows, source }));
    assert!(!task.method.draws_all() && task.method.draws_alike() && task.method.spares().is_none());
    assert_eq!((task.method.samples_at_once(), task.unfilled_window()), (8, None));

    // Where it weighs nothing, what passes may decide.
    let equal = json!({"confidence": {"window": 300, "warm_up": 8, "weigh_by": "none"}, "stop_when_decided": true});
    let task = vote(equal).unwrap();
    let Method::SelfConsistency { confidence: Some(how), stop, .. } = &task.method else { panic!("{:?}", task.method) };
    assert_eq!((how.by, *stop), (None, Decided::Certain));
    assert_eq!(task.unfilled_window(), Some(300), "a sample has 256 tokens at most");
    let weighed = vote(json!({"confidence": {"warm_up": 8}, "stop_when_decided": true})).unwrap_err().to_string();
    assert!(weighed.contains("stop_when_decided") && weighed.contains("`weigh_by` \"none\""), "{weighed}");

    // Without a warm-up nothing ends, whatever finds the confidences.
    let task = vote(json!({"confidence": {"top": 5}})).unwrap();
    assert!(task.method.draws_all() && task.method.warm_up().is_none());
}

#[test]
fn a_scorer_is_a_folder_or_more() {
    let by_reward = |scorer: Value| {
        let mut task = with("method", json!({"best_of_n": {"samples": 4, "by": "reward"}}));
        task["scorer"] = scorer;
        task
    };
    let desk = Desk::new();
    let task = desk.load(&by_reward(json!("models/reward"))).unwrap();
    let folder = Some(desk.folder.path().join("models/reward"));
    assert_eq!((task.scorer.model, task.scorer.form, task.scorer.on_error), (folder.clone(), None, Default::default()));
    assert_eq!(task.method.reward_key(), Some("by"));
    let whole = json!({
        "model": "models/reward", "form": "step-tag", "question": "Of {{question}}", "on_error": "fail"
    });
    let task = desk.load(&by_reward(whole)).unwrap();
    assert_eq!((&task.scorer.model, task.scorer.on_error), (&folder, OnScorerError::Fail));
    assert_eq!(task.scorer.form, Some(FormChoice::Named("step-tag".to_owned())));
    let mut item = task.items(None).unwrap().remove(0);
    item.fields.insert("question".into(), json!("How many?"));
    let levels = || TaskPrompt::Levels(vec!["Shots.".to_owned(), "The item's own.".to_owned()]);
    assert_eq!(task.scorer.question(&item, levels()).unwrap(), [Message::user("Of How many?")]);
    let own = ScoreForm::built_in("separator").unwrap();
    let task = desk.load(&by_reward(json!({"form": serde_json::to_value(&own).unwrap()}))).unwrap();
    assert_eq!(task.scorer.form, Some(FormChoice::Own(Box::new(own))));
    refused(&by_reward(json!({"form": {"aggregate": "last"}})), &["`scorer.form`", "a form of a scorer", "`text`"]);
    let task = desk.load(&by_reward(json!({}))).unwrap();
    assert_eq!(task.scorer.question(&item, levels()).unwrap(), [Message::user("The item's own.")]);
    refused(&by_reward(json!({"form": "no-such"})), &["`scorer.form`", "expected \"last-token\"", "found \"no-such\""]);
    let mut deep = serde_json::to_value(ScoreForm::built_in("separator").unwrap()).unwrap();
    deep["text"]["plain"]["read"] = json!("tags");
    refused(&by_reward(json!({"form": deep})), &["`scorer.form`", "`text.plain.read.tags`", "missing field `tag`"]);
    refused(&by_reward(json!({"on_error": "stop"})), &["`scorer.on_error`", "`fail`"]);
    refused(&by_reward(json!({"question": "{{"})), &["`scorer.question`", "a template"]);
    refused(&by_reward(json!({"folder": "x"})), &["`scorer.folder`", "`model`"]);
}

#[test]
fn methods_ask_for_rewards() {
    let of = |method: Value| {
        let mut task = with("method", method);
        task["answer"] = json!({"regex": "(.*)"});
        task
    };
    let key = |method: Value| Desk::new().load(&of(method)).unwrap().method.reward_key();
    let steps = |name: &str| key(json!({name: {"samples": 4, "scorer": "reward"}}));
    for name in ["step_beam", "dvts", "mcts", "particle_filtering"] {
        assert_eq!(steps(name), Some("scorer"), "{name}");
    }
    assert_eq!(key(json!({"step_beam": {"samples": 4, "scorer": "mean_logprob"}})), None);
    assert_eq!(key(json!({"self_consistency": {"samples": 4, "weigh_by": "reward"}})), Some("weigh_by"));
    let tot = json!({"generate": {"sample": {}}, "evaluate": "reward"});
    assert_eq!(key(json!({ "tree_of_thought": tot })), Some("evaluate"));

    let best = |more: Value| {
        let mut settings = json!({"samples": 4, "by": "reward"});
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        of(json!({ "best_of_n": settings }))
    };
    let task = Desk::new().load(&best(json!({"delimiter": "\n\n", "aggregate": "min", "min_finished": 3}))).unwrap();
    let scoring = RewardScoring { delimiter: "\n\n".to_owned(), aggregate: Some(Aggregate::Min) };
    assert_eq!(task.method.reward_of_samples(), Some(&scoring));
    assert!(task.method.group_end().is_some() && !task.method.draws_all());
    refused(&best(json!({"stop_when_passed": true})), &["method.best_of_n.by", "without `stop_when_passed`"]);
    refused(&best(json!({"by": "logprob", "aggregate": "min"})), &["method.best_of_n.aggregate", "`by`", "`reward`"]);
    let vote = |more: Value| {
        let mut settings = json!({"samples": 4});
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        of(json!({ "self_consistency": settings }))
    };
    let decided = vote(json!({"weigh_by": "reward", "stop_when_decided": true}));
    refused(&decided, &["method.self_consistency.stop_when_decided", "weigh the votes"]);
    refused(&vote(json!({"delimiter": "\n"})), &["method.self_consistency.delimiter", "`weigh_by`"]);

    let leaves = |scorer: &str| of(json!({"mcts": {"samples": 4, "scorer": scorer, "value": "leaf"}}));
    let task = Desk::new().load(&leaves("reward")).unwrap();
    let Method::Mcts { search, .. } = &task.method else { panic!("{:?}", task.method) };
    assert_eq!(search.scoring, RolloutScoring::Leaf);
    refused(&leaves("agreement"), &["method.mcts.value", "rollout"]);
}

#[test]
fn a_step_may_be_a_number_of_tokens() {
    for name in ["step_beam", "dvts", "mcts", "particle_filtering", "particle_gibbs"] {
        let of = |more: Value| {
            let mut settings = json!({"samples": 4, "scorer": "mean_logprob"});
            settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            with("method", json!({ name: settings }))
        };
        let task = Desk::new().load(&of(json!({"step_tokens": 64, "by": "best"}))).unwrap();
        let steps = match &task.method {
            Method::StepBeam { search, .. } | Method::Dvts { search, .. } => &search.steps,
            Method::Particles { search, .. } => &search.steps,
            Method::Mcts { search, .. } => &search.steps,
            other => panic!("{other:?}"),
        };
        assert_eq!(steps.end, StepEnd::Tokens(NonZeroUsize::new(64).expect("64")));
        refused(&of(json!({"step_tokens": 0})), &[&format!("method.{name}.step_tokens"), "at least 1"]);
        let both = of(json!({"step_tokens": 64, "delimiter": "\n"}));
        refused(&both, &[&format!("method.{name}.step_tokens"), "`delimiter`"]);
    }
}
