use offshoot_score::{HeadFacts, ResolvedForm, ScoreForm};
use offshoot_text::{AddSpecial, ChatOptions, Message, Speaker, Tokenizer};
use serde_json::{Value, json};
use std::io::Read;
use std::sync::Arc;
use std::time::{Instant, UNIX_EPOCH};

const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

fn main() {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open("/work/shared/data/tokenizers/qwen2/tokenizer.json.gz").unwrap())
        .read_to_end(&mut bytes)
        .unwrap();
    let mut t: Value = serde_json::from_slice(&bytes).unwrap();
    let next = 151650;
    t["added_tokens"].as_array_mut().unwrap().push(json!({"id": next, "content": "<extra_0>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}));
    let dir = tempfile::TempDir::new().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), t.to_string()).unwrap();
    std::fs::write(dir.path().join("tokenizer_config.json"), json!({"chat_template": CHATML, "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "tokenizer_class": "Qwen2Tokenizer"}).to_string()).unwrap();
    let tokenizer = Arc::new(Tokenizer::load(dir.path()).unwrap());
    let words = [
        "the",
        "number",
        "of",
        "apples",
        "is",
        "therefore",
        "equal",
        "to",
        "we",
        "have",
        "then",
        "x",
        "12",
        "(3",
        "+",
        "4)",
        "=",
        "7,",
        "so",
        "that",
        "each",
        "side",
        "of",
        "triangle",
        "has",
        "length",
        "\\frac{3}{4}",
        "and",
        "hence",
    ];
    let mut seed = 1u64;
    let mut next = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize
    };
    let mut steps: Vec<String> = Vec::new();
    for s in 0..32 {
        let mut step = format!("Step {s}:");
        for _ in 0..40 {
            step.push(' ');
            step.push_str(words[next() % words.len()]);
        }
        step.push_str(".\n\n");
        steps.push(step);
    }
    let question = [Message::user("A farmer has 12 apples and gives a third of them to his neighbour, who returns two. How many apples has the farmer now? ".repeat(3))];
    for (name, width) in [("last-token", 1), ("step-tag", 2), ("step-lines", 1)] {
        let form = ResolvedForm::new(
            &ScoreForm::built_in(name).unwrap(),
            tokenizer.clone(),
            &HeadFacts { width, labels: vec![], padding: None },
            UNIX_EPOCH,
        )
        .unwrap();
        let whole = form.render(&question, &steps).unwrap();
        let n = 8;
        let at = Instant::now();
        for _ in 0..n {
            for k in 1..=32 {
                form.render(&question, &steps[..k]).unwrap();
            }
        }
        let per = at.elapsed().as_secs_f64() / (n * 32) as f64;
        println!(
            "{name}: {} tokens; {:.0} us a thought; 8192 thoughts {:.2} s",
            whole.tokens.len(),
            per * 1e6,
            per * 8192.0
        );
    }
    let text: String = steps.concat();
    let bench = |what: &str, f: &dyn Fn()| {
        let at = Instant::now();
        for _ in 0..50 {
            f()
        }
        println!("{what}: {:.0} us of the whole text of {} bytes", at.elapsed().as_secs_f64() / 50.0 * 1e6, text.len());
    };
    bench("hide", &|| {
        tokenizer.hide_special(&text, Speaker::Assistant).unwrap();
    });
    let hidden = tokenizer.hide_special(&text, Speaker::Assistant).unwrap();
    bench("chat", &|| {
        tokenizer
            .chat_with(&[question[0].clone(), Message::assistant(hidden.clone())], &ChatOptions::default())
            .unwrap();
    });
    bench("encode", &|| {
        tokenizer.encode(&text, AddSpecial::No).unwrap();
    });
    bench("encode_hidden", &|| {
        tokenizer.encode_hidden(&hidden, AddSpecial::No).unwrap();
    });
    bench("encode_hidden_levels", &|| {
        tokenizer.encode_hidden_levels(&[hidden.clone()], AddSpecial::No).unwrap();
    });
}
