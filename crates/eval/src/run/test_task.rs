//! A small task for tests of runs: three items, the demo model, and whatever scores or judges its samples.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::drive::Scorers;
use super::judge::JudgeRecord;
use super::manifest::ScorerFiles;
use super::options::RunOptions;
use super::outcome::RunOutcome;
use super::prepare::PreparedRun;
use super::resume::RunFolder;
use super::tables::ResultFormat;
use super::worker::ItemRunner;
use crate::task::{AskedJudge, Overrides};
use offshoot_core::error::Result;
use offshoot_core::out::Progress;
use offshoot_judge::{Isolation, JudgeSetup};
use offshoot_launch::{DeviceChoice, EngineOptions, Launched};

/// Samples of each item, in tests that have as many.
pub const SAMPLES: usize = 4;

/// The folder of the bundled model.
pub fn demo_model() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tasks/models/demo")
}

/// A folder with a task of three items.
pub struct TestTask {
    folder: tempfile::TempDir,
}

impl TestTask {
    /// A task with this method.
    pub fn new(method: Value) -> TestTask {
        TestTask::with(json!({ "method": method }))
    }

    /// A task with these keys in addition to, or in place of, what all have.
    pub fn with(keys: Value) -> TestTask {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut task = json!({
            "name": "scored",
            "model": demo_model(),
            "items": [{"id": "a", "pens": 3}, {"id": "b", "pens": 4}, {"id": "c", "pens": 5}],
            "prompt": {"levels": ["A question.\n", "Tom has {{pens}} pens."]},
            "sampling": {"max_tokens": 12, "temperature": 1, "seed": 3},
            "answer": {"regex": "[a-z]+"},
        });
        let object = task.as_object_mut().expect("an object");
        object.extend(keys.as_object().expect("an object of keys").clone());
        let task = TestTask { folder };
        task.write(&Value::Object(object.clone()));
        task
    }

    /// The task file.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("task.json")
    }

    /// Writes the task file.
    pub fn write(&self, task: &Value) {
        fs::write(self.path(), task.to_string()).expect("the folder is writable");
    }

    /// The task file, changed by `change`.
    pub fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut task = serde_json::from_str(&fs::read_to_string(self.path()).expect("written")).expect("JSON");
        change(&mut task);
        self.write(&task);
    }

    /// The folder of the run `name`.
    pub fn out(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The options of a run into the folder `name`, which goes on if it was begun.
    pub fn options(&self, name: &str) -> RunOptions {
        let out = self.out(name);
        RunOptions {
            task: Some(self.path()),
            overrides: Overrides::default(),
            limit: None,
            format: ResultFormat::Jsonl,
            resume: out.exists(),
            out: Some(out),
            k: None,
            trees: false,
            skip_too_long: false,
            dry_run: false,
            json: false,
            asked_judge: AskedJudge::default(),
            judges: None,
            judge: JudgeSetup { isolation: Isolation::Required, python: None, helper: None },
            scorer: None,
            engine: EngineOptions { devices: DeviceChoice::Cpu.into(), ..EngineOptions::default() },
        }
    }

    /// One process of a run into the folder `name`, whose manifest names what scores and who judges. `killed_at`: it is
    /// interrupted when so many samples are written.
    pub fn run_by(
        &self,
        name: &str,
        by: Scorers<'_>,
        (scorer, judge): (Option<ScorerFiles>, Option<JudgeRecord>),
        killed_at: Option<usize>,
    ) -> Result<RunOutcome> {
        let options = self.options(name);
        let prepared = PreparedRun::new(&self.path(), &options)?;
        let place = RunFolder::find(&prepared, &options, scorer, judge)?;
        let launched = prepared.start(&options)?;
        self.process(&prepared, &options, &place, &launched, by, killed_at)
    }

    /// One process of a run into the folder `name`, which opens its own judge, as the command does.
    pub fn run_whole(&self, name: &str, asked: AskedJudge, killed_at: Option<usize>) -> Result<RunOutcome> {
        let options = RunOptions { asked_judge: asked, ..self.options(name) };
        let prepared = PreparedRun::new(&self.path(), &options)?;
        let model = prepared.judge.as_ref().expect("the task asks a judge");
        let connected = model.connect()?;
        let place = RunFolder::find(&prepared, &options, None, connected.record()?)?;
        let launched = prepared.start(&options)?;
        let judge = match prepared.asks_judge() {
            true => Some(connected.start(&prepared, &launched)?),
            false => None,
        };
        let by = Scorers { reward: None, judge: judge.as_ref() };
        self.process(&prepared, &options, &place, &launched, by, killed_at)
    }

    fn process(
        &self,
        prepared: &PreparedRun,
        options: &RunOptions,
        place: &RunFolder,
        launched: &Launched,
        by: Scorers<'_>,
        killed_at: Option<usize>,
    ) -> Result<RunOutcome> {
        let (journal, earlier) = place.open(prepared)?;
        let (progress, interrupted) = (Progress::new(3), AtomicBool::new(false));
        let runner = ItemRunner {
            prepared,
            launched,
            by,
            options,
            journal: Some(&journal),
            progress: &progress,
            interrupted: &interrupted,
        };
        let run = std::thread::scope(|scope| {
            scope.spawn(|| {
                let Some(killed_at) = killed_at else { return };
                while lines(&place.path().join("samples.jsonl")).len() < killed_at {
                    std::thread::yield_now();
                }
                interrupted.store(true, Ordering::Relaxed);
            });
            runner.work(earlier)
        })?;
        // A killed process sorts nothing.
        if run.ended.is_none() {
            journal.finish()?;
        }
        Ok(run)
    }

    /// The samples and the items of the run `name`, as they are on disk.
    pub fn files(&self, name: &str) -> [String; 2] {
        ["samples.jsonl", "items.jsonl"].map(|file| fs::read_to_string(self.out(name).join(file)).expect("written"))
    }

    /// The lines of samples of the run `name`.
    pub fn samples(&self, name: &str) -> Vec<Value> {
        lines(&self.out(name).join("samples.jsonl"))
    }

    /// The lines of items of the run `name`.
    pub fn items(&self, name: &str) -> Vec<Value> {
        lines(&self.out(name).join("items.jsonl"))
    }
}

/// The whole lines of a file, which may not be there.
pub fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}
