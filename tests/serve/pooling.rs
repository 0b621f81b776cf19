//! A scorer beside the model that generates, and alone: what the paths of scores answer, and what a server that only
//! scores refuses. The scorer is the bundled model, by the probability of one word against another.

use serde_json::{Value, json};

use crate::served::{QUESTION, Served, demo};

const ANSWER: &str = " Then Mia has 3";

/// A folder of the bundled model as a scorer: how likely " +" is behind a text, against " -".
fn scorer() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for entry in std::fs::read_dir(demo()).expect("the demo model is part of the project") {
        let path = entry.expect("it can be read").path();
        if path.is_file() {
            let name = path.file_name().expect("a file has a name");
            std::fs::copy(&path, folder.path().join(name)).expect("the folder is writable");
        }
    }
    let text = json!({"plain": {"text": "{{question}}{{answer}}", "special_tokens": true, "read": {"end": {}}}});
    let form = json!({"text": text, "output": {"words": {"good": [" +"], "bad": [" -"]}}});
    std::fs::write(folder.path().join("scorer.json"), form.to_string()).expect("the folder is writable");
    folder
}

/// The same probability from the log-probabilities of both words behind the text.
fn expected(served: &Served, text: &str) -> f64 {
    let choices = json!({"model": "demo", "prompt": text, "choices": [" +", " -"]});
    let scored = served.complete(&choices);
    let logprob = |ix: usize| scored["choices"][ix]["score"]["logprob"].as_f64().expect("a number");
    1.0 / (1.0 + (logprob(1) - logprob(0)).exp())
}

fn assert_near(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap_or_else(|| panic!("expected a number, found {found}"));
    assert!((found - expected).abs() < 1e-4, "{found} and {expected}");
}

#[test]
fn a_scorer_beside_the_model_is_asked_by_its_name() {
    let folder = scorer();
    let path = folder.path().to_str().expect("UTF-8");
    let demo = demo();
    let model = demo.to_str().expect("UTF-8");
    let options = ["--model", model, "--name", "demo", "--scorer", path, "--scorer-name", "reward"];
    let served = Served::start(&options);
    let good = expected(&served, &format!("{QUESTION}{ANSWER}"));
    let pairs = json!({"model": "reward", "queries": QUESTION, "documents": [ANSWER, " Then Mia"]});
    for path in ["/score", "/v1/score"] {
        let scores = served.post(path, &pairs).succeeds();
        assert_near(&scores["data"][0]["score"], good);
        assert_near(&scores["data"][1]["score"], expected(&served, &format!("{QUESTION} Then Mia")));
        assert_eq!(scores["model"], "reward");
    }
    let ranked = served.post("/rerank", &json!({"query": QUESTION, "documents": [ANSWER], "top_n": 1})).succeeds();
    assert_near(&ranked["results"][0]["relevance_score"], good);
    // The classes of a text, once by its text and once by its tokens.
    let text = format!("{QUESTION}{ANSWER}");
    let pooled = served.post("/pooling", &json!({"input": text})).succeeds();
    assert_near(&pooled["data"][0]["data"][1], good);
    let tokens = served.post("/tokenize", &json!({"model": "reward", "prompt": text})).succeeds()["tokens"].clone();
    let classes = served.post("/classify", &json!({"model": "reward", "input": [tokens]})).succeeds();
    assert_near(&classes["data"][0]["probs"][1], good);
    assert_eq!(classes["data"][0]["num_classes"], 2);
    let prompt_tokens = tokens.as_array().expect("a list").len();
    let usage = &classes["usage"];
    assert_eq!(usage["prompt_tokens"], prompt_tokens);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], prompt_tokens, "it was computed before");
    // Each model has its own names.
    let models = served.get("/v1/models").succeeds();
    let names: Vec<&Value> = models["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["demo", "reward"]);
    assert_eq!(served.get("/v1/models/reward").succeeds()["max_model_len"], 4096);
    let refused = served.post("/v1/completions", &json!({"model": "reward", "prompt": "a"}));
    assert_eq!(refused.refused(400), ("invalid_value".to_owned(), json!("model")));
    for path in ["/pooling", "/score"] {
        let body = json!({"model": "demo", "input": "a", "queries": "a", "documents": "b"});
        let refused = served.post(path, &body);
        assert_eq!(refused.refused(400), ("invalid_value".to_owned(), json!("model")), "{path}");
        assert!(refused.text.contains("a model that reads texts: reward"), "{}", refused.text);
        assert!(refused.text.contains("which generates"), "{}", refused.text);
        let refused = served.get(path);
        assert_eq!(refused.refused(405).0, "method_not_allowed", "{path}");
        assert!(refused.text.contains("POST"), "{}", refused.text);
    }
    let refused = served.post("/pooling", &json!({"model": "nobody", "input": "a"}));
    assert_eq!(refused.refused(404).0, "model_not_found");
    assert_eq!(served.post("/v1/embeddings", &json!({"input": "a"})).refused(404).1, json!("model"));
    assert_eq!(served.post("/score", &json!({"queries": "a", "documents": []})).refused(400).1, json!("documents"));
    assert!(served.metric("offshoot_scorer_prompt_tokens_computed_total") >= 1.0);
}

/// Trainers' verbs are the generator's.
#[test]
fn a_scorer_answers_while_the_model_beside_it_sleeps() {
    let folder = scorer();
    let (path, model) = (folder.path().to_str().expect("UTF-8"), demo());
    let model = model.to_str().expect("UTF-8");
    let served = Served::start(&["--model", model, "--scorer", path, "--scorer-name", "reward", "--rollout"]);
    let pair = json!({"model": "reward", "queries": QUESTION, "documents": [ANSWER]});
    let awake = served.post("/score", &pair).succeeds()["data"].clone();
    served.post_nothing("/sleep?level=2").succeeds();
    assert_eq!(served.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1})).refused(503).1, Value::Null);
    assert_eq!(served.post("/score", &pair).succeeds()["data"], awake);
    assert_eq!(served.get("/is_sleeping").succeeds()["is_sleeping"], true);
}

#[test]
fn a_server_of_a_scorer_alone_says_what_it_has() {
    let folder = scorer();
    let served = Served::start(&["--scorer", folder.path().to_str().expect("UTF-8"), "--scorer-name", "reward"]);
    let scores = served.post("/score", &json!({"text_1": QUESTION, "text_2": ANSWER})).succeeds();
    assert!(scores["data"][0]["score"].as_f64().is_some_and(|score| score > 0.0 && score < 1.0), "{scores}");
    assert_eq!(served.get("/v1/models").succeeds()["data"][0]["id"], "reward");
    let ask = json!({"model": "reward", "prompt": "a", "messages": []});
    for path in ["/v1/completions", "/v1/chat/completions", "/v1/responses"] {
        let refused = served.post(path, &ask);
        assert_eq!(refused.refused(404).0, "not_found", "{path}");
        assert!(refused.text.contains("/pooling"), "{path}: {}", refused.text);
    }
    served.get("/health").succeeds();
    assert!(served.get("/metrics").text.contains("offshoot_engine_steps_total"));
    // Many at once wait, and none is refused.
    std::thread::scope(|scope| {
        let asks: Vec<_> = (0..64)
            .map(|ix| {
                let served = &served;
                let body = json!({"input": format!("{QUESTION} {ix}")});
                scope.spawn(move || served.post("/pooling", &body).succeeds())
            })
            .collect();
        for ask in asks {
            assert_eq!(ask.join().expect("it is answered")["object"], "list");
        }
    });
}

/// A folder of the bundled model as an embedder.
fn embedder() -> tempfile::TempDir {
    let folder = scorer();
    let modules = json!([
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
    ]);
    std::fs::write(folder.path().join("modules.json"), modules.to_string()).expect("the folder is writable");
    std::fs::create_dir(folder.path().join("1_Pooling")).expect("the folder is writable");
    let pooling = json!({"pooling_mode_lasttoken": true}).to_string();
    std::fs::write(folder.path().join("1_Pooling/config.json"), pooling).expect("the folder is writable");
    folder
}

/// The vectors of three texts, the first and the last of them equal.
fn vectors(served: &Served) -> Vec<Vec<f64>> {
    let ask = json!({"model": "vectors", "input": [QUESTION, ANSWER, QUESTION]});
    let vectors = served.post("/v1/embeddings", &ask).succeeds();
    let vector = |ix: usize| -> Vec<f64> {
        let numbers = vectors["data"][ix]["embedding"].as_array().expect("a list");
        numbers.iter().map(|number| number.as_f64().expect("a number")).collect()
    };
    (0..3).map(vector).collect()
}

#[test]
fn an_embedder_makes_vectors_of_texts() {
    let folder = embedder();
    let served = Served::start(&["--model", folder.path().to_str().expect("UTF-8"), "--name", "vectors"]);
    let [first, second, third] = &vectors(&served)[..] else { panic!("three vectors") };
    let times = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    assert_eq!(first.len(), 256);
    assert!((times(first, first) - 1.0).abs() < 1e-6);
    assert_eq!(first, third);
    let scores = served.post("/score", &json!({"text_1": QUESTION, "text_2": [ANSWER, QUESTION]})).succeeds();
    assert_near(&scores["data"][0]["score"], times(first, second));
    assert_near(&scores["data"][1]["score"], 1.0);
    assert_eq!(served.post("/classify", &json!({"input": "a"})).refused(404).1, json!("model"));
    assert_eq!(served.post("/v1/completions", &json!({"prompt": "a"})).refused(404).0, "not_found");
}

#[test]
fn an_embedder_beside_the_model_is_asked_by_its_name() {
    let (folder, demo) = (embedder(), demo());
    let [path, model] = [folder.path(), &demo].map(|path| path.to_str().expect("UTF-8"));
    let alone = vectors(&Served::start(&["--model", path, "--name", "vectors"]));
    assert_eq!(vectors(&Served::start(&["--scorer", path, "--scorer-name", "vectors"])), alone);
    let options = ["--model", model, "--name", "demo", "--scorer", path, "--scorer-name", "vectors"];
    let served = Served::start(&options);
    // Both work at once, and each as it does alone.
    let ask = json!({"model": "demo", "prompt": QUESTION, "max_tokens": 16, "temperature": 0});
    let said = served.complete(&ask)["choices"][0]["text"].clone();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| (0..3).map(|_| vectors(&served)).collect::<Vec<_>>());
        for _ in 0..3 {
            assert_eq!(served.complete(&ask)["choices"][0]["text"], said);
        }
        assert_eq!(asking.join().expect("it is answered"), vec![alone.clone(); 3]);
    });
    let scores = served.post("/score", &json!({"text_1": QUESTION, "text_2": [QUESTION]})).succeeds();
    assert_near(&scores["data"][0]["score"], 1.0);
    let models = served.get("/v1/models").succeeds();
    let names: Vec<&Value> = models["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["demo", "vectors"]);
    assert_eq!(served.post("/classify", &json!({"input": "a"})).refused(404).1, json!("model"));
    let refused = served.post("/v1/embeddings", &json!({"model": "demo", "input": "a"}));
    assert_eq!(refused.refused(400), ("invalid_value".to_owned(), json!("model")));
    assert!(refused.text.contains("which generates"), "{}", refused.text);
}

#[test]
fn a_server_without_a_scorer_says_so() {
    let served = Served::start(&[]);
    for path in
        ["/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/v1/embeddings"]
    {
        let refused = served.post(path, &json!({"input": "a"}));
        assert_eq!(refused.refused(404).0, "not_found", "{path}");
        assert!(refused.text.contains("scorer"), "{path}: {}", refused.text);
    }
}
