//! What a form needs and a tokenizer, a template or a head lacks is named before anything is scored.

use offshoot_core::error::Error;
use offshoot_score::ScoreForm;
use serde_json::{Value, json};

use crate::tokenizers::{CHATML, HEADERS, TestTokenizer, asked, built_in, form, head, resolve, resolved};

fn fault(form: &ScoreForm, tokenizer: &TestTokenizer, width: usize) -> String {
    let error = resolve(form, &tokenizer.tokenizer, &head(width)).map(|_| ()).unwrap_err();
    assert!(!matches!(error, Error::Internal(_)), "{error}");
    error.to_string()
}

fn names(error: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| error.contains(part)), "{error}: {parts:?}");
}

#[test]
fn a_tag_that_is_no_token() {
    let without = TestTokenizer::bundled(&[], &json!({"chat_template": CHATML}));
    let folder = without.tokenizer.folder().display().to_string();
    names(&fault(&built_in("step-tag"), &without, 2), &["`tag`", "<extra_0>", "one token", &folder]);
}

/// What looks like a special token and is none would be read as plain text, and the scores be those of another text.
#[test]
fn special_tokens_that_are_none() {
    let demo = TestTokenizer::demo(CHATML);
    let folder = demo.tokenizer.folder().display().to_string();
    let column = json!({"column": {"activation": "none"}});
    let plain = |text: &str, read: Value| {
        let text = json!({"plain": {"text": text, "special_tokens": false, "read": read}});
        json!({"text": text, "output": column})
    };
    let chat = |read: Value| json!({"text": {"chat": {"read": read}}, "output": column});
    let both = "{{question}} {{answer}}";
    let cases = [
        (plain(both, json!({"parts": {"separator": "<extra_9>"}})), "`separator`", "<extra_9>"),
        (plain(both, json!({"parts": {"end": "<|step|>"}})), "`end`", "<|step|>"),
        (chat(json!({"parts": {"separator": "<step>"}})), "`separator`", "<step>"),
        (plain(both, json!({"tags": {"tag": " -", "between": "<sep>"}})), "`between`", "<sep>"),
        (chat(json!({"end": {"append": "\n<|end|>"}})), "`append`", "<|end|>"),
        (plain("<|user|>{{question}} {{answer}}", json!({"end": {}})), "`text`", "<|user|>"),
        (chat(json!({"question": {"text": "{{question}}<|mid|>{{answer}}?"}})), "`text`", "<|mid|>"),
    ];
    for (own, field, special) in cases {
        names(&fault(&form(own), &demo, 1), &[field, special, "looks like a special one", "tokens there", &folder]);
    }
    // One that the tokenizer knows, and texts between which steps are cut alone.
    let known = TestTokenizer::bundled(&["<extra_9>"], &json!({"chat_template": CHATML}));
    for own in [
        plain(both, json!({"parts": {"separator": "<extra_9>"}})),
        plain(both, json!({"parts": {"separator": "<step>", "end": "<extra_9>"}})),
        chat(json!({"end": {"append": "<extra_9>"}})),
    ] {
        resolve(&form(own), &known.tokenizer, &head(1)).map(|_| ()).unwrap();
    }
}

#[test]
fn words_that_are_no_tokens() {
    let demo = TestTokenizer::demo(CHATML);
    let of = |output: Value| form(json!({"text": {"chat": {"read": {"end": {}}}}, "output": output}));
    let words = |good: Value, bad: Value| of(json!({"words": {"good": good, "bad": bad}}));
    names(
        &fault(&words(json!(["unquestionably"]), json!(["-"])), &demo, 2),
        &["`good`", "unquestionably", "tokens there"],
    );
    names(&fault(&words(json!(["+"]), json!([1_000_000])), &demo, 2), &["`bad`", "1000000"]);
    names(&fault(&words(json!(["+"]), json!([])), &demo, 1), &["`bad`", "at least one"]);
    names(&fault(&words(json!(["+"]), json!(["-", "+"])), &demo, 3), &["twice"]);
    names(&fault(&of(json!({"logit": {"token": ""}})), &demo, 1), &["`token`", "none of its own"]);
}

#[test]
fn no_chat_template() {
    let without = TestTokenizer::bundled(&["<extra_0>"], &json!({}));
    let folder = without.tokenizer.folder().display().to_string();
    for name in ["step-tag", "last-token", "words-at-turn"] {
        let width = if name == "last-token" { 1 } else { 2 };
        names(&fault(&built_in(name), &without, width), &["chat template", &folder]);
    }
    let mut own = serde_json::to_value(built_in("step-tag")).unwrap();
    own["text"]["chat"]["template"] = CHATML.into();
    resolve(&form(own), &without.tokenizer, &head(2)).map(|_| ()).unwrap();
    resolve(&built_in("separator"), &without.tokenizer, &head(2)).map(|_| ()).unwrap();
}

#[test]
fn heads_that_do_not_fit() {
    let demo = TestTokenizer::demo(CHATML);
    names(&fault(&built_in("last-token"), &demo, 3), &["`column`", "several columns"]);
    names(&fault(&built_in("step-tag"), &demo, 1), &["`activation`", "sigmoid"]);
    let mut product = built_in("last-token");
    product.aggregate = offshoot_score::Aggregate::Product;
    names(&fault(&product, &demo, 1), &["`aggregate`", "`product`", "`activation`"]);
}

/// A template that drops reasoning drops the tags in it, and one that shows a text twice has every tag twice.
#[test]
fn templates_that_lose_or_repeat_steps() {
    let drops = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}";
    let demo = TestTokenizer::demo(drops);
    let scorer = resolved(&built_in("step-tag"), &demo.tokenizer, 2);
    let lost = scorer.render(&asked("q"), &["<think>1 + 1\n\n", "is 2</think>It is 2."]).unwrap_err().to_string();
    names(&lost, &["leaves out or repeats", "of 2 places", "writes 1"]);
    let twice = TestTokenizer::demo("{% for m in messages %}{{ m.content + m.content }}{% endfor %}");
    names(&fault(&built_in("step-tag"), &twice, 2), &["leaves out or repeats", "writes 4"]);
    names(&fault(&built_in("last-token"), &twice, 1), &["writes 2"]);
}

#[test]
fn answers_without_steps_and_questions_without_a_user() {
    let demo = TestTokenizer::demo(HEADERS);
    for name in ["step-tag", "step-lines", "separator", "words-at-turn"] {
        let width = if name == "step-lines" { 1 } else { 2 };
        let scorer = resolved(&built_in(name), &demo.tokenizer, width);
        let error = scorer.render(&asked("q"), &["", "\n\n"][..1]).unwrap_err().to_string();
        names(&error, &["at least one step with text"]);
    }
    let scorer = resolved(&built_in("words-at-turn"), &demo.tokenizer, 2);
    let question = [offshoot_text::Message::system("Be brief.")];
    names(&scorer.render(&question, &["a"]).unwrap_err().to_string(), &["ends with a user's text"]);
    // A whole answer may be empty: it has a value.
    let whole = resolved(&built_in("last-token"), &demo.tokenizer, 1).render(&asked("q"), &[""]).unwrap();
    assert_eq!((whole.trunk, whole.reads.len()), (1, 1));
}

/// Behind a tag that is one token with the beginning of the next step there is no tag.
#[test]
fn a_step_that_changes_its_tag() {
    let demo = TestTokenizer::demo(CHATML);
    let own = form(json!({
        "text": {"plain": {"text": "{{question}} {{answer}}", "special_tokens": false,
            "read": {"tags": {"tag": " >"}}}},
        "output": {"words": {"good": [" *"], "bad": [" -"]}}
    }));
    let scorer = resolved(&own, &demo.tokenizer, 2);
    let between = scorer.render(&asked("q"), &["a", "> b"]).unwrap_err().to_string();
    names(&between, &["step 1", "` >`", "behind it"]);
}
