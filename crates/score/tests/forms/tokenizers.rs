//! Tokenizers for the tests: the bundled model's with further special tokens, and those of ../shared.

use std::io::Read;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;
use offshoot_score::{HeadFacts, ResolvedForm, ScoreForm};
use offshoot_text::{AddSpecial, Message, Tokenizer};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::shared::shared;

/// Turns between marks, as Qwen's models have them.
pub const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + \
                          '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}\
                          {% endif %}";

/// Turns below headers, as Llama 3's models have them: contents are trimmed.
pub const HEADERS: &str = "{{ '<|begin_of_text|>' }}{% for message in messages %}{{ '<|start_header_id|>' + \
                           message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}\
                           {% endfor %}{% if add_generation_prompt %}\
                           {{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

/// A tokenizer and the folder that it was read from.
pub struct TestTokenizer {
    pub tokenizer: Arc<Tokenizer>,
    _folder: TempDir,
}

impl TestTokenizer {
    /// `tokenizer`: a tokenizer.json, to which special tokens are added; `config`: tokenizer_config.json.
    fn new(mut tokenizer: Value, special: &[&str], config: &Value) -> TestTokenizer {
        let folder = TempDir::new().unwrap();
        let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap().values();
        let added = tokenizer["added_tokens"].as_array().unwrap().iter().map(|token| &token["id"]);
        let ids = vocabulary.chain(added).map(|id| id.as_u64().unwrap());
        let next = ids.max().unwrap() + 1;
        for (id, text) in (next..).zip(special) {
            tokenizer["added_tokens"]
                .as_array_mut()
                .unwrap()
                .push(json!({"id": id, "content": text, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false, "special": true}));
        }
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let tokenizer = Arc::new(Tokenizer::load(folder.path()).unwrap());
        TestTokenizer { tokenizer, _folder: folder }
    }

    /// The bundled model's, with the marks of both templates and a tag.
    pub fn demo(template: &str) -> TestTokenizer {
        TestTokenizer::bundled(&["<extra_0>"], &json!({"chat_template": template, "bos_token": "<|begin_of_text|>"}))
    }

    pub fn bundled(special: &[&str], config: &Value) -> TestTokenizer {
        const MARKS: [&str; 5] =
            ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"];
        let path = Path::new(offshoot_fixtures::REPOSITORY).join("tasks/models/demo/tokenizer.json");
        TestTokenizer::new(read(&std::fs::read(path).unwrap()), &[&MARKS[..], special].concat(), config)
    }

    /// Qwen 2's, with the tag of its step scorer.
    pub fn qwen2() -> Option<Arc<Tokenizer>> {
        static LOADED: OnceLock<TestTokenizer> = OnceLock::new();
        let path = shared("data/tokenizers/qwen2/tokenizer.json.gz")?;
        let load = || {
            let mut bytes = Vec::new();
            flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
            let config = json!({"chat_template": CHATML, "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>",
                "tokenizer_class": "Qwen2Tokenizer"});
            TestTokenizer::new(read(&bytes), &["<extra_0>"], &config)
        };
        Some(Arc::clone(&LOADED.get_or_init(load).tokenizer))
    }

    /// Llama 3's.
    pub fn llama3() -> Option<Arc<Tokenizer>> {
        static LOADED: OnceLock<TestTokenizer> = OnceLock::new();
        let path = shared("data/tokenizers/llama3/tokenizer.json")?;
        let load = || {
            let config = json!({"chat_template": HEADERS, "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>",
                "tokenizer_class": "PreTrainedTokenizerFast"});
            TestTokenizer::new(read(&std::fs::read(path).unwrap()), &[], &config)
        };
        Some(Arc::clone(&LOADED.get_or_init(load).tokenizer))
    }

    /// Mistral's first one, as its folder has it.
    pub fn mistral() -> Option<Arc<Tokenizer>> {
        Some(Arc::new(Tokenizer::load(&shared("data/tokenizers/mistral")?).unwrap()))
    }
}

fn read(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

/// A head of this width without labels or padding.
pub fn head(width: usize) -> HeadFacts {
    HeadFacts { width, labels: Vec::new(), padding: None }
}

pub fn built_in(name: &str) -> ScoreForm {
    ScoreForm::built_in(name).unwrap()
}

pub fn form(written: Value) -> ScoreForm {
    serde_json::from_value(written).unwrap()
}

pub fn resolve(form: &ScoreForm, tokenizer: &Arc<Tokenizer>, head: &HeadFacts) -> Result<ResolvedForm> {
    ResolvedForm::new(form, Arc::clone(tokenizer), head, UNIX_EPOCH)
}

pub fn resolved(form: &ScoreForm, tokenizer: &Arc<Tokenizer>, width: usize) -> ResolvedForm {
    resolve(form, tokenizer, &head(width)).unwrap()
}

/// A user's question.
pub fn asked(text: &str) -> Vec<Message> {
    vec![Message::user(text)]
}

/// The tokens of a text as transformers makes them.
pub fn tokens(tokenizer: &Tokenizer, text: &str) -> Vec<TokenId> {
    tokenizer.encode(text, AddSpecial::No).unwrap()
}

/// Where a token stands.
pub fn places(tokens: &[TokenId], of: TokenId) -> Vec<usize> {
    (0..tokens.len()).filter(|&at| tokens[at] == of).collect()
}
