//! A judge beside a generator: a second generator with an engine, a tokenizer and forms of its own.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use offshoot_core::Error;
use offshoot_engine::{Event, Extend, SamplingParams, Stop, UniformKey};
use offshoot_form::{Form, SampleForm};
use offshoot_launch::{
    AdapterLimits, Demand, DeviceChoice, Devices, EngineOptions, JudgeFolderOptions, Launched, LaunchedJudge,
    ModelSource, PrefixFolder, ScorerOptions, SecondFolder, SecondKind, SecondSizes,
};
use offshoot_model::ModelFolder;
use offshoot_text::AddSpecial;
use serde_json::json;

use crate::folders::{demo, generator, scorer};
use crate::{MIB, launched, options, pool_bytes, refused, samples};

/// A judge for a place beside a model.
fn judge(path: &Path, memory: Option<f64>) -> Result<SecondFolder, Error> {
    let options = JudgeFolderOptions { memory, ..JudgeFolderOptions::new(path) };
    Ok(SecondFolder::Judge(Arc::new(options.open()?)))
}

/// What the pair's judge samples behind a question, in this form.
fn answer(judge: &LaunchedJudge, question: &str, form: Form) -> String {
    let params = SamplingParams { temperature: 0.0, form: Some(SampleForm::from(form)), ..SamplingParams::default() };
    let root = judge.engine.root(judge.tokenizer.encode(question, AddSpecial::Yes).unwrap()).unwrap();
    let branch = judge.engine.fork(root, 1).unwrap()[0];
    let extend = Extend::sampled(branch, &params, &Stop::max_tokens(40), UniformKey::root(0, "judge"));
    let mut events = judge.engine.start(vec![extend]).unwrap();
    let finish = std::iter::from_fn(|| events.next()).find_map(|event| match event {
        Event::Finished { finish, .. } => Some(finish),
        _ => None,
    });
    let finish = finish.expect("it ends");
    finish.text
}

/// The sums of the log-probabilities of these continuations of a question, as bits.
fn words(engine: &offshoot_engine::EngineHandle, judge: &LaunchedJudge, question: &str, words: &[&str]) -> Vec<u64> {
    let encode = |text: &str, special| judge.tokenizer.encode(text, special).unwrap();
    let root = engine.root(encode(question, AddSpecial::Yes)).unwrap();
    let branches = engine.fork(root, words.len()).unwrap();
    let given = |(&branch, word): (_, &&str)| Extend::given(branch, encode(word, AddSpecial::No), Some(0));
    let extends = branches.iter().zip(words).map(given);
    let mut found = vec![None; words.len()];
    let mut events = engine.start(extends.collect()).unwrap();
    while let Some(event) = events.next() {
        let ix = branches.iter().position(|&branch| branch == event.id()).unwrap();
        if let Event::Finished { finish, .. } = event {
            found[ix] = Some(finish.logprob.to_bits());
        }
    }
    found.into_iter().map(|sum| sum.expect("every word is scored")).collect()
}

const QUESTION: &str = "Is 2 + 2 = 4 right?";

#[test]
fn a_judge_answers_beside_a_generator_as_it_does_alone_and_samples_stay_as_they_are() {
    let alone = launched(&options(Some(4 * MIB)), None).unwrap();
    let (sampled, folder) = (samples(&alone.engine), demo());
    let pair = launched(&options(Some(8 * MIB)), Some(judge(&folder, None).unwrap())).unwrap();
    let beside = pair.judge().expect("a judge was asked for");
    assert!(pair.scorer().is_none());
    assert_eq!((beside.name.as_str(), beside.digest.len()), ("demo", 64));
    let alone = options(Some(4 * MIB)).open(&folder).unwrap().0.engine;
    let said = words(&alone, beside, QUESTION, &[" yes", " no"]);
    std::thread::scope(|scope| {
        let judging = scope.spawn(|| {
            for _ in 0..3 {
                assert_eq!(words(&beside.engine, beside, QUESTION, &[" yes", " no"]), said);
                let verdict = answer(beside, QUESTION, Form::Choice(vec!["right".to_owned(), "wrong".to_owned()]));
                assert!(["right", "wrong"].contains(&verdict.as_str()), "{verdict}");
            }
        });
        for _ in 0..3 {
            assert_eq!(samples(&pair.engine), sampled);
        }
        judging.join().expect("it judges");
    });
    let schema = json!({"type": "object", "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["score"], "additionalProperties": false});
    let verdict: serde_json::Value = serde_json::from_str(&answer(beside, QUESTION, Form::Json(schema))).unwrap();
    assert!(verdict["score"].as_u64().is_some_and(|score| score <= 9), "{verdict}");
}

#[test]
fn a_judge_has_what_samples_cannot_use_as_far_as_its_questions_can() {
    let (model, second) = (generator(), generator());
    let folder = ModelFolder::open(model.path()).unwrap();
    // Keys and values of a token have one size in both.
    let of_token = 2 * 2 * 2 * 16 * 4;
    let pools = |pool: usize, tokens: usize, memory: Option<f64>| {
        let options = options(Some(pool));
        let demand = Demand::new(usize::MAX, move |_, _| tokens);
        let launch = options.launch(ModelSource::folder(&folder).unwrap(), None, demand);
        let launch = launch.beside(Some(judge(second.path(), memory).unwrap()));
        let (sizes, started) = (launch.sizes().unwrap().remove(0), launch.start().unwrap());
        let pools = (pool_bytes(&started.engine), pool_bytes(&started.judge().expect("a judge").engine));
        // What is said before anything loads is what the engines have.
        let SecondSizes { kind, sizes: of_judge } = sizes.second.expect("a judge was asked for");
        assert_eq!(kind, SecondKind::Judge);
        let whole_pages = |bytes: usize, page: usize| bytes / page * page;
        let said = (whole_pages(sizes.pool, sizes.page_bytes), whole_pages(of_judge.pool, of_judge.page_bytes));
        assert_eq!(said, pools);
        pools
    };
    // Eight questions of 256 tokens, its context.
    let useful = 8 * 256 * of_token;
    assert_eq!(pools(4 * MIB, 512, None), (512 * of_token, useful));
    let (few, rest) = pools(MIB, 512, None);
    assert!(few == 512 * of_token && rest + few <= MIB && rest + few > MIB - 2 * 16 * of_token, "{few} and {rest}");
    // Samples that can use all have an equal part, and what questions cannot use.
    let (samples, questions) = pools(MIB, usize::MAX, None);
    assert!(samples.abs_diff(questions) <= 32 * of_token, "{samples} and {questions}");
    let (samples, questions) = pools(4 * MIB, usize::MAX, None);
    assert!(questions == useful && samples >= 3 * MIB - 32 * of_token, "{samples} and {questions}");
    let (_, questions) = pools(MIB, usize::MAX, Some(0.25));
    assert!(questions <= MIB / 4 && questions > MIB / 8, "{questions}");
}

#[test]
fn judges_that_cannot_stand_there_are_refused_by_name() {
    let (sound, scorer) = (generator(), scorer());
    let folder = |path: &Path, memory| judge(path, memory).map(drop).expect_err("no judge").to_string();
    let said = folder(scorer.path(), None);
    assert!(said.contains("LlamaForSequenceClassification") && said.contains("predicts tokens"), "{said}");
    assert!(folder(Path::new("no/folder"), None).contains("no/folder"));
    for share in [0.0, 1.0, f64::NAN] {
        assert!(folder(sound.path(), Some(share)).contains("`judge_memory`"));
    }
    for devices in [Devices::Each(vec![DeviceChoice::Cpu; 2]), Devices::Ranks(vec![DeviceChoice::Cpu; 2])] {
        let said = refused(&EngineOptions { devices, ..options(None) }, judge(sound.path(), None).unwrap());
        assert!(said.contains("`devices`: expected one device, as the judge ") && said.contains("`judge`"), "{said}");
    }
    let said = refused(&options(Some(MIB)), judge(sound.path(), Some(0.000_1)).unwrap());
    assert!(said.starts_with("the judge: ") && said.contains("at least one page"), "{said}");
    assert!(said.contains("`judge_memory` is the part of the judge"), "{said}");
    // One model stands beside the model.
    let opened = (ScorerOptions::new(scorer.path()).open().unwrap(), JudgeFolderOptions::new(sound.path()).open());
    let (reward, generator) = (Some(Arc::new(opened.0)), Some(Arc::new(opened.1.unwrap())));
    let said = SecondFolder::one_of(reward.clone(), generator.clone()).map(drop).expect_err("three models").to_string();
    assert!(said.starts_with("`judge`: expected one model beside the model"), "{said}");
    assert!(said.contains(&scorer.path().display().to_string()), "{said}");
    let kind = |one: Option<SecondFolder>| one.map(|second| second.kind());
    assert_eq!(kind(SecondFolder::one_of(reward, None).unwrap()), Some(SecondKind::Scorer));
    assert_eq!(kind(SecondFolder::one_of(None, generator).unwrap()), Some(SecondKind::Judge));
    assert_eq!(kind(SecondFolder::one_of(None, None).unwrap()), None);
}

#[test]
fn the_model_s_own_folder_is_known_however_it_is_written() {
    let (model, other) = (generator(), generator());
    let inner = model.path().join("..").join(model.path().file_name().unwrap());
    let link = other.path().join("link");
    #[cfg(unix)]
    std::os::unix::fs::symlink(model.path(), &link).unwrap();
    for own in [model.path(), &inner, &link] {
        assert!(JudgeFolderOptions::new(own).is_the_model(model.path()), "{}", own.display());
    }
    assert!(!JudgeFolderOptions::new(other.path()).is_the_model(model.path()));
    assert!(!JudgeFolderOptions::new("no/folder").is_the_model(model.path()));
    fs::remove_file(link).unwrap();
}

/// What is chosen for the generator is not the judge's.
#[test]
fn settings_of_weights_context_adapters_and_prefixes_are_the_generator_s_alone() {
    let (model, second) = (generator(), generator());
    let mut options = options(Some(2 * MIB));
    options.budget.context = Some(64);
    options.budget.adapters = AdapterLimits { most: 1, rank: 8 };
    options.prefix_store = Some(PrefixFolder::new(model.path().join("prefixes"), 1 << 30));
    let folder = ModelFolder::open(model.path()).unwrap();
    let launch = options.launch(ModelSource::folder(&folder).unwrap(), None, Demand::unbounded());
    let beside = judge(second.path(), None).unwrap();
    let of_judge = launch.of_second(&beside).options;
    assert_eq!(of_judge.budget.adapters, AdapterLimits::NONE);
    assert!(of_judge.prefix_store.is_none());
    let pair: Launched =
        options.open_beside(model.path(), Some(judge(second.path(), None).unwrap())).map(|(pair, _)| pair).unwrap();
    let beside = pair.judge().expect("a judge was asked for");
    assert_eq!((pair.engine.facts().context, beside.engine.facts().context), (64, 256));
    let alone = launched(&self::options(Some(MIB)), None).unwrap();
    // The judge is as it is stored, whatever the generator becomes.
    options.budget.weights.weights = Some(offshoot_model::MadeFormat::Int8);
    let rounded = options.open_beside(model.path(), Some(judge(second.path(), None).unwrap())).unwrap().0;
    let beside = rounded.judge().expect("a judge was asked for");
    assert_ne!(samples(&rounded.engine), samples(&alone.engine));
    assert_eq!(samples(&beside.engine), samples(&alone.engine));
}
