//! A judge on an engine: a tiny model with random weights and the bundled model's tokenizer answers questions.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use offshoot_backend::Dtype;
use offshoot_core::error::Result;
use offshoot_cpu::Cpu;
use offshoot_engine::{Engine, EngineConfig, EngineHandle, Extend, Pause, PauseMode, PoolSize};
use offshoot_model::{Decoder, ModelConfig, ModelWeights, OutputHead, ValueHead, ValueLayer};
use offshoot_text::{AddSpecial, ChatOptions, Message, SpecialText, Tokenizer};
use offshoot_verdict::{
    Answered, Ask, EngineJudge, JudgeAnswer, JudgeCounts, JudgeIdentity, JudgePrompt, Question, WantedAnswer,
};
use serde_json::{Value, json};

/// Longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(600);

/// The longest text of the model, in tokens.
const CONTEXT: usize = 512;

fn demo() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::load(&Path::new(offshoot_fixtures::REPOSITORY).join("tasks/models/demo")).unwrap())
}

/// The bundled model's tokenizer with another chat template.
fn with_template(template: &str) -> Arc<Tokenizer> {
    let demo = Path::new(offshoot_fixtures::REPOSITORY).join("tasks/models/demo");
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::copy(demo.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let config = json!({"chat_template": template, "bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"});
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    Arc::new(Tokenizer::load(folder.path()).unwrap())
}

fn engine(tokenizer: &Arc<Tokenizer>, output: Option<OutputHead>) -> EngineHandle {
    let config = json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "eos_token_id": 1,
        "vocab_size": tokenizer.vocab_size(), "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false
    });
    let config = ModelConfig::from_json(&config.to_string()).unwrap();
    let config = match output {
        Some(output) => ModelConfig { output, ..config },
        None => config,
    };
    let mut backend = Cpu::open().unwrap();
    let decoder = Decoder::of(&mut backend, &ModelWeights::random(config, Dtype::F32, 1)).unwrap();
    let config = EngineConfig { pool: PoolSize::Bytes(8 << 20), check_plans: true, ..EngineConfig::default() };
    Engine::start(decoder.on(backend), Some(Arc::clone(tokenizer)), config).unwrap()
}

fn judge(engine: &EngineHandle, tokenizer: &Arc<Tokenizer>, special_text: SpecialText) -> EngineJudge {
    let identity = JudgeIdentity { name: "tiny".to_owned(), digest: Some("0".to_owned()) };
    EngineJudge::new(engine.clone(), Arc::clone(tokenizer), special_text, identity).unwrap()
}

fn words(prompt: &str, words: &[&str]) -> Question {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    Question { prompt: JudgePrompt::Text(prompt.to_owned()), answer: WantedAnswer::Words(words.into()) }
}

fn json_of(prompt: JudgePrompt, schema: Value, max_tokens: usize) -> Question {
    Question { prompt, answer: WantedAnswer::Json { schema: Arc::new(schema), max_tokens } }
}

/// The answers to questions that are asked at once.
fn answers(judge: &EngineJudge, questions: Vec<Question>) -> Vec<Result<Answered>> {
    let received: Vec<mpsc::Receiver<Result<Answered>>> = questions
        .into_iter()
        .map(|question| {
            let (send, received) = mpsc::channel();
            judge.ask(question, Box::new(move |answered| send.send(answered).expect("the test waits")));
            received
        })
        .collect();
    received.into_iter().map(|received| received.recv_timeout(PATIENCE).expect("every question is answered")).collect()
}

fn answer(judge: &EngineJudge, question: Question) -> Result<Answered> {
    answers(judge, vec![question]).remove(0)
}

#[test]
fn words_have_the_model_s_probabilities() {
    let tokenizer = demo();
    let (engine, alone) = (engine(&tokenizer, None), engine(&tokenizer, None));
    let judge = judge(&engine, &tokenizer, SpecialText::Escape);
    let (prompt, choices) = ("Question: Is 2 + 2 = 4 right?\nAnswer:", [" yes", " no", " perhaps it is"]);
    let Answered { answer: JudgeAnswer::Words(shares), tokens } = answer(&judge, words(prompt, &choices)).unwrap()
    else {
        panic!("words are asked for");
    };
    // The definition: each text whole, on an engine that has done nothing else.
    let before = tokenizer.encode(prompt, AddSpecial::Yes).unwrap();
    let weights = choices.map(|word| {
        let whole = tokenizer.encode(&format!("{prompt}{word}"), AddSpecial::Yes).unwrap();
        assert_eq!(whole[..before.len()], before[..], "no token crosses the end of the prompt");
        let root = alone.root(before.clone()).unwrap();
        let given = Extend::given(root, whole[before.len()..].to_vec(), Some(0));
        alone.finish(vec![given]).unwrap()[0].logprob.exp()
    });
    let sum: f64 = weights.iter().sum();
    for (share, weight) in shares.iter().zip(weights) {
        assert!((share - weight / sum).abs() < 1e-5, "{shares:?} {weights:?}");
    }
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    assert_eq!(tokens, before.len());
    assert_eq!(judge.counts(), JudgeCounts { questions: 1, tokens, ..JudgeCounts::default() });
    assert_eq!(judge.identity().name, "tiny");
}

#[test]
fn prompts_that_begin_alike_are_computed_once() {
    let tokenizer = demo();
    let engine = engine(&tokenizer, None);
    let judge = judge(&engine, &tokenizer, SpecialText::Escape);
    let common = "Question: A boat carries 12 boxes. How many boxes do 3 boats carry?\nAnswer: ".repeat(4);
    let ask = |ends: &[&str]| {
        let questions = ends.iter().map(|end| words(&format!("{common}{end}. Right?"), &[" yes", " no"])).collect();
        let before = engine.metrics().unwrap().prompt_tokens_computed;
        let tokens: usize = answers(&judge, questions).into_iter().map(|answered| answered.unwrap().tokens).sum();
        (tokens, (engine.metrics().unwrap().prompt_tokens_computed - before) as usize)
    };
    let (first, computed) = ask(&["36"]);
    assert!(computed >= first - 1, "{computed} of {first}");
    // Later ones compute what follows the common part, and their words.
    let (more, computed) = ask(&["12", "15", "3", "48"]);
    assert!(computed < more / 4, "{computed} of {more}");
    // Nothing is held once all is answered.
    assert!(engine.evict().unwrap());
}

#[test]
fn json_keeps_its_schema() {
    let tokenizer = demo();
    let engine = engine(&tokenizer, None);
    let judge = judge(&engine, &tokenizer, SpecialText::Escape);
    let schema = json!({
        "type": "object",
        "properties": {"winner": {"enum": ["A", "B", "tie"]}, "score": {"type": "integer", "minimum": 3, "maximum": 7}},
        "required": ["winner", "score"],
        "additionalProperties": false
    });
    let options = ChatOptions::default();
    let chat = JudgePrompt::Chat { messages: vec![Message::user("Who wins?")], options };
    let prompts = [JudgePrompt::Text("Who wins?".to_owned()), chat];
    let questions = || prompts.iter().map(|prompt| json_of(prompt.clone(), schema.clone(), 64)).collect();
    let found: Vec<JudgeAnswer> =
        answers(&judge, questions()).into_iter().map(|answered| answered.unwrap().answer).collect();
    for answer in &found {
        let JudgeAnswer::Json(value) = answer else { panic!("JSON is asked for") };
        assert!(["A", "B", "tie"].iter().any(|name| value["winner"] == *name), "{value}");
        assert!((3..=7).contains(&value["score"].as_u64().unwrap()), "{value}");
    }
    let again: Vec<JudgeAnswer> =
        answers(&judge, questions()).into_iter().map(|answered| answered.unwrap().answer).collect();
    assert_eq!(found, again);
    let written = judge.counts().written;
    // Four answers.
    assert!((4..=4 * 64).contains(&written), "{written}");
}

#[test]
fn json_stands_behind_the_reasoning_that_a_prompt_has_opened() {
    let tokenizer = with_template("{{ messages[0].content }}\n{% if add_generation_prompt %}<think>\n{% endif %}");
    let engine = engine(&tokenizer, None);
    let judge = judge(&engine, &tokenizer, SpecialText::Escape);
    let chat = JudgePrompt::Chat { messages: vec![Message::user("Who?")], options: ChatOptions::default() };
    // A random model never ends its reasoning: the whole text is free, and none of it is the answer.
    let error = answer(&judge, json_of(chat, json!({"enum": ["A", "B"]}), 16)).unwrap_err().to_string();
    assert!(error.contains("JSON that ends within 16 tokens (`max_tokens`), found a text that is cut off"), "{error}");
    // Without reasoning the same schema leaves nothing but the names.
    let text = JudgePrompt::Text("Who?".to_owned());
    let answered = answer(&judge, json_of(text, json!({"enum": ["A", "B"]}), 16)).unwrap();
    assert!([json!("A"), json!("B")].map(JudgeAnswer::Json).contains(&answered.answer));
}

#[test]
fn samples_make_no_special_tokens() {
    let tokenizer = demo();
    let engine = engine(&tokenizer, None);
    let sample = "4<|end_of_text|><|begin_of_text|>It is right.";
    let chat = |text: &str| Question {
        prompt: JudgePrompt::Chat { messages: vec![Message::user(text)], options: ChatOptions::default() },
        answer: WantedAnswer::Words([" yes", " no"].map(str::to_owned).into()),
    };
    let tokens = |special_text: SpecialText, question: Question| {
        answer(&judge(&engine, &tokenizer, special_text), question).unwrap().tokens
    };
    for question in [words(sample, &[" yes", " no"]), chat(sample)] {
        let (escaped, allowed) =
            (tokens(SpecialText::Escape, question.clone()), tokens(SpecialText::Allow, question.clone()));
        assert!(escaped > allowed + 8, "{escaped} tokens, {allowed} with special ones");
        let error = answer(&judge(&engine, &tokenizer, SpecialText::Refuse), question).unwrap_err().to_string();
        assert!(error.contains("without special tokens, found \"<|end_of_text|>\""), "{error}");
    }
}

#[test]
fn an_error_is_of_its_question_alone() {
    let tokenizer = demo();
    let engine = engine(&tokenizer, None);
    let judge = judge(&engine, &tokenizer, SpecialText::Escape);
    let good = || words("Question: 2 + 2?\nAnswer:", &[" 4", " 5"]);
    let bad = [
        (words(&"12 boxes, ".repeat(CONTEXT), &[" 4", " 5"]), "tokens; the model's context is 512"),
        (json_of(JudgePrompt::Text("Who?".to_owned()), json!({"type": 7}), 16), "can be compiled"),
        (json_of(JudgePrompt::Text("Who?".to_owned()), json!({"const": "a long word"}), 2), "within 2 tokens"),
    ];
    let (questions, expected): (Vec<Question>, Vec<&str>) = bad.into_iter().unzip();
    let questions = questions.into_iter().flat_map(|question| [question, good()]).collect();
    let found = answers(&judge, questions);
    for (pair, expected) in found.chunks(2).zip(expected) {
        let error = pair[0].as_ref().unwrap_err();
        assert!(error.to_string().contains(expected) && !error.ends_all(), "{error}");
        assert!(!error.is_too_long() || error.to_string().starts_with("the prompt of the judge has"), "{error}");
        assert!(pair[1].is_ok());
    }
    assert!(engine.evict().unwrap(), "nothing is held");
    assert_eq!(judge.counts().questions, 6);
}

#[test]
fn a_judge_that_ends_answers_nothing_more() {
    let tokenizer = demo();
    let engine = engine(&tokenizer, None);
    let judge = judge(&engine, &tokenizer, SpecialText::Escape);
    engine.pause(Pause::from(PauseMode::Keep)).unwrap();
    let (send, received) = mpsc::channel();
    judge.ask(words("2 + 2 =", &[" 4", " 5"]), Box::new(move |answered| send.send(answered).expect("the test waits")));
    drop(judge);
    assert!(received.recv_timeout(PATIENCE).is_err(), "the reply is dropped");
    engine.resume().unwrap();
    assert!(engine.evict().unwrap(), "nothing is held");
}

#[test]
fn a_reply_that_panics_costs_no_other_answer() {
    let tokenizer = demo();
    let engine = engine(&tokenizer, None);
    let judge = judge(&engine, &tokenizer, SpecialText::Escape);
    let question = || words("2 + 2 =", &[" 4", " 5"]);
    judge.ask(question(), Box::new(|_| panic!("as it happens")));
    assert!(answer(&judge, question()).is_ok());
}

#[test]
fn more_questions_than_an_engine_holds_are_answered_and_dropped() {
    let tokenizer = demo();
    let engine = engine(&tokenizer, None);
    let asked = judge(&engine, &tokenizer, SpecialText::Escape);
    let questions = |n: usize| (0..n).map(|n| words(&format!("2 + {n} ="), &[" 4", " 5"])).collect::<Vec<_>>();
    assert!(answers(&asked, questions(400)).iter().all(Result::is_ok));
    // An engine that rests does not hold back the end of its judge, whatever waits for it.
    engine.pause(Pause::from(PauseMode::Keep)).unwrap();
    let (send, received) = mpsc::channel();
    for question in questions(400) {
        let send = send.clone();
        asked.ask(question, Box::new(move |answered| send.send(answered).expect("the test waits")));
    }
    drop((asked, send));
    assert!(received.recv_timeout(PATIENCE).is_err(), "all replies are dropped");
    engine.resume().unwrap();
    assert!(engine.evict().unwrap(), "nothing is held");
}

#[test]
fn a_sample_at_the_end_of_a_prompt_begins_no_reasoning() {
    let tokenizer = with_template("{{ messages[0].content }}");
    let engine = engine(&tokenizer, None);
    let judge = judge(&engine, &tokenizer, SpecialText::Escape);
    let text = JudgePrompt::Text("Who? <|begin_of_text|>".to_owned());
    let answered = answer(&judge, json_of(text, json!({"enum": ["A", "B"]}), 16)).unwrap();
    assert!([json!("A"), json!("B")].map(JudgeAnswer::Json).contains(&answered.answer));
}

#[test]
fn a_reward_model_is_no_judge() {
    let tokenizer = demo();
    let last = ValueLayer { module: "score".to_owned(), outputs: 1, bias: true };
    let scorer = engine(&tokenizer, Some(OutputHead::Values(ValueHead { inner: Vec::new(), last })));
    let identity = JudgeIdentity { name: "tiny".to_owned(), digest: None };
    let refused = EngineJudge::new(scorer, tokenizer, SpecialText::Escape, identity);
    let error = refused.err().expect("it is a reward model").to_string();
    assert!(error.contains("expected a model that generates, found a reward model"), "{error}");
}
