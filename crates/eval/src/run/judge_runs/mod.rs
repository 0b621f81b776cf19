//! Runs whose samples a judge judges: what is asked, what is written and when, and what a later process makes of it.
//! Runs that a scripted judge scores are in `scored`, those that it grades in `graded`; `models` has the run's own
//! model, another one and servers as judges, `plans` what is said before a run.

mod graded;
mod models;
mod plans;
mod scored;

use std::sync::Arc;

use serde_json::{Value, json};

use super::drive::Scorers;
use super::judge::JudgeRecord;
use super::outcome::RunOutcome;
use super::test_task::{SAMPLES, TestTask};
use offshoot_core::error::{Error, Result};
use offshoot_verdict::{Ask, JudgeAnswer, JudgePrompt, Question, ScriptedJudge, WantedAnswer};

/// No run of these tests connects to it: a scripted judge answers.
const SERVER: &str = "http://127.0.0.1:9/v1";

impl TestTask {
    /// One process of a run into the folder `name`, whose questions `judge` answers.
    pub(super) fn judged(&self, name: &str, judge: ScriptedJudge, killed_at: Option<usize>) -> Result<RunOutcome> {
        self.judged_by(name, &(Arc::new(judge) as Arc<dyn Ask>), killed_at)
    }

    pub(super) fn judged_by(&self, name: &str, judge: &Arc<dyn Ask>, killed_at: Option<usize>) -> Result<RunOutcome> {
        let record = JudgeRecord::of_server(&**judge);
        self.run_by(name, Scorers { reward: None, judge: Some(judge) }, (None, Some(record)), killed_at)
    }

    /// A run to its end, in which no item failed.
    pub(super) fn whole(&self, name: &str, judge: ScriptedJudge) -> RunOutcome {
        let run = self.judged(name, judge, None).expect("a sound task");
        assert!(
            run.ended.is_none() && run.failed.is_empty(),
            "{:?} {:?}",
            run.ended,
            run.failed.first().map(|f| &f.error)
        );
        run
    }
}

fn task(method: Value) -> TestTask {
    TestTask::with(json!({"method": method, "judge": {"url": SERVER, "name": "scripted"}}))
}

/// What a question says.
fn text(question: &Question) -> String {
    match &question.prompt {
        JudgePrompt::Text(text) => text.clone(),
        JudgePrompt::Chat { messages, .. } => messages.iter().filter_map(|turn| turn.last_text()).collect(),
    }
}

fn share_of_vowels(text: &str) -> f64 {
    text.bytes().filter(|byte| b"aeiou".contains(byte)).count() as f64 / text.len().max(1) as f64
}

/// Answers whatever is asked by the vowels of the question: each kind of answer is a sound one.
fn vowels(question: &Question) -> Result<JudgeAnswer> {
    let share = share_of_vowels(&text(question));
    Ok(match &question.answer {
        WantedAnswer::Words(words) => {
            let rest = (1.0 - share) / (words.len() - 1) as f64;
            JudgeAnswer::Words((0..words.len()).map(|at| if at == 0 { share } else { rest }).collect())
        }
        WantedAnswer::Json { schema, .. } => {
            let wanted = |name: &str| schema.pointer(&format!("/properties/{name}")).is_some();
            let pick = 1 + (share * 1000.0) as usize % 2;
            let winner = if pick == 1 { "A" } else { "B" };
            JudgeAnswer::Json(match (wanted("score"), wanted("winner")) {
                (true, _) => json!({"reasoning": "vowels", "score": 10.0 * share}),
                (_, true) => json!({"reasoning": "vowels", "winner": winner}),
                _ => json!({"reasoning": "vowels", "selected": [pick]}),
            })
        }
    })
}

fn sleeps(_: &Question) -> Result<JudgeAnswer> {
    Err(Error::value("the judge", "an answer", "the judge is asleep"))
}

/// Each kind of verdict, as it stands at `by` of `best_of_n`.
fn verdicts() -> Vec<Value> {
    let about = "Is this right?\n{{sample}}\nAnswer:";
    let chat = json!({"chat": {"system": "You judge.", "user": "{{thoughts}} of {{pens}}"}});
    let rubric = json!([{"criterion": "Is it short?", "points": 3}, {"criterion": "Is it true?", "points": 1}]);
    vec![
        json!({"prompt": about, "words": {" yes": 1, " no": 0}}),
        json!({"prompt": chat, "score": {"high": 10}, "max_tokens": 64}),
        json!({"prompt": "{{criterion}} ({{points}}) {{sample}}", "rubric": rubric, "words": {" yes": 1, " no": 0}}),
        json!({"prompt": "{{criterion}} {{sample}}", "rubric": rubric, "score": {"low": 0, "high": 10}}),
        json!({"prompt": "A: {{first}}\nB: {{second}}", "pairs": {"words": [" A", " B"]}}),
        json!({"prompt": "A: {{first}}\nB: {{second}}", "pairs": {"winner": {}, "both_orders": false, "opponents": 2}}),
        json!({"prompt": "{% for one in samples %}{{loop.index}}: {{one}}\n{% endfor %}{{take}} of {{count}}",
            "groups": {"size": 3, "rotations": 2}}),
    ]
}

/// Methods whose whole samples a judge scores.
fn of_samples() -> Vec<Value> {
    let best = verdicts().into_iter().map(|by| json!({"best_of_n": {"samples": SAMPLES, "by": by}}));
    let votes = verdicts().into_iter().map(|by| json!({"self_consistency": {"samples": SAMPLES, "weigh_by": by}}));
    best.chain(votes).collect()
}

/// Methods in which a judge scores steps or paths.
fn of_steps() -> Vec<Value> {
    let (samples, delimiter, scorer) = (SAMPLES, " ", verdicts().remove(1));
    let words = verdicts().remove(0);
    let tot = json!({"steps": 2, "breadth": 2, "evaluate": {"judge": words}, "answer": {},
        "generate": {"sample": {"thoughts": 2, "max_tokens": 4}}});
    let search = |scorer: &Value| json!({"samples": samples, "delimiter": delimiter, "steps": 3, "scorer": scorer});
    let beam = |scorer: &Value| {
        let mut settings = search(scorer);
        settings["expansions"] = json!(2);
        settings
    };
    vec![
        json!({"step_beam": beam(&scorer)}),
        json!({"dvts": beam(&words)}),
        json!({"mcts": search(&scorer)}),
        json!({"particle_filtering": search(&words)}),
        json!({ "tree_of_thought": tot }),
    ]
}
