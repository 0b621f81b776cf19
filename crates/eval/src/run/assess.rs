//! Assesses the samples of a run: by the task's answer patterns and graders; if samples are programs, by running them
//! (`judging`); and by a judge, which is a model, where the task's `grade` asks one (`verdict_queue`).

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use crate::judged::lacks_grade;
use crate::task::candidate::ItemTests;
use crate::task::{EarlyStop, Item, Task, TaskPrompt};
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;
use offshoot_core::json;
use offshoot_core::out;
use offshoot_judge::language::Language;
use offshoot_judge::problem::TestSuite;
use offshoot_judge::{Judge, JudgeSetup};
use offshoot_search::{Assessment, Assessor, Outcome, Sample};
use offshoot_text::Message;
use offshoot_verdict::Ask;

use super::judge::verdicts_on;
use super::judging::{JudgePool, JudgeQueue};
use super::outcome::Finished;
use super::verdict_queue::VerdictQueue;

/// The judge of a run that samples programs, which runs them.
pub struct RunJudge {
    judge: Arc<Judge>,
    pool: JudgePool,
}

impl RunJudge {
    /// Opens the judge; `None` if the task needs none. A missing sandbox, interpreter or compiler is an error here,
    /// before anything is sampled.
    /// `withheld`: folders that no candidate may read, in addition to the items.
    pub fn open(
        task: &Task,
        items: &[Item],
        setup: &JudgeSetup,
        withheld: &[PathBuf],
        judges: Option<usize>,
    ) -> Result<Option<RunJudge>> {
        if !task.is_judged() {
            return Ok(None);
        }
        let judge = Judge::open(setup, &[withheld, &[task.items_path().to_path_buf()]].concat())?;
        let tests = || items.iter().filter_map(Item::tests);
        if tests()
            .any(|tests| tests.language == Language::Python || !matches!(tests.problem.suite, TestSuite::Streams(_)))
        {
            judge.interpreter()?;
        }
        if tests().any(|tests| tests.language == Language::Cpp) {
            judge.compiler()?;
        }
        let in_python = tests().filter(|tests| tests.language == Language::Python);
        for module in judge.lacking(&mut in_python.map(|tests| &tests.problem))? {
            out::aside(format_args!("warning: {module}"));
        }
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let pool = JudgePool::new(judges.unwrap_or_else(cores))?;
        Ok(Some(RunJudge { judge: Arc::new(judge), pool }))
    }

    /// A queue that judges texts by `tests`; `grade` finds their answers.
    fn queue<'a>(&'a self, grade: &'a dyn Fn(&str) -> Assessment, tests: &Arc<ItemTests>) -> JudgeQueue<'a> {
        let (judge, tests) = (self.judge.clone(), tests.clone());
        JudgeQueue::new(grade, &self.pool, move |text| {
            judge.judge_program(&tests.problem, &tests.language, &tests.program(text))
        })
    }
}

/// Assesses a text by the task's own patterns and graders.
pub fn grade(task: &Task, item: &Item, text: &str) -> Assessment {
    let answer = task.answer(text);
    let correct = task.grade(item, text, answer.as_ref());
    Assessment::graded(answer.map(|answer| answer.value), correct)
}

/// What grades samples beside the task's own patterns and graders.
#[derive(Clone, Copy, Default)]
pub struct Graders<'a> {
    /// Runs samples that are programs.
    pub programs: Option<&'a RunJudge>,
    /// The model that is asked where the task's `grade` has a verdict.
    pub judge: Option<&'a Arc<dyn Ask>>,
}

impl<'a> Graders<'a> {
    /// The assessor of the samples of `item`; `grade` finds their answers.
    pub fn assessor(self, task: &Task, item: &Item, grade: &'a dyn Fn(&str) -> Assessment) -> Result<Assessor<'a>> {
        match (self.programs, item.tests(), self.judge, task.graded_by_judge()) {
            (Some(programs), Some(tests), ..) => Ok(Assessor::new(programs.queue(grade, tests))),
            (.., Some(judge), Some(by)) => Ok(Assessor::new(VerdictQueue {
                grade,
                verdicts: verdicts_on(task, item, &by.verdict, judge)?,
                right_from: by.right_from,
                on_error: task.judge.on_error,
                // Where one that passes ends the others, those that count are known with their grades alone.
                records_first: task.method.spares() != Some(EarlyStop::Passed),
            })),
            _ => Ok(Assessor::new(grade)),
        }
    }

    /// Grades those of an item's recorded samples that have no grade by the judge, and hands each to `record` as it has
    /// its own. `check_interrupted` is called between waits; its error ends them.
    pub fn grade_again(
        self,
        task: &Task,
        item: &Item,
        grade: &dyn Fn(&str) -> Assessment,
        samples: &mut [Sample],
        check_interrupted: impl Fn() -> Result<()>,
        record: impl FnMut(&Sample) -> Result<()>,
    ) -> Result<()> {
        let lacking: Vec<usize> = (0..samples.len()).filter(|&at| lacks_grade(&samples[at])).collect();
        if lacking.is_empty() || task.graded_by_judge().is_none() {
            return Ok(());
        }
        let mut assessor = self.assessor(task, item, grade)?;
        for &at in &lacking {
            assessor.begin(NodeId::new(at), &samples[at].text);
        }
        collect(samples, &mut assessor, check_interrupted, record)
    }
}

/// Waits for the assessments of `samples`, which were queued under their indices; each sample is handed to `record` as
/// it has its own. `check_interrupted` is called between waits; its error ends them.
pub fn collect(
    samples: &mut [Sample],
    assessor: &mut Assessor<'_>,
    check_interrupted: impl Fn() -> Result<()>,
    mut record: impl FnMut(&Sample) -> Result<()>,
) -> Result<()> {
    loop {
        while let Some((at, assessment)) = assessor.take() {
            put(&mut samples[at.ix()], assessment);
            record(&samples[at.ix()])?;
        }
        if !assessor.is_awaited() {
            return Ok(());
        }
        check_interrupted()?;
        assessor.wait()?;
    }
}

/// Gives a sample its assessment.
pub fn put(sample: &mut Sample, Assessment { answer, correct, detail, .. }: Assessment) {
    (sample.answer, sample.correct, sample.detail) = (answer, correct, detail);
}

/// What an item asks, for its results: its field `question`, or else the last level of its prompt or its last turn.
pub fn question_of(task: &Task, item: &Item) -> Result<String> {
    match item.fields.get("question") {
        Some(Value::String(question)) => Ok(question.clone()),
        _ => Ok(match task.prompt(item)? {
            TaskPrompt::Levels(levels) => levels.last().cloned().unwrap_or_default(),
            TaskPrompt::Chat { messages, .. } => {
                messages.last().and_then(Message::last_text).unwrap_or_default().to_owned()
            }
        }),
    }
}

/// What an item's outcome answers, for its results: the answer that was chosen, or that of the only sample; the
/// sample's text, if the task does not define answers. `None`: nothing was chosen among several samples, or there is no
/// answer.
pub fn answer_of(task: &Task, outcome: &Outcome) -> Option<String> {
    let chosen = outcome.samples.iter().find(|sample| Some(sample.index) == outcome.chosen);
    let only = || outcome.samples.first().filter(|_| outcome.samples.len() == 1);
    let of_sample = |sample: &Sample| match task.has_answers() {
        true => sample.answer.clone(),
        false => Some(sample.text.clone()),
    };
    outcome.prediction.clone().or_else(|| chosen.or_else(only).and_then(of_sample))
}

/// How many of an item's samples are right, for its results; `None`: nothing grades them.
pub fn samples_correct(item: &Item, samples: &[Sample]) -> Option<usize> {
    let is_right = |sample: &&Sample| sample.correct == Some(true);
    item.is_graded().then(|| samples.iter().filter(is_right).count())
}

/// A sample in the format of HumanEval's and EvalPlus's scorers.
#[derive(Serialize)]
struct Completion<'a> {
    task_id: &'a str,
    /// The text after the problem's prompt.
    completion: String,
    /// The complete program.
    solution: String,
}

/// The samples of judged items, one line each, in the format of the benchmarks' own scorers.
pub fn completions(items: &[Item], finished: &[Finished]) -> Result<String> {
    let mut lines = String::new();
    for done in finished {
        let item = items.iter().find(|item| item.index == done.index);
        let Some(tests) = item.and_then(Item::tests) else { continue };
        for sample in &done.outcome.samples {
            let (completion, solution) = (tests.completion(&sample.text), tests.program(&sample.text));
            let completion = Completion { task_id: &tests.problem.id, completion, solution };
            lines.push_str(&json::text("a completion", &completion)?);
            lines.push('\n');
        }
    }
    Ok(lines)
}
