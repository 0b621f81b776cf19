//! A server as the judge of a run elsewhere: the questions that `offshoot_verdict` sends, and what it reads of answers.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use offshoot_text::{ChatOptions, Message};
use offshoot_verdict::{
    Answered, Ask, JudgeAnswer, JudgeKey, JudgePrompt, Question, ServerJudge, ServerOptions, WantedAnswer,
};
use serde_json::{Map, Value, json};

use crate::served::{QUESTION, Served};

/// Longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(300);

fn answer(judge: &ServerJudge, prompt: JudgePrompt, answer: WantedAnswer) -> Result<Answered, String> {
    let (send, received) = mpsc::channel();
    let reply = move |answered: offshoot_core::Result<Answered>| _ = send.send(answered);
    judge.ask(Question { prompt, answer }, Box::new(reply));
    received.recv_timeout(PATIENCE).expect("it is answered").map_err(|error| error.to_string())
}

#[test]
fn a_server_of_ours_answers_a_judge_s_questions() {
    let key = "a-key-of-the-test";
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, key).unwrap();
    let mut server = Served::start(&["--api-keys", keys.to_str().unwrap()]);
    server.set_key(key);
    let options = ServerOptions {
        url: format!("{}/v1", server.address),
        model: None,
        key: Some(JudgeKey::new(key).unwrap()),
        requests: 2,
        timeout: PATIENCE,
        retries: 0,
        request: Map::new(),
    };
    let judge = ServerJudge::open(options.clone()).unwrap();
    assert_eq!(judge.identity().name, "demo");

    // Words have the probabilities of the tokens that begin them.
    let words = [" Mia", " They"];
    let wanted = || WantedAnswer::Words(words.map(str::to_owned).into());
    let text = || JudgePrompt::Text(QUESTION.to_owned());
    let Answered { answer: JudgeAnswer::Words(shares), tokens } = answer(&judge, text(), wanted()).unwrap() else {
        panic!("words are asked for");
    };
    let first = server.complete(&json!({"prompt": QUESTION, "max_tokens": 1, "temperature": 0, "logprobs": 20}));
    assert_eq!(first["usage"]["prompt_tokens"], tokens);
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9 && shares.iter().all(|share| *share > 0.0), "{shares:?}");
    let top = first["choices"][0]["logprobs"]["top_logprobs"][0].as_object().unwrap();
    let begun = |word: &str| {
        let begins =
            |token: &String| !token.trim_start().is_empty() && word.trim_start().starts_with(token.trim_start());
        top.iter().filter(|(token, _)| begins(token)).map(|(_, p)| p.as_f64().unwrap().exp()).sum::<f64>()
    };
    let weights = words.map(begun);
    assert!((shares[0] - weights[0] / (weights[0] + weights[1])).abs() < 1e-4, "{shares:?} {weights:?}");

    let unlikely = WantedAnswer::Words([" 7", " 12"].map(str::to_owned).into());
    let error = answer(&judge, text(), unlikely).unwrap_err();
    assert!(error.contains("one of [\" 7\", \" 12\"]") && error.contains("\" Mia\""), "{error}");

    // JSON keeps its schema, behind a text and in a chat.
    let names = json!({"enum": ["A", "B", "tie"]});
    let schema = json!({"type": "object", "properties": {"winner": names, "score": {"type": "integer", "minimum": 3,
        "maximum": 7}}, "required": ["winner", "score"], "additionalProperties": false});
    let wanted = || WantedAnswer::Json { schema: Arc::new(schema.clone()), max_tokens: 64 };
    let chat = JudgePrompt::Chat { messages: vec![Message::user("Who wins?")], options: ChatOptions::default() };
    for prompt in [text(), chat.clone()] {
        let JudgeAnswer::Json(value) = answer(&judge, prompt, wanted()).unwrap().answer else {
            panic!("JSON is asked for");
        };
        let names = names["enum"].as_array().unwrap();
        assert!(names.contains(&value["winner"]) && (3..=7).contains(&value["score"].as_i64().unwrap()), "{value}");
    }

    // What the server refuses is said in its words; what it could not know is none of them.
    let refused = JudgePrompt::Text("12 boxes, ".repeat(3000));
    let error = answer(&judge, refused, wanted()).unwrap_err();
    assert!(error.contains("it answers with status 400: ") && error.contains("4096"), "{error}");
    let request: Map<String, Value> = [("tempreture".to_owned(), json!(0))].into_iter().collect();
    let wrong = ServerJudge::open(ServerOptions { request, ..options.clone() }).unwrap();
    let error = answer(&wrong, chat, wanted()).unwrap_err();
    assert!(error.contains("tempreture"), "{error}");
    let nobody = ServerOptions { key: None, ..options };
    let error = ServerJudge::open(nobody).err().expect("it has no key").to_string();
    assert!(error.contains("it answers with status 401"), "{error}");
}
