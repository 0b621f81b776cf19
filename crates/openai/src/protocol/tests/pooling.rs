//! Requests for values on the bundled model's tokenizer. No model runs: values are made up.

use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::super::{
    EmbedderValues, PoolingEndpoint, PoolingHead, PoolingModel, PoolingRequest, ProtocolLimits, Refusal, ScorerValues,
    TextValues,
};
use super::{object, tokenizer, with_reader};
use offshoot_core::ids::TokenId;
use offshoot_score::{FormChoice, ResolvedForm, ScorerConfig};
use offshoot_text::AddSpecial;

/// The end of a text, which is one token of the bundled model's.
const TAG: &str = "<|end_of_text|>";
const TAG_ID: TokenId = TokenId(1);

struct Scorer {
    values: ScorerValues,
    form: ResolvedForm,
}

impl Scorer {
    /// Of this form (a built-in one's name, or one), these fields of config.json, and so many values at a token.
    fn new(form: Value, config: Value, width: usize) -> Scorer {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("config.json"), config.to_string()).expect("the folder is writable");
        let config = ScorerConfig::read(folder.path()).expect("a config");
        let form: FormChoice = serde_json::from_value(form).expect("a form");
        let form = form.form().expect("a form");
        let form = ResolvedForm::new(&form, tokenizer().clone(), &config.head(width), SystemTime::UNIX_EPOCH);
        let form = form.expect("the form fits the tokenizer");
        Scorer { values: ScorerValues::new(&form, &config, width), form }
    }

    /// One value of whole texts.
    fn reward() -> Scorer {
        Scorer::new(json!("last-token"), json!({"architectures": ["Qwen3ForSequenceClassification"]}), 1)
    }

    /// Three classes of whole texts.
    fn classifier() -> Scorer {
        let labels = json!({"0": "low", "1": "middle", "2": "high"});
        let config = json!({"architectures": ["LlamaForSequenceClassification"], "id2label": labels});
        let text = json!({"chat": {"read": {"end": {}}}});
        let form = json!({"text": text, "output": {"column": {"column": "high", "activation": "softmax"}}});
        Scorer::new(form, config, 3)
    }

    /// Two classes of steps.
    fn steps() -> Scorer {
        let text = json!({"chat": {"read": {"tags": {"tag": TAG}}}});
        let form = json!({"text": text, "output": {"column": {"activation": "softmax"}}, "aggregate": "min"});
        Scorer::new(form, json!({"architectures": ["Qwen2ForProcessRewardModel"]}), 2)
    }

    fn model(&self) -> PoolingModel<'_> {
        PoolingModel::Scorer(&self.values, &self.form)
    }
}

const EMBEDDER: PoolingModel<'_> = PoolingModel::Embedder(EmbedderValues { normalises: true });

fn read(endpoint: PoolingEndpoint, body: Value, model: PoolingModel<'_>) -> Result<PoolingRequest, Refusal> {
    with_reader(&ProtocolLimits::default(), |reader| reader.read_pooling(endpoint, &object(body), model))
}

/// The answer to a request whose texts have these values, the rows of each text one by one.
fn answer(
    endpoint: PoolingEndpoint,
    body: Value,
    model: PoolingModel<'_>,
    values: &[&[&[f32]]],
) -> Result<Value, Refusal> {
    let request = read(endpoint, body, model)?;
    assert_eq!(request.texts.len(), values.len());
    let text = |rows: &&[&[f32]]| TextValues { rows: rows.iter().map(|&row| row.into()).collect(), cached: 2 };
    let values: Vec<TextValues> = values.iter().map(text).collect();
    let head = PoolingHead { id: "pooling-7".to_owned(), created: 3 };
    let body = request.answer(model, &values, &head)?;
    Ok(serde_json::from_slice(&body).expect("JSON"))
}

fn encoded(text: &str, special: AddSpecial) -> Vec<TokenId> {
    tokenizer().encode(text, special).expect("it can be encoded")
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn assert_near(found: &Value, expected: f64) {
    assert!((found.as_f64().expect("a number") - expected).abs() < 1e-12, "{found} and {expected}");
}

#[test]
fn texts_are_read_at_their_ends() {
    let scorer = Scorer::reward();
    let read = |body| read(PoolingEndpoint::Pooling, body, scorer.model()).map(|request| request.texts);
    let whole = encoded("2 + 3", AddSpecial::Yes);
    let texts = read(json!({"input": ["2 + 3", "2"], "model": "demo"})).unwrap();
    assert_eq!((texts[0].tokens.clone(), texts[0].at.clone()), (whole.clone(), vec![whole.len() as u32 - 1]));
    assert_eq!(texts[1].tokens, encoded("2", AddSpecial::Yes));
    let bare = read(json!({"input": "2 + 3", "add_special_tokens": false})).unwrap();
    assert_eq!(bare[0].tokens, encoded("2 + 3", AddSpecial::No));
    let ids = read(json!({"input": [5, 6, 7]})).unwrap();
    assert_eq!((ids.len(), ids[0].at.clone()), (1, vec![2]));
    let lists = read(json!({"input": [[5], [6, 7]]})).unwrap();
    assert_eq!(lists[1].tokens, [TokenId(6), TokenId(7)]);
    // A chat is rendered as it stands: nothing of the assistant's next turn, and its last message does not go on.
    let chat = json!([{"role": "user", "content": "2?"}, {"role": "assistant", "content": "3"}]);
    let shown = encoded("[user] 2?\n[assistant] 3\n", AddSpecial::No);
    assert_eq!(read(json!({"messages": chat})).unwrap()[0].tokens, shown);
    let chats = read(json!({"messages": [chat, [{"role": "user", "content": "2?"}]]})).unwrap();
    assert_eq!((chats[0].tokens.clone(), chats[1].tokens.clone()), (shown, encoded("[user] 2?\n", AddSpecial::No)));
    let open = read(json!({"messages": chat, "continue_final_message": true})).unwrap();
    assert_eq!(open[0].tokens, encoded("[user] 2?\n[assistant] 3", AddSpecial::No));
    let prompted = read(json!({"messages": chat, "add_generation_prompt": true})).unwrap();
    assert_eq!(prompted[0].tokens, encoded("[user] 2?\n[assistant] 3\n[assistant]", AddSpecial::No));
}

#[test]
fn texts_are_cut_at_the_side_that_is_asked_for() {
    let scorer = Scorer::reward();
    let read = |body| read(PoolingEndpoint::Classify, body, scorer.model()).map(|request| request.texts);
    let whole = encoded("1 2 3 4 5 6", AddSpecial::Yes);
    let first = read(json!({"input": "1 2 3 4 5 6", "truncate_prompt_tokens": 3})).unwrap();
    assert_eq!((&*first[0].tokens, &*first[0].at), (&whole[..3], &[2][..]));
    let body = json!({"input": "1 2 3 4 5 6", "truncate_prompt_tokens": 3, "truncation_side": "left"});
    // Special tokens around a text stay.
    let last = [&whole[..1], &whole[whole.len() - 2..]].concat();
    assert_eq!(read(body).unwrap()[0].tokens, last);
    let long = "1 ".repeat(5000);
    let error = read(json!({"input": long})).unwrap_err();
    assert_eq!((error.status(), error.code), (400, "context_length_exceeded"));
    assert_eq!(read(json!({"input": long, "truncate_prompt_tokens": -1})).unwrap()[0].tokens.len(), 4096);
}

#[test]
fn a_classifier_reads_no_padding_at_the_end() {
    let config = json!({"architectures": ["LlamaForSequenceClassification"], "pad_token_id": 1});
    let scorer = Scorer::new(json!("last-token"), config, 1);
    let body = json!({"input": format!("2{TAG}{TAG}")});
    let texts = read(PoolingEndpoint::Classify, body, scorer.model()).unwrap().texts;
    assert_eq!(texts[0].tokens, encoded("2", AddSpecial::Yes));
    // An embedder's last token may be its padding token.
    let texts = read(PoolingEndpoint::Pooling, json!({"input": format!("2{TAG}")}), EMBEDDER).unwrap().texts;
    assert_eq!(texts[0].tokens.last(), Some(&TAG_ID));
}

#[test]
fn steps_are_read_at_their_tags() {
    let scorer = Scorer::steps();
    let answered = format!("a{TAG}bc{TAG}");
    let chat = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": answered}]);
    let request = read(PoolingEndpoint::Pooling, json!({"messages": chat}), scorer.model()).unwrap();
    let [text] = &request.texts[..] else { panic!("one text") };
    // What stands behind the last tag changes no value.
    assert_eq!((text.at.len(), text.tokens.last()), (2, Some(&TAG_ID)));
    assert!(text.at.iter().all(|&at| text.tokens[at as usize] == TAG_ID));
    let two: &[&[f32]] = &[&[0.5, 1.25], &[2.0, 0.0]];
    let body = answer(PoolingEndpoint::Pooling, json!({"messages": chat}), scorer.model(), &[two]).unwrap();
    let rows = &body["data"][0]["data"];
    assert_near(&rows[0][1], sigmoid(0.75));
    assert_near(&rows[1][1], sigmoid(-2.0));
    assert_near(&rows[1][0], sigmoid(2.0));
    let raw = json!({"messages": chat, "use_activation": false, "task": "token_classify"});
    let body = answer(PoolingEndpoint::Pooling, raw, scorer.model(), &[two]).unwrap();
    assert_eq!(body["data"][0]["data"], json!([[0.5, 1.25], [2.0, 0.0]]));
    let none = read(PoolingEndpoint::Pooling, json!({"input": "a"}), scorer.model()).err().unwrap();
    assert!(none.message.contains(TAG), "{}", none.message);
    // It has no value of a whole text, but a score of all steps by its form, here the least.
    let refused = read(PoolingEndpoint::Classify, json!({"input": "a"}), scorer.model()).err().unwrap();
    assert!(refused.status() == 404 && refused.message.contains("/score"), "{}", refused.message);
    let pair = json!({"queries": "q", "documents": ["a\n\nbc"]});
    let body = answer(PoolingEndpoint::Score, pair, scorer.model(), &[two]).unwrap();
    assert_near(&body["data"][0]["score"], sigmoid(-2.0));
}

/// Where the form's own separator ends a step, whatever token it is a part of.
#[test]
fn steps_are_read_at_their_separators() {
    let form = |parts: Value| {
        let text =
            json!({"plain": {"text": "{{question}}{{answer}}", "special_tokens": false, "read": {"parts": parts}}});
        json!({"text": text, "output": {"column": {"activation": "none"}}})
    };
    let scorer = |parts: Value| {
        let config = json!({"architectures": ["Qwen2ForTokenClassification"]});
        Scorer::new(form(parts), config, 1)
    };
    let lines = scorer(json!({"separator": "\n"}));
    let text = "1 + 2\n= 3\n\nso 3\nand more";
    let request = read(PoolingEndpoint::Pooling, json!({"input": text}), lines.model()).unwrap();
    let [read_text] = &request.texts[..] else { panic!("one text") };
    let shown: Vec<String> =
        read_text.at.iter().map(|&at| tokenizer().decode(&read_text.tokens[..=at as usize])).collect();
    // An empty line is one token, in which the second line ends.
    assert_eq!(shown, ["1 + 2\n", "1 + 2\n= 3\n\n", "1 + 2\n= 3\n\nso 3\n"]);
    assert_eq!(read_text.tokens.len() as u32, read_text.at[2] + 1);
    let rows: &[&[f32]] = &[&[0.5], &[-1.0], &[2.0]];
    let raw = json!({"input": text, "use_activation": false});
    let body = answer(PoolingEndpoint::Pooling, raw, lines.model(), &[rows]).unwrap();
    assert_eq!(body["data"][0]["data"], json!([[0.5], [-1.0], [2.0]]));
    // A special token behind each part.
    let tagged = scorer(json!({"separator": "\n", "end": TAG}));
    let request =
        read(PoolingEndpoint::Pooling, json!({"input": format!("a\nb{TAG}c{TAG}d")}), tagged.model()).unwrap();
    assert!(request.texts[0].at.iter().all(|&at| request.texts[0].tokens[at as usize] == TAG_ID));
    assert_eq!(request.texts[0].at.len(), 2);
    let several = json!({"input": ["a\n", "b"]});
    let none = read(PoolingEndpoint::Pooling, several, lines.model()).err().unwrap();
    assert!(none.message.contains("input[1]") && none.message.contains("\\n"), "{}", none.message);
}

#[test]
fn the_text_of_several_that_is_refused_is_told() {
    let said = |endpoint, body, scorer: &Scorer| read(endpoint, body, scorer.model()).err().expect("refused").message;
    let (steps, reward) = (Scorer::steps(), Scorer::reward());
    let empty = said(PoolingEndpoint::Score, json!({"queries": "q", "documents": ["a", ""]}), &steps);
    assert!(empty.contains("documents[1]"), "{empty}");
    let empty = said(PoolingEndpoint::Rerank, json!({"query": "q", "documents": ["", "a"]}), &steps);
    assert!(empty.contains("documents[0]"), "{empty}");
    let long = json!({"queries": "q", "documents": ["a", "1 ".repeat(5000)]});
    let long = said(PoolingEndpoint::Score, long, &reward);
    assert!(long.contains("documents[1]") && long.contains("maximum context length"), "{long}");
    let wrong = said(PoolingEndpoint::Pooling, json!({"input": [[5], [999_999]]}), &reward);
    assert!(wrong.contains("input[1]"), "{wrong}");
    let other = said(PoolingEndpoint::Pooling, json!({"inputs": "a", "user": "b", "priority": 1}), &reward);
    assert!(other.contains("neither, but `inputs`") && !other.contains("user"), "{other}");
}

#[test]
fn every_token_of_a_token_classifier_is_read() {
    let config = json!({"architectures": ["Qwen2ForRewardModel"]});
    let scorer = Scorer::new(json!("last-token"), config, 1);
    let request = read(PoolingEndpoint::Pooling, json!({"input": [5, 6, 7]}), scorer.model()).unwrap();
    assert_eq!(request.texts[0].at, [0, 1, 2]);
    let rows: &[&[f32]] = &[&[0.5], &[-1.0], &[2.0]];
    // Such a model's values stay as they are, unless a request asks.
    let body = answer(PoolingEndpoint::Pooling, json!({"input": [5, 6, 7]}), scorer.model(), &[rows]).unwrap();
    assert_eq!(body["data"][0]["data"], json!([[0.5], [-1.0], [2.0]]));
    let one = json!({"input": [5, 6, 7], "task": "classify", "use_activation": true});
    let body = answer(PoolingEndpoint::Pooling, one, scorer.model(), &[&[&[2.0]]]).unwrap();
    assert_near(&body["data"][0]["data"][0], sigmoid(2.0));
}

#[test]
fn words_are_two_classes() {
    let text = json!({"plain": {"text": "{{question}} {{answer}}", "special_tokens": true,
                                "read": {"tags": {"tag": " -"}}}});
    let form = json!({"text": text, "output": {"words": {"good": [" +", "+"], "bad": ["-"]}}});
    let scorer = Scorer::new(form, json!({"architectures": ["MistralForCausalLM"]}), 3);
    let rows: &[&[f32]] = &[&[0.0, 1.0, 2.0]];
    let ask = json!({"input": "2 -"});
    let body = answer(PoolingEndpoint::Pooling, ask.clone(), scorer.model(), &[rows]).unwrap();
    let (good, bad) = (1.0 + 1f64.exp(), 2f64.exp());
    let row = &body["data"][0]["data"][0];
    assert!((row[1].as_f64().unwrap() - good / (good + bad)).abs() < 1e-6, "{row}");
    assert!((row[0].as_f64().unwrap() - bad / (good + bad)).abs() < 1e-6, "{row}");
}

#[test]
fn classes_have_labels_and_probabilities() {
    let scorer = Scorer::classifier();
    let values: &[&[&[f32]]] = &[&[&[0.0, 2.0, 1.0]], &[&[3.0, 1.0, 3.0]]];
    let ask = json!({"input": ["a", "b"], "model": "demo"});
    let body = answer(PoolingEndpoint::Classify, ask, scorer.model(), values).unwrap();
    let sum = 1.0 + 2f64.exp() + 1f64.exp();
    assert_near(&body["data"][0]["probs"][1], 2f64.exp() / sum);
    assert_eq!((&body["data"][0]["label"], &body["data"][0]["num_classes"]), (&json!("middle"), &json!(3)));
    // The first of equal ones, as numpy's argmax.
    assert_eq!(body["data"][1]["label"], "low");
    assert_eq!((&body["object"], &body["id"], &body["created"]), (&json!("list"), &json!("pooling-7"), &json!(3)));
    let tokens = encoded("a", AddSpecial::Yes).len() + encoded("b", AddSpecial::Yes).len();
    assert_eq!((&body["usage"]["prompt_tokens"], &body["usage"]["total_tokens"]), (&json!(tokens), &json!(tokens)));
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
    let raw = json!({"input": "a", "use_activation": false});
    let body = answer(PoolingEndpoint::Classify, raw, scorer.model(), &[&[&[0.0, 2.0, 1.0]]]).unwrap();
    assert_eq!(body["data"][0]["probs"], json!([0.0, 2.0, 1.0]));
    // One class is told by its probability, too.
    let body = answer(PoolingEndpoint::Classify, json!({"input": "a"}), Scorer::reward().model(), &[&[&[-1.5]]]);
    assert_near(&body.unwrap()["data"][0]["probs"][0], sigmoid(-1.5));
}

#[test]
fn pairs_are_questions_and_answers_in_the_scorers_form() {
    let scorer = Scorer::reward();
    let names = [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")];
    for (first, second) in names {
        let body = json!({first: "2?", second: ["3", "4"]});
        let request = read(PoolingEndpoint::Score, body, scorer.model()).unwrap();
        let shown = |answer: &str| encoded(&format!("[user] 2?\n[assistant] {answer}\n"), AddSpecial::No);
        assert_eq!((&request.texts[0].tokens, &request.texts[1].tokens), (&shown("3"), &shown("4")), "{first}");
    }
    let each = json!({"queries": ["a", "b"], "documents": ["c", {"content": [{"type": "text", "text": "d"}]}]});
    let values: &[&[&[f32]]] = &[&[&[1.0]], &[&[-2.0]]];
    let body = answer(PoolingEndpoint::Score, each.clone(), scorer.model(), values).unwrap();
    assert_near(&body["data"][0]["score"], sigmoid(1.0));
    assert_eq!((&body["data"][1]["object"], &body["data"][1]["index"]), (&json!("score"), &json!(1)));
    let mut raw = each;
    raw["use_activation"] = false.into();
    let body = answer(PoolingEndpoint::Score, raw, scorer.model(), values).unwrap();
    assert_eq!(body["data"][1]["score"], -2.0);
    // Several classes: by the form's column.
    let body = json!({"text_1": "a", "text_2": "b"});
    let body = answer(PoolingEndpoint::Score, body, Scorer::classifier().model(), &[&[&[0.0, 2.0, 1.0]]]).unwrap();
    assert_near(&body["data"][0]["score"], 1f64.exp() / (1.0 + 2f64.exp() + 1f64.exp()));
}

#[test]
fn the_best_documents_come_first() {
    let scorer = Scorer::reward();
    let values: &[&[&[f32]]] = &[&[&[0.5]], &[&[2.0]], &[&[0.5]], &[&[-1.0]]];
    let mut body = json!({"query": "q", "documents": ["a", "b", "c", "d"], "use_activation": false});
    let all = answer(PoolingEndpoint::Rerank, body.clone(), scorer.model(), values).unwrap();
    let order = |body: &Value| -> Vec<u64> {
        body["results"].as_array().unwrap().iter().map(|result| result["index"].as_u64().unwrap()).collect()
    };
    // Of equal ones, the first.
    assert_eq!(order(&all), [1, 0, 2, 3]);
    let first = &all["results"][0];
    assert_eq!((&first["document"]["text"], &first["relevance_score"]), (&json!("b"), &json!(2.0)));
    assert_eq!((&first["document"]["multi_modal"], &all["id"]), (&Value::Null, &json!("pooling-7")));
    body["top_n"] = 2.into();
    assert_eq!(order(&answer(PoolingEndpoint::Rerank, body, scorer.model(), values).unwrap()), [1, 0]);
}

#[test]
fn texts_of_pairs_are_shortened_to_so_many_tokens() {
    let scorer = Scorer::reward();
    let long = "1 2 3 4 5 6 7 8 9";
    let body = json!({"queries": long, "documents": long, "max_tokens_per_doc": 4});
    let request = read(PoolingEndpoint::Score, body, scorer.model()).unwrap();
    let shown = tokenizer().decode(&request.texts[0].tokens);
    let (question, answer) = shown.split_once("[assistant] ").unwrap();
    assert!(question.contains(long), "{shown}");
    assert!(long.starts_with(answer.trim_end()) && encoded(answer.trim_end(), AddSpecial::No).len() <= 4, "{shown}");
}

#[test]
fn vectors_have_length_one_and_are_compared_by_their_cosine() {
    let values: &[&[&[f32]]] = &[&[&[3.0, 4.0]], &[&[0.0, 0.0]]];
    let body = answer(PoolingEndpoint::Embeddings, json!({"input": ["a", "b"]}), EMBEDDER, values).unwrap();
    assert_eq!(body["data"][0], json!({"index": 0, "object": "embedding", "embedding": [0.6, 0.8]}));
    assert_eq!(body["data"][1]["embedding"], json!([0.0, 0.0]));
    let raw = json!({"input": ["a", "b"], "use_activation": false});
    let body = answer(PoolingEndpoint::Pooling, raw, EMBEDDER, values).unwrap();
    assert_eq!(body["data"][0], json!({"index": 0, "object": "pooling", "data": [3.0, 4.0]}));
    let pairs = json!({"text_1": "a", "text_2": ["b", "c"]});
    let values: &[&[&[f32]]] = &[&[&[1.0, 0.0]], &[&[2.0, 2.0]], &[&[0.0, -3.0]]];
    let body = answer(PoolingEndpoint::Score, pairs, EMBEDDER, values).unwrap();
    assert_near(&body["data"][0]["score"], 0.5f64.sqrt());
    assert_near(&body["data"][1]["score"], 0.0);
}

#[test]
fn numbers_are_written_as_bytes_where_that_is_asked_for() {
    let bytes = |more: Value| {
        let mut body = json!({"input": "a", "use_activation": false, "encoding_format": "base64"});
        body.as_object_mut().unwrap().extend(object(more));
        let body = answer(PoolingEndpoint::Embeddings, body, EMBEDDER, &[&[&[1.0, -2.5]]]).unwrap();
        STANDARD.decode(body["data"][0]["embedding"].as_str().unwrap()).unwrap()
    };
    let floats = [1f32, -2.5].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
    assert_eq!(bytes(json!({"endianness": "little"})), floats);
    let big = [1f32, -2.5].iter().flat_map(|x| x.to_be_bytes()).collect::<Vec<_>>();
    assert_eq!(bytes(json!({"endianness": "big"})), big);
    assert_eq!(bytes(json!({"embed_dtype": "float16", "endianness": "little"})), [0x00, 0x3c, 0x00, 0xc1]);
    assert_eq!(bytes(json!({"embed_dtype": "bfloat16", "endianness": "big"})), [0x3f, 0x80, 0xc0, 0x20]);
}

#[test]
fn what_is_wrong_is_refused_by_its_name() {
    let (scorer, steps) = (Scorer::reward(), Scorer::steps());
    let (pooling, score, rerank) = (PoolingEndpoint::Pooling, PoolingEndpoint::Score, PoolingEndpoint::Rerank);
    let embeddings = PoolingEndpoint::Embeddings;
    let cases = [
        (pooling, json!({}), "input"),
        (pooling, json!({"input": []}), "input"),
        (pooling, json!({"input": "a", "messages": []}), "input"),
        (pooling, json!({"input": ["a", 5]}), "input"),
        (pooling, json!({"input": [5, "a"]}), "input"),
        (pooling, json!({"input": [999_999]}), "input"),
        (pooling, json!({"input": "", "add_special_tokens": false}), "input"),
        (pooling, json!({"input": "a", "normalize": true}), "normalize"),
        (pooling, json!({"input": "a", "task": "embed"}), "task"),
        (pooling, json!({"input": "a", "task": "encode"}), "task"),
        (pooling, json!({"input": "a", "dimensions": 3}), "dimensions"),
        (pooling, json!({"input": "a", "encoding_format": "bytes"}), "encoding_format"),
        (pooling, json!({"input": "a", "embed_dtype": "fp8_e4m3"}), "embed_dtype"),
        (pooling, json!({"input": "a", "truncate_prompt_tokens": -2}), "truncate_prompt_tokens"),
        (pooling, json!({"input": "a", "padding": "max_length"}), "padding"),
        (pooling, json!({"input": "a", "temperature": 0}), "temperature"),
        (pooling, json!({"input": "a", "model": "tuned"}), "model"),
        (pooling, json!({"input": "a", "model": "other"}), "model"),
        (pooling, json!({"input": "a", "cache_salt": ""}), "cache_salt"),
        (
            pooling,
            json!({"messages": [{"role": "assistant", "content": "a"}], "add_generation_prompt": true,
                   "continue_final_message": true}),
            "add_generation_prompt",
        ),
        (embeddings, json!({"input": "a"}), "model"),
        (score, json!({"queries": "a"}), "queries"),
        (score, json!({"queries": [], "documents": "a"}), "queries"),
        (score, json!({"queries": "a", "documents": []}), "documents"),
        (score, json!({"queries": ["a", "b"], "documents": ["a", "b", "c"]}), "documents"),
        (score, json!({"queries": "a", "documents": [{"content": [{"type": "image_url"}]}]}), "documents"),
        (score, json!({"queries": "a", "documents": "b", "top_n": 1}), "top_n"),
        (score, json!({"queries": "a", "documents": "b", "instruction": "c"}), "instruction"),
        (score, json!({"queries": "a", "documents": "b", "max_tokens_per_doc": 4096}), "max_tokens_per_doc"),
        (rerank, json!({"documents": ["b"]}), "query"),
        (rerank, json!({"query": ["a"], "documents": ["b"]}), "query"),
        (rerank, json!({"query": "a", "documents": ["b"], "top_n": -1}), "top_n"),
    ];
    for (endpoint, body, field) in cases {
        let refusal = read(endpoint, body.clone(), scorer.model()).err().unwrap_or_else(|| panic!("{body}"));
        assert_eq!(refusal.param.as_deref(), Some(field), "{body}: {}", refusal.message);
    }
    let raw = json!({"queries": "a", "documents": "b", "use_activation": false});
    let refusal = read(score, raw, steps.model()).err().unwrap();
    assert_eq!(refusal.param.as_deref(), Some("use_activation"));
    let refusal = read(PoolingEndpoint::Classify, json!({"input": "a"}), EMBEDDER).err().unwrap();
    assert!(refusal.status() == 404 && refusal.message.contains("/v1/embeddings"), "{}", refusal.message);
    let matryoshka = read(embeddings, json!({"input": "a", "dimensions": 3}), EMBEDDER).err().unwrap();
    assert!(matryoshka.message.contains("Matryoshka"), "{}", matryoshka.message);
}

#[test]
fn values_that_are_no_numbers_are_named() {
    for value in [f32::NAN, f32::INFINITY] {
        let values: &[&[&[f32]]] = &[&[&[0.0]], &[&[value]]];
        let refusal =
            answer(PoolingEndpoint::Classify, json!({"input": [[5], [6, 7]]}), Scorer::reward().model(), values);
        let refusal = refusal.unwrap_err();
        assert_eq!((refusal.status(), refusal.code), (500, "not_finite"));
        assert!(refusal.message.contains("text 1 at its token 1"), "{}", refusal.message);
    }
}

#[test]
fn every_path_is_of_one_endpoint() {
    let paths = PoolingEndpoint::ALL.into_iter().flat_map(|endpoint| endpoint.paths().iter().copied());
    let mut paths: Vec<&str> = paths.collect();
    paths.sort_unstable();
    let expected =
        ["/classify", "/pooling", "/rerank", "/score", "/v1/embeddings", "/v1/rerank", "/v1/score", "/v2/rerank"];
    assert_eq!(paths, expected);
}
