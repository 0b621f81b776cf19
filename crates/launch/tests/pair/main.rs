//! A generator and a second model in one process: what is checked before they load, how they divide the memory, and
//! that the generator's samples do not depend on the other. Judges are in `judges`.

mod folders;
mod judges;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use offshoot_core::Error;
use offshoot_core::ids::NodeId;
use offshoot_engine::{EngineHandle, Hear, Priority, SamplingParams, Stop, UniformKey};
use offshoot_launch::{
    Demand, DeviceChoice, Devices, EngineBudget, EngineOptions, Launch, Launched, LaunchedSecond, ModelSource,
    PromptRequest, ScorerFolder, ScorerOptions, SecondFolder, SecondKind, SecondSizes, generate,
};
use offshoot_model::{MadeFormat, ModelFolder};
use offshoot_score::{FormChoice, TextScorer};
use offshoot_text::{AddSpecial, Message, Tokenizer};

use folders::{LINES, demo, embedder, folder, generator, scorer};

const MIB: usize = 1 << 20;

fn options(pool_bytes: Option<usize>) -> EngineOptions {
    EngineOptions {
        devices: DeviceChoice::Cpu.into(),
        budget: EngineBudget { pool_bytes, max_branches: Some(8), ..EngineBudget::default() },
        ..EngineOptions::default()
    }
}

/// A scorer for a place beside a model.
fn beside(path: &Path, memory: Option<f64>) -> Result<SecondFolder, Error> {
    let options = ScorerOptions { memory, ..ScorerOptions::new(path) };
    Ok(SecondFolder::Scorer(Arc::new(options.open()?)))
}

fn launched(options: &EngineOptions, second: Option<SecondFolder>) -> Result<Launched, Error> {
    let folder = generator();
    Ok(options.open_beside(folder.path(), second)?.0)
}

fn refused(options: &EngineOptions, second: SecondFolder) -> String {
    launched(options, Some(second)).map(drop).expect_err("it is refused").to_string()
}

fn pool_bytes(engine: &EngineHandle) -> usize {
    engine.facts().pool_pages * engine.facts().page_bytes
}

fn samples(engine: &EngineHandle) -> Vec<Vec<u32>> {
    let tokenizer = Tokenizer::load(&demo()).unwrap();
    let tokens = tokenizer.encode("Question: What is 2 + 2?\nAnswer:", AddSpecial::Yes).unwrap();
    let (params, stop) = (SamplingParams::default(), Stop::max_tokens(12));
    let request = PromptRequest {
        tokens: &tokens,
        n: 6,
        prompt_logprobs: None,
        params: &params,
        stop: &stop,
        uniforms: UniformKey::root(1, "pair"),
        priority: Priority::default(),
    };
    let all = generate(engine, vec![request], Hear::Finishes).collect_all().expect("it samples");
    all[0].iter().map(|finish| finish.tokens.iter().map(|token| token.0).collect()).collect()
}

#[test]
fn two_models_in_one_process_divide_one_budget_and_samples_stay_as_they_are() {
    let scorer = scorer();
    let alone = samples(&launched(&options(Some(4 * MIB)), None).unwrap().engine);
    let pair = launched(&options(Some(4 * MIB)), Some(beside(scorer.path(), None).unwrap())).unwrap();
    let (engine, beside) = (&pair.engine, pair.scorer().expect("a scorer was asked for"));
    assert!(pair.judge().is_none());
    let (generator, scorer) = (pool_bytes(engine), pool_bytes(beside.engine()));
    assert!(generator + scorer <= 4 * MIB && generator + scorer > 3 * MIB, "{generator} and {scorer}");
    // A token has keys and values of one size in both: they hold texts of one length.
    assert_eq!(generator, scorer);
    assert_eq!(samples(engine), alone);
    assert_eq!((beside.identity().form.as_str(), beside.identity().digest.len()), ("custom", 64));
}

/// The scores of an answer of two lines, each by itself.
fn scores(scorer: &dyn TextScorer) -> Vec<f64> {
    let mut tree = scorer.begin(&[Message::user("What is 2 + 2?")]).expect("a question");
    let node = NodeId(1);
    tree.start(node, None, &["2 + 2 = 4.\n".to_owned(), "It is 4.\n".to_owned()]).expect("it was not started");
    let scored = std::iter::from_fn(|| tree.poll(Duration::from_secs(60))).next().expect("it is scored");
    assert_eq!(scored.0, node);
    scored.1.expect("a sound answer").scores.scores.iter().map(|step| step.score).collect()
}

#[test]
fn both_work_at_once_and_each_computes_what_it_computes_alone() {
    let scorer = scorer();
    let alone = options(Some(MIB)).open_scorer(scorer.path(), None).unwrap();
    let (alone, sampled) = (scores(&*alone.scorer), samples(&launched(&options(Some(MIB)), None).unwrap().engine));
    assert_eq!(alone.len(), 2);
    let pair = launched(&options(Some(2 * MIB)), Some(beside(scorer.path(), None).unwrap())).unwrap();
    let beside = pair.scorer().expect("a scorer was asked for");
    std::thread::scope(|scope| {
        let scoring = scope.spawn(|| (0..5).map(|_| scores(&**beside)).collect::<Vec<_>>());
        for _ in 0..5 {
            assert_eq!(samples(&pair.engine), sampled);
        }
        assert_eq!(scoring.join().expect("it scores"), vec![alone; 5]);
    });
}

#[test]
fn what_a_job_cannot_use_is_the_other_model_s_or_nobody_s() {
    let (model, scorer) = (generator(), scorer());
    let (options, second) = (options(Some(4 * MIB)), beside(scorer.path(), None).unwrap());
    let folder = ModelFolder::open(model.path()).unwrap();
    let launch = |tokens: usize| {
        let demand = Demand::new(usize::MAX, move |_, _| tokens);
        options.launch(ModelSource::folder(&folder).unwrap(), None, demand).beside(Some(second.clone()))
    };
    let pools = |launched: &Launched| {
        let scorer = launched.scorer().expect("a scorer was asked for");
        (pool_bytes(&launched.engine), pool_bytes(scorer.engine()))
    };
    let of_token = 2 * 2 * 2 * 16 * 4;
    let few = launch(512).start().unwrap();
    assert_eq!(pools(&few), (512 * of_token, (512 + 64) * of_token));
    // What is said before anything loads is what the engines have.
    for launch in [launch(512), launch(usize::MAX)] {
        let (sizes, started) = (launch.sizes().unwrap().remove(0), launch.start().unwrap());
        let SecondSizes { kind, sizes: scorer } = sizes.second.expect("a scorer was asked for");
        assert_eq!(kind, SecondKind::Scorer);
        let whole_pages = |bytes: usize, page: usize| bytes / page * page;
        let said = (whole_pages(sizes.pool, sizes.page_bytes), whole_pages(scorer.pool, scorer.page_bytes));
        assert_eq!(said, pools(&started));
    }
}

#[test]
fn the_scorer_s_share_can_be_given_and_too_little_is_said_of_the_model_that_lacks_it() {
    let scorer = scorer();
    let given = |memory: f64| beside(scorer.path(), Some(memory));
    let pair = launched(&options(Some(4 * MIB)), Some(given(0.25).unwrap())).unwrap();
    let of_scorer = pool_bytes(pair.scorer().expect("a scorer was asked for").engine());
    assert!(of_scorer <= MIB && of_scorer > MIB / 2, "{of_scorer}");
    assert!(pool_bytes(&pair.engine) > 5 * MIB / 2, "{}", pool_bytes(&pair.engine));
    let refused = |memory: f64| refused(&options(Some(MIB)), given(memory).unwrap());
    let (of_scorer, of_model) = (refused(0.000_1), refused(0.999_9));
    assert!(of_scorer.starts_with("the scorer: ") && of_scorer.contains("at least one page"), "{of_scorer}");
    assert!(of_model.starts_with("the model: ") && of_model.contains("at least one page"), "{of_model}");
    for said in [of_scorer, of_model] {
        assert!(said.contains("`scorer_memory` is the part of the scorer"), "{said}");
    }
    for share in [0.0, 1.0, f64::NAN] {
        let said = given(share).map(drop).expect_err("no share").to_string();
        assert!(said.contains("`scorer_memory`"), "{said}");
    }
}

#[test]
fn both_models_are_checked_before_either_is_loaded() {
    // Nothing has room for the model, which is said of both and before a weight is read.
    let config = ModelFolder::open(demo()).unwrap().config;
    let config = offshoot_model::ModelConfig { vocab: 1 << 40, ..config };
    let sound = scorer();
    let model = ModelSource::random(&config, offshoot_backend::Dtype::F32);
    let launch: Launch<'_> = options(None).launch(model, None, Demand::unbounded());
    let launch = launch.beside(Some(beside(sound.path(), None).unwrap()));
    let (started, sizes) = (launch.start().map(drop), launch.sizes().map(drop));
    let error = started.expect_err("it does not start").to_string();
    assert!(error.contains("TiB") && error.contains(" and "), "{error}");
    assert_eq!(sizes.expect_err("nor is its size known").to_string(), error);
    let said = |path: &Path, form: Option<&str>| {
        let form = form.map(|form| FormChoice::Named(form.to_owned()));
        let opened = ScorerOptions { form, ..ScorerOptions::new(path) }.open();
        opened.map(drop).expect_err("it is no scorer").to_string()
    };
    for (folder, form, words) in [
        (generator(), None, &["architectures", "LlamaForCausalLM", "last-token", "yes-no", "scorer.json"][..]),
        (scorer(), Some("last-tokken"), &["last-tokken", "last-token"]),
        (
            folder("LlamaForCausalLM", None, Some(LINES)),
            None,
            &["score", "none of them", "a form of its own", "yes-no"],
        ),
        (
            scorer(),
            Some("words-at-tag"),
            &["\"words-at-tag\"", "words", "LlamaForSequenceClassification", "last-token"],
        ),
        (scorer(), Some("words-at-turn"), &["\"words-at-turn\"", "head", "step-lines"]),
        (scorer(), Some("token-logit"), &["\"token-logit\"", "head", "step-lines"]),
        (scorer(), Some("yes-no"), &["\"yes-no\"", "head", "step-lines"]),
        (folder("Qwen2ForProcessRewardModel", Some(2), None), None, &["<extra_0>", "`tag`"]),
        (folder("LlamaForSequenceClassification", Some(3), Some(LINES)), None, &["column", "3"]),
    ] {
        let said = said(folder.path(), form);
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    let nowhere = said(Path::new("no/folder"), None);
    assert!(nowhere.contains("no/folder"), "{nowhere}");
}

#[test]
fn a_scorer_stands_beside_a_model_on_one_device() {
    let scorer = scorer();
    for devices in [Devices::Each(vec![DeviceChoice::Cpu; 2]), Devices::Ranks(vec![DeviceChoice::Cpu; 2])] {
        let said = refused(&EngineOptions { devices, ..options(None) }, beside(scorer.path(), None).unwrap());
        assert!(said.contains("`devices`") && said.contains("one device"), "{said}");
    }
    // A scorer as the model is refused, and says what it is.
    let said = options(None).open(scorer.path()).map(drop).expect_err("it predicts no tokens").to_string();
    assert!(said.contains("LlamaForSequenceClassification") && said.contains("predicts tokens"), "{said}");
}

#[test]
fn an_embedder_stands_beside_a_model_for_those_who_take_values_of_any_kind() {
    let (embedder, scorer) = (embedder(), scorer());
    let values = |path: &Path| ScorerOptions::new(path).open_values().unwrap();
    let second = values(embedder.path());
    assert_eq!((second.kind(), values(scorer.path()).kind()), (SecondKind::Embedder, SecondKind::Scorer));
    let alone = samples(&launched(&options(Some(MIB)), None).unwrap().engine);
    let pair = launched(&options(Some(4 * MIB)), Some(second)).unwrap();
    assert!(pair.scorer().is_none() && pair.judge().is_none());
    let Some(LaunchedSecond::Embedder(engine)) = &pair.second else { panic!("an embedder was asked for") };
    assert_eq!(engine.facts().values, Some(64), "the model's width");
    assert_eq!(pool_bytes(engine), pool_bytes(&pair.engine));
    assert_eq!(samples(&pair.engine), alone);
    // Searches take a scorer alone.
    let said = ScorerOptions::new(embedder.path()).open().map(drop).expect_err("no reward model").to_string();
    assert!(said.contains("reward model"), "{said}");
}

#[test]
fn a_scorer_starts_alone() {
    let folder = scorer();
    let launched = options(Some(MIB)).open_scorer(folder.path(), None).unwrap();
    assert!(launched.not_cuda.is_none() && pool_bytes(launched.scorer.engine()) <= MIB);
    let opened = ScorerFolder::open(folder.path(), None).unwrap();
    assert_eq!((opened.identity(), opened.context()), (launched.scorer.identity(), 256));
    let again =
        ScorerFolder::open(folder.path(), Some(&FormChoice::Own(Box::new(serde_json::from_str(LINES).unwrap()))));
    assert_eq!(again.unwrap().identity(), opened.identity(), "the same form, from elsewhere");
    let generator = generator();
    assert!(options(None).open_scorer(generator.path(), None).is_err());
    // The weights that are asked for are those of the only model there is.
    let mut int8 = options(Some(MIB));
    int8.budget.weights.weights = Some(MadeFormat::Int8);
    let rounded = ScorerFolder::open(folder.path(), None).unwrap().start(&int8).unwrap();
    assert_ne!(scores(&*rounded.scorer), scores(&*launched.scorer));
    drop::<Arc<_>>(launched.scorer);
}
