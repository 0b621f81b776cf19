//! Forms over the bundled model's tokenizer: masks, forks, marks of reasoning, refusals.

mod masks;

use std::path::Path;
use std::sync::Arc;

use offshoot_core::ids::TokenId;
use offshoot_form::{CompiledForm, Form, FormCompiler};
use offshoot_text::Tokenizer;

/// The bundled model's tokenizer.
fn tokenizer() -> Arc<Tokenizer> {
    let folder = Path::new(offshoot_fixtures::REPOSITORY).join("tasks/models/demo");
    Arc::new(Tokenizer::load(&folder).expect("the bundled model has a tokenizer"))
}

fn compiler() -> FormCompiler {
    let tokenizer = tokenizer();
    let ends: Vec<TokenId> = tokenizer.eos().into_iter().collect();
    assert!(!ends.is_empty(), "the bundled model names an end of text");
    let vocab = tokenizer.vocab_size() + 3;
    FormCompiler::new(tokenizer, ends, vocab)
}

fn compile(compiler: &FormCompiler, form: Form) -> Arc<CompiledForm> {
    compiler.compile(&Arc::new(form)).expect("the form compiles")
}
