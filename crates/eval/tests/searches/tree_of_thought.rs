//! Tree of thoughts on a scripted engine: which thoughts grow, how they are judged, merged, kept and given back, and
//! how a search ends; and on the bundled model: what it shares, and that its uniforms are its own.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use offshoot_core::dice::Dice;
use offshoot_core::mix::fnv1a;
use offshoot_core::{Error, Result};
use offshoot_engine::scripted::{text_of, tokens_of};
use offshoot_engine::{Continuation, EngineHandle, ForkKind, SamplingParams, ScriptedCall, ScriptedReply, Stop};
use offshoot_eval::task::tree_of_thought::ItemTexts;
use offshoot_eval::task::{Item, Method, Overrides, Task, TaskPrompt};
use offshoot_search::tree::{NodeState, Prompt, SamplingTree};
use offshoot_search::{Assessment, Assessor, Outcome, Sample, tree_of_thought};
use offshoot_text::{AddSpecial, SharedEncoder};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::job;
use job::Order;

/// A task with these settings and items with these ids; its questions name the path, its words are worth 1 and 0.
fn task(settings: &Value, ids: &[String]) -> Result<Task> {
    let mut method = json!({
        "generate": {"propose": {"prompt": "P:{{ thoughts | join('/') }}>"}},
        "evaluate": {"value": {"prompt": "V:{{ thoughts | join('/') }}>", "words": {"yes": 1, "no": 0}, "exact": true}},
        "answer": {},
    });
    for (key, value) in settings.as_object().expect("settings are an object") {
        method[key] = value.clone();
    }
    let items: Vec<Value> = ids.iter().map(|id| json!({ "id": id })).collect();
    let file = json!({
        "items": items, "prompt": "Q:", "method": {"tree_of_thought": method}, "answer": {"regex": "Answer: (.*)"},
        "grade": {"regex": {"pattern": "Answer: win"}},
    });
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("task.json");
    std::fs::write(&path, file.to_string()).expect("written");
    Task::load(&path, &Overrides::default())
}

#[test]
fn a_search_is_described_by_what_it_draws() {
    let described = |settings: Value| task(&settings, &["item".to_string()]).expect("a good task").method.described();
    let sampled = json!({"steps": 1, "breadth": 1, "generate": {"sample": {"thoughts": 8}}});
    assert_eq!(described(sampled), "tree_of_thought with breadth 1 x 8 thoughts, 1 step");
    let proposed = json!({"steps": 3, "breadth": 5});
    assert_eq!(described(proposed), "tree_of_thought with breadth 5 x 1 list of thoughts, 3 steps");
}

/// The path that a question names.
fn path_in(question: &str) -> &str {
    &question[2..question.find('>').expect("questions end with it")]
}

/// The probability of `yes` to a question, for the two words.
fn scored(call: &ScriptedCall<'_>, yes: f64) -> ScriptedReply {
    let Continuation::Given { tokens, .. } = call.continuation else { panic!("verdicts are given") };
    let chance = if text_of(tokens) == "yes" { yes } else { 1.0 - yes };
    let mut logprobs = vec![0.0; tokens.len()];
    logprobs[0] = chance.ln() as f32;
    ScriptedReply::scores(logprobs)
}

/// An engine on which `next` lists what can follow a path, `value` is the probability that it is worth something, and
/// the answer is `win` after a thought with a `!`.
fn world(
    next: impl Fn(&str) -> String + Send + 'static,
    value: impl Fn(&str) -> f64 + Send + 'static,
) -> impl FnMut(&ScriptedCall<'_>) -> ScriptedReply + Send + 'static {
    move |call| {
        let text = call.text();
        match &text[..2] {
            "P:" => ScriptedReply::text(&next(path_in(&text))),
            "V:" => scored(call, value(path_in(&text))),
            _ => ScriptedReply::text(if text.contains('!') { "Answer: win" } else { "Answer: lose" }),
        }
    }
}

/// Searches the item on `engine`; the tree is left as the search left it.
fn search(task: &Task, item: &Item, engine: EngineHandle, interrupted: bool) -> (Result<Outcome>, SamplingTree) {
    let Method::TreeOfThought(how) = &task.method else { panic!("{:?}", task.method) };
    let mut tree = job::tree_on(engine, "Q:").named(&item.id);
    let render = |prompt: &TaskPrompt| match prompt {
        TaskPrompt::Levels(levels) => Ok(job::prompt_of(&levels.concat())),
        TaskPrompt::Chat { .. } => panic!("no chat here"),
    };
    let continuation = |text: &str| Ok(tokens_of(text));
    let assess = |text: &str| {
        let answer = task.answer(text);
        let correct = task.grade(item, text, answer.as_ref());
        Assessment::graded(answer.map(|answer| answer.value), correct)
    };
    let mut recorded = Vec::new();
    let mut record = |sample: &Sample| {
        recorded.push(sample.index);
        Ok(())
    };
    let order = Order { interrupted: AtomicBool::new(interrupted), ..Order::default() };
    let mut job = order.job(Assessor::new(assess), &mut record);
    let texts = ItemTexts { how, item, render: &render, continuation: &continuation };
    let outcome = tree_of_thought(&mut tree, &how.settings, &texts, None, &mut job);
    drop(job);
    if let Ok(outcome) = &outcome {
        assert_eq!(recorded, outcome.samples.iter().map(|sample| sample.index).collect::<Vec<_>>());
    }
    (outcome, tree)
}

fn solve(
    settings: Value,
    script: impl FnMut(&ScriptedCall<'_>) -> ScriptedReply + Send + 'static,
) -> (Outcome, SamplingTree) {
    let task = task(&settings, &["item".to_string()]).expect("a good task");
    let item = task.items(None).expect("one item").remove(0);
    let (outcome, tree) = search(&task, &item, EngineHandle::scripted(script), false);
    let outcome = outcome.expect("nothing fails");
    for at in tree.nodes() {
        assert!(tree.node(at).state() != NodeState::Open, "{:?} is given back", tree.node(at));
    }
    (outcome, tree)
}

/// The thoughts of the tree with their scores (to 6 digits) and whether they were pruned, in the order of their making.
fn thoughts(tree: &SamplingTree) -> Vec<(String, Option<f64>, bool)> {
    let of_path = |at: &_| tree.node(*at).kind == ForkKind::Sample && tree.parent(*at).is_some();
    let score = |at| tree.node(at).score.map(|score: f64| (score * 1e6).round() / 1e6);
    let shown = |at| (tree.path_text(at).replace('\n', "/"), score(at), tree.node(at).state() == NodeState::Pruned);
    tree.nodes().filter(of_path).map(shown).collect()
}

fn thought(text: &str, score: f64, pruned: bool) -> (String, Option<f64>, bool) {
    (text.to_string(), Some(score), pruned)
}

fn questions(tree: &SamplingTree, kind: ForkKind) -> Vec<String> {
    tree.nodes()
        .map(|at| tree.node(at))
        .filter(|node| node.asks && node.kind == kind)
        .map(|node| node.text.clone())
        .collect()
}

#[test]
fn the_best_go_on_and_the_others_are_given_back() {
    let value = |path: &str| match path {
        "a" => 0.25,
        "b" => 0.75,
        "c" => 0.5,
        "b/x!" => 0.125,
        "b/y" => 0.5,
        "c/x!" => 1.0,
        _ => 0.0,
    };
    let next = |path: &str| if path.is_empty() { "a\nb\nc\n".to_string() } else { "x!\ny".to_string() };
    let (outcome, tree) = solve(json!({"steps": 2, "breadth": 2}), world(next, value));
    let expected = [
        thought("a/", 0.25, true),
        thought("b/", 0.75, false),
        thought("c/", 0.5, false),
        thought("b/x!/", 0.125, true),
        thought("b/y/", 0.5, false),
        thought("c/x!/", 1.0, false),
        thought("c/y/", 0.0, true),
    ];
    assert_eq!(thoughts(&tree)[..7], expected);
    let texts: Vec<&str> = outcome.samples.iter().map(|sample| sample.text.as_str()).collect();
    assert_eq!(texts, ["c\nx!\nAnswer: win", "b\ny\nAnswer: lose"], "the best first");
    assert_eq!((outcome.chosen, outcome.prediction.as_deref(), outcome.correct), (Some(0), Some("win"), Some(true)));
    assert_eq!(
        questions(&tree, ForkKind::Propose),
        ["P:>", "P:b>", "P:c>"],
        "a pruned thought is not asked about again"
    );
}

#[test]
fn a_branch_that_fails_takes_its_thought_alone() {
    let next = |path: &str| if path.is_empty() { "a\nb\nc\n".to_string() } else { "x!\ny".to_string() };
    let value = |path: &str| if path == "a" || path.ends_with('!') { 1.0 } else { 0.5 };
    // The list of what follows the best thought, and one of two answers.
    for (failing, texts) in
        [("P:a>", &["b\nx!\nAnswer: win", "b\ny\nAnswer: lose"][..]), ("Q:b\nx!\n", &["a\nx!\nAnswer: win"][..])]
    {
        let mut world = world(next, value);
        let script = move |call: &ScriptedCall<'_>| {
            let reply = world(call);
            if call.text() == failing { reply.failing() } else { reply }
        };
        let (outcome, mut tree) = solve(json!({"steps": 2, "breadth": 2}), script);
        assert_eq!(outcome.samples.iter().map(|sample| sample.text.as_str()).collect::<Vec<_>>(), texts, "{failing}");
        assert_eq!(tree.take_failures().len(), 1);
    }
}

#[test]
fn what_a_search_spends_is_counted_whole() {
    let (outcome, _) = solve(json!({"steps": 1, "breadth": 1}), world(|_| "a!".to_string(), |_| 1.0));
    assert_eq!(outcome.samples[0].tokens, "Answer: win".len());
    assert_eq!(outcome.search_tokens, "a!".len(), "the list");
    let given = ["P:>", "a!\n", "V:a!>", "yes", "no"];
    assert_eq!(outcome.search_prompt_tokens, given.concat().len());
}

/// `a` looks best and leads nowhere; `b` is the way.
fn detour() -> impl FnMut(&ScriptedCall<'_>) -> ScriptedReply + Send + 'static {
    let value = |path: &str| match path {
        "a" => 0.75,
        "b" => 0.5,
        "b/b!" => 1.0,
        _ => 0.125,
    };
    world(|path| if path == "b" { "a\nb!".to_string() } else { "a\nb".to_string() }, value)
}

#[test]
fn depth_first_goes_back_where_greedy_is_lost() {
    let (greedy, _) = solve(json!({"steps": 2, "breadth": 1}), detour());
    assert_eq!((greedy.samples[0].text.as_str(), greedy.correct), ("a\na\nAnswer: lose", Some(false)));

    let dfs = |visits| json!({"steps": 2, "search": {"dfs": {"threshold": 0.5, "visits": visits}}});
    let (found, tree) = solve(dfs(9), detour());
    assert_eq!((found.samples[0].text.as_str(), found.correct), ("b\nb!\nAnswer: win", Some(true)));
    assert_eq!(questions(&tree, ForkKind::Propose), ["P:>", "P:a>", "P:b>"]);
    assert_eq!(thoughts(&tree)[0], thought("a/", 0.75, true), "what it went back from is pruned");
    let (short, _) = solve(dfs(2), detour());
    assert_eq!(short.samples[0].text, "b\nAnswer: lose", "after two visits: what it would have tried next");
}

#[test]
fn depth_first_ends_with_the_furthest_where_nothing_is_good() {
    let value = |path: &str| if path.len() == 3 { 0.0 } else { 1.0 };
    let settings = json!({"steps": 3, "search": {"dfs": {"threshold": 0.5, "visits": 50}}});
    let (outcome, _) = solve(settings, world(|_| "a\nb".to_string(), value));
    assert_eq!(outcome.samples.len(), 1);
    assert_eq!(outcome.samples[0].text, "a\nAnswer: lose");
}

#[test]
fn depth_first_tries_a_state_once() {
    // Every path comes to the same two states, and none of them to an end.
    let settings = json!({"steps": 9, "state": "{{ last }}", "search": {"dfs": {"threshold": 0.5, "visits": 99}}});
    let (_, tree) = solve(settings, world(|_| "a\nb".to_string(), |_| 1.0));
    assert_eq!(questions(&tree, ForkKind::Propose), ["P:>", "P:a>", "P:b>"]);
}

#[test]
fn equal_thoughts_are_one_and_none_is_worth_nothing_for_it() {
    let (outcome, tree) =
        solve(json!({"steps": 1, "breadth": 9}), world(|_| "a!\nb\n a! \nb\na!".to_string(), |_| 0.5));
    assert_eq!(questions(&tree, ForkKind::Value), ["V:a!>", "V:b>"]);
    assert_eq!(outcome.samples.len(), 2);
    let scores: Vec<Option<f64>> = thoughts(&tree).into_iter().take(5).map(|(_, score, _)| score).collect();
    assert_eq!(scores, [Some(0.5), Some(0.5), None, None, None]);
}

#[test]
fn paths_that_come_to_the_same_state_are_one() {
    let next = |path: &str| match path {
        "" => "1 2\n2 1\n3".to_string(),
        _ => "4".to_string(),
    };
    let state = "{{ last.split() | sort | join(' ') }}";
    let (outcome, tree) = solve(json!({"steps": 2, "breadth": 9, "state": state}), world(next, |_| 0.5));
    assert_eq!(questions(&tree, ForkKind::Propose), ["P:>", "P:1 2>", "P:3>"]);
    assert_eq!(outcome.samples.len(), 1, "all paths end with 4");
}

#[test]
fn how_often_a_thought_came_up_weighs_where_thoughts_are_drawn() {
    let ids: Vec<String> = (0..400).map(|id| id.to_string()).collect();
    let task = task(&json!({"steps": 1, "breadth": 1, "select": "sample"}), &ids).expect("a good task");
    let mut drawn = 0;
    for item in task.items(None).expect("items") {
        let engine = EngineHandle::scripted(world(
            |_| "a!\nb\na!\na!\nc".to_string(),
            |path| if path == "c" { 0.0 } else { 0.5 },
        ));
        let outcome = search(&task, &item, engine, false).0.expect("nothing fails");
        assert_ne!(outcome.samples[0].text, "c\nAnswer: lose");
        drawn += usize::from(outcome.correct == Some(true));
    }
    // Three of four; a standard deviation is 8.7 of 400.
    assert!((256..=344).contains(&drawn), "{drawn}");
}

#[test]
fn lines_that_are_no_thoughts_are_left_out() {
    let odd = "1. one\n\n   \n- two  \r\nInput: 4\n3) three! and so on\n\n\u{feff}\n";
    let settings = json!({"steps": 1, "thought": r"^(?:\d+[.)]|-)\s*(\w+!?)"});
    let (_, tree) = solve(settings, world(move |_| odd.to_string(), |_| 0.5));
    assert_eq!(questions(&tree, ForkKind::Value), ["V:one>", "V:two>", "V:three!>"]);
}

#[test]
fn without_a_thought_the_prompt_itself_is_answered() {
    let (outcome, _) = solve(json!({}), world(|_| "\n \n".to_string(), |_| 0.5));
    assert_eq!((outcome.samples.len(), outcome.samples[0].text.as_str()), (1, "Answer: lose"));
    let (outcome, _) = solve(json!({"answer": null}), world(|_| String::new(), |_| 0.5));
    assert_eq!((outcome.samples.len(), outcome.chosen, outcome.correct), (0, None, Some(false)));
}

#[test]
fn a_path_may_end_early() {
    let next = |path: &str| if path.is_empty() { "end!\ngo".to_string() } else { "on".to_string() };
    let (outcome, tree) = solve(json!({"steps": 3, "end": "^end"}), world(next, |_| 0.5));
    assert_eq!(questions(&tree, ForkKind::Propose), ["P:>", "P:go>", "P:go/on>"]);
    let texts: Vec<&str> = outcome.samples.iter().map(|sample| sample.text.as_str()).collect();
    assert_eq!(texts, ["end!\nAnswer: win", "go\non\non\nAnswer: lose"]);
}

#[test]
fn sampled_thoughts_go_on_from_their_own_tokens() {
    let asked = std::sync::Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let script = move |call: &ScriptedCall<'_>| {
        let text = call.text();
        if text.starts_with("V:") {
            return scored(call, if path_in(&text).ends_with('b') { 1.0 } else { 0.5 });
        }
        let mut seen = seen.lock().expect("no panic before");
        seen.push(text);
        let reply = ScriptedReply::text(["a\n", "b\n", "b\n", "b"][(seen.len() - 1) % 4]);
        reply.reason(offshoot_engine::FinishReason::StopString("\n".to_string()))
    };
    let settings = json!({"steps": 2, "breadth": 1, "generate": {"sample": {"thoughts": 3}}, "answer": null});
    let (outcome, tree) = solve(settings, script);
    assert_eq!(*asked.lock().expect("no panic"), ["Q:", "Q:", "Q:", "Q:b\n", "Q:b\n", "Q:b\n"]);
    assert_eq!(outcome.samples[0].text, "b\nb");
    let drawn: usize = thoughts(&tree).len() * 2 - 2;
    assert_eq!(
        outcome.search_tokens + outcome.samples[0].tokens,
        drawn + 1,
        "one of six thoughts has one token, the rest two"
    );
}

#[test]
fn a_text_that_ends_ends_its_path() {
    let script = |call: &ScriptedCall<'_>| match call.text().starts_with("V:") {
        true => scored(call, 0.5),
        false => ScriptedReply::text("done"),
    };
    let settings = json!({"steps": 5, "generate": {"sample": {"thoughts": 2}}, "answer": null});
    let (outcome, tree) = solve(settings, script);
    assert_eq!((outcome.samples.len(), outcome.samples[0].text.as_str()), (1, "done"));
    assert_eq!(thoughts(&tree).len(), 2, "nothing is drawn behind the end");
}

#[test]
fn verdicts_can_be_sampled() {
    let script = |call: &ScriptedCall<'_>| {
        let text = call.text();
        match &text[..2] {
            "P:" => ScriptedReply::text("a\nb!\nc"),
            "V:" if path_in(&text) == "a" => ScriptedReply::text("it is maybe"),
            "V:" if path_in(&text) == "b!" => ScriptedReply::text("I think:\nYES."),
            "V:" => ScriptedReply::text(["no", "yes"][(call.branch.0 % 2) as usize]),
            _ => ScriptedReply::text("Answer: win"),
        }
    };
    let value = json!({"value": {"prompt": "V:{{ last }}>", "words": {"yes": 1, "no": 0}, "samples": 4}});
    let (outcome, tree) = solve(json!({"steps": 1, "breadth": 1, "evaluate": value}), script);
    assert_eq!(outcome.samples[0].text, "b!\nAnswer: win");
    assert_eq!(thoughts(&tree)[..3], [thought("a/", 0.0, true), thought("b!/", 1.0, false), thought("c/", 0.5, true)]);
}

#[test]
fn answers_can_be_judged_by_a_question_of_their_own() {
    let script = |call: &ScriptedCall<'_>| {
        let text = call.text();
        match &text[..2] {
            "P:" => ScriptedReply::text("a\nb"),
            "V:" => scored(call, if text == "V:a>" || text == "V:Answer: of b>" { 0.75 } else { 0.25 }),
            _ => ScriptedReply::text(&format!("Answer: of {}", &text[2..3])),
        }
    };
    let value = json!({"value": {
        "prompt": "V:{{ last }}>", "last": "V:{{ answer }}>", "words": {"yes": 1, "no": 0}, "exact": true,
    }});
    let (outcome, _) = solve(json!({"steps": 1, "evaluate": value}), script);
    assert_eq!((outcome.chosen, outcome.prediction.as_deref()), (Some(1), Some("of b")));
}

#[test]
fn a_vote_chooses_among_the_thoughts_of_a_step() {
    let script = |call: &ScriptedCall<'_>| {
        let text = call.text();
        match &text[..2] {
            "P:" => ScriptedReply::text("a\nb!\nc"),
            "V:" => {
                assert_eq!(text, "V:1=a 2=b! 3=c >");
                let said = [
                    "The best choice is 2",
                    "best choice is: 1",
                    "The best choice is 7",
                    "none",
                    "The best choice is 2",
                ];
                ScriptedReply::text(said[call.branch.0 as usize % 5])
            }
            _ => ScriptedReply::text("Answer: win"),
        }
    };
    let prompt = "V:{% for choice in choices %}{{ loop.index }}={{ choice }} {% endfor %}>";
    let settings = json!({"steps": 1, "breadth": 1, "evaluate": {"vote": {"prompt": prompt, "samples": 5}}});
    let (outcome, tree) = solve(settings, script);
    assert_eq!(outcome.samples[0].text, "b!\nAnswer: win");
    assert_eq!(thoughts(&tree)[..3], [thought("a/", 0.2, true), thought("b!/", 0.4, false), thought("c/", 0.0, true)]);
}

#[test]
fn an_interrupt_ends_the_search() {
    let task = task(&json!({}), &["item".to_string()]).expect("a good task");
    let item = task.items(None).expect("one item").remove(0);
    let script = |_: &ScriptedCall<'_>| ScriptedReply::text("never").until_cancelled();
    let (outcome, _) = search(&task, &item, EngineHandle::scripted(script), true);
    assert!(matches!(outcome, Err(Error::Interrupted)));
}

#[test]
fn mistakes_in_the_settings_are_named() {
    let value = |change: Value| {
        let mut value = json!({"prompt": "x", "words": {"yes": 1}});
        value.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        json!({"evaluate": {"value": value}})
    };
    let at = "method.tree_of_thought";
    for (settings, parts) in [
        (json!({"steps": 0}), vec![".steps", "at least 1", "found 0"]),
        (json!({"width": 3}), vec![".width", "unknown key"]),
        (json!({"generate": {}}), vec![".generate", "exactly one of `propose`, `sample`"]),
        (json!({"generate": {"propose": {}}}), vec![".generate.propose.prompt", "a prompt"]),
        (json!({"generate": {"sample": {"stop": ""}}}), vec![".generate.sample.stop", "not empty"]),
        (json!({"thought": "("}), vec![".thought", "("]),
        (json!({"extract": {"last": "x"}}), vec![".extract.last", "taken"]),
        (json!({"extract": {"left": 3}}), vec![".extract", "regexes"]),
        (json!({"select": "best"}), vec![".select", "`greedy` or `sample`"]),
        (json!({"search": {"dfs": {"visits": 3}}}), vec![".search.dfs.threshold"]),
        (json!({"search": "astar"}), vec![".search", "\"astar\""]),
        (value(json!({"words": {"sure": -1}})), vec![".evaluate.value.words", "from 0 up"]),
        (value(json!({"exact": true, "samples": 3})), vec![".evaluate.value.samples", "`exact`"]),
        (json!({"state": "{{ 1 +"}), vec![".state", "a template"]),
    ] {
        let error = task(&settings, &["item".to_string()]).expect_err("refused").to_string();
        assert!(error.contains(at) && parts.iter().all(|part| error.contains(part)), "{error}");
    }
    let lacking = task(&json!({"state": "{{ puzzle }}"}), &["7".to_string()]).expect("found later");
    let item = lacking.items(None).expect("one item").remove(0);
    let error = lacking.method.check_item(&item).expect_err("the item has no such field").to_string();
    assert!(error.contains(&format!("{at}.state")) && error.contains("`puzzle`") && error.contains("`7`"), "{error}");
}

/// All paths of `steps` thoughts in a world of lists.
fn can_win(lists: &dyn Fn(&str) -> Vec<String>, path: &str, steps: usize) -> bool {
    if steps == 0 {
        return path.contains('!');
    }
    lists(path)
        .iter()
        .any(|next| can_win(lists, &format!("{path}{}{next}", if path.is_empty() { "" } else { "/" }), steps - 1))
}

/// What follows a path: made up from the path and a seed, the same each time.
fn made_up(seed: u64, path: &str) -> Vec<String> {
    let mut dice = Dice::new(seed ^ fnv1a(path.as_bytes()));
    let count = dice.below(4);
    let mut mark = || if dice.one_in(8) { "!" } else { "" };
    ["a", "b", "c"].into_iter().take(count).map(|letter| format!("{letter}{}", mark())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With perfect values, however few go on, a way is found where the proposals hold one.
    #[test]
    fn with_perfect_values_a_way_is_found_if_there_is_one(
        seed: u64, breadth in 1usize..4, steps in 1usize..4, deep: bool
    ) {
        let next = move |path: &str| made_up(seed, path).join("\n");
        let left = move |path: &str| steps - if path.is_empty() { 0 } else { path.matches('/').count() + 1 };
        let value = move |path: &str| f64::from(u8::from(can_win(&|path| made_up(seed, path), path, left(path))));
        let search = if deep { json!({"dfs": {"threshold": 0.5, "visits": 99}}) } else { json!("bfs") };
        let (outcome, _) = solve(json!({"steps": steps, "breadth": breadth, "search": search}), world(next, value));
        let there_is = can_win(&|path| made_up(seed, path), "", steps);
        let whole = outcome.samples.first().is_some_and(|sample| sample.text.lines().count() == steps + 1);
        prop_assert_eq!(whole && outcome.correct == Some(true), there_is);
    }
}

/// The bundled puzzles on the bundled model, `at_once` of them; each one's outcome, and what the engine counted.
fn bundled(at_once: usize) -> (Vec<Outcome>, offshoot_engine::Metrics) {
    let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks");
    let (engine, tokenizer) = offshoot_launch::open(&folder.join("models/demo")).expect("the bundled model");
    let set = vec!["method.tree_of_thought.breadth=2".to_string()];
    let task = Task::load(&folder.join("make24-tot.json"), &Overrides { set, ..Overrides::default() }).expect("a task");
    let Method::TreeOfThought(how) = &task.method else { panic!("{:?}", task.method) };
    let solve = |item: &Item| {
        let render = |prompt: &TaskPrompt| {
            Ok(Prompt {
                text: prompt.text(&tokenizer)?,
                tokens: prompt.encode(&mut SharedEncoder::new(&tokenizer))?.tokens,
            })
        };
        let continuation = |text: &str| tokenizer.encode(text, AddSpecial::No);
        let mut tree = SamplingTree::new(engine.clone(), render(&task.prompt(item)?)?)?.seed(1).named(&item.id);
        let assess = |_: &str| Assessment::default();
        let params = SamplingParams { temperature: 0.8, ..SamplingParams::default() };
        let order = Order { params, stop: Stop::max_tokens(120), ..Order::default() };
        let mut record = |_: &Sample| Ok(());
        let mut job = order.job(Assessor::new(assess), &mut record);
        let texts = ItemTexts { how, item, render: &render, continuation: &continuation };
        let outcome = tree_of_thought(&mut tree, &how.settings, &texts, None, &mut job)?;
        let open = tree.nodes().filter(|&at| tree.node(at).state() == NodeState::Open).count();
        assert_eq!(open, 0, "every branch is given back");
        Ok(outcome)
    };
    let items = task.items(Some(4)).expect("items");
    let mut outcomes = Vec::new();
    for items in items.chunks(at_once) {
        outcomes.extend(std::thread::scope(|scope| {
            let running: Vec<_> = items.iter().map(|item| scope.spawn(|| solve(item))).collect();
            running
                .into_iter()
                .map(|one| one.join().expect("no panic"))
                .collect::<Result<Vec<_>>>()
                .expect("no failure")
        }));
    }
    let metrics = engine.metrics().expect("it lives");
    (outcomes, metrics)
}

#[test]
fn coins_are_the_searchs_own_and_prompts_are_computed_once() {
    let (alone, metrics) = bundled(1);
    let (together, _) = bundled(4);
    let shown = |outcomes: &[Outcome]| {
        let one = |outcome: &Outcome| {
            let logprobs: Vec<u64> = outcome.samples.iter().map(|sample| sample.logprob.to_bits()).collect();
            (
                outcome.samples.iter().map(|sample| sample.text.clone()).collect::<Vec<_>>(),
                logprobs,
                outcome.search_tokens,
            )
        };
        outcomes.iter().map(one).collect::<Vec<_>>()
    };
    assert_eq!(shown(&alone), shown(&together), "whatever else is in the batch");
    assert_eq!(metrics.kv_bytes_held, 0, "no page is held");
    // Three shared prompts of about 400 tokens; of each question only its end is its own.
    let asked: usize = alone.iter().map(|outcome| outcome.search_prompt_tokens).sum();
    assert!(asked > 20_000, "{asked} tokens of questions");
    assert!(metrics.prompt_tokens_computed < 3_000, "{} tokens computed", metrics.prompt_tokens_computed);
}
