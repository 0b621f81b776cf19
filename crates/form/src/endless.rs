//! What a walk over the rules of a grammar finds: whether some text ends it, or each rule needs another one without
//! end; what memory it takes, about; and whether it counts tokens, or has another grammar in it.

use llguidance::earley::{CGrammar, CSymIdx};

/// Whether some text has the grammar, as far as its rules tell. Conditions of rules are taken to hold.
pub(crate) fn has_text(grammar: &CGrammar) -> bool {
    let mut symbols = vec![grammar.start()];
    let mut is_known = Seen::default();
    is_known.add(grammar.start());
    // Symbols with a text, whose rules are yet to be told; and for each symbol the rules that have it.
    let mut ended: Vec<CSymIdx> = Vec::new();
    let mut rules_with: Vec<Vec<usize>> = Vec::new();
    // For each rule: whose it is, and how many of its symbols are not known to have a text.
    let mut rules: Vec<(CSymIdx, usize)> = Vec::new();
    while let Some(symbol) = symbols.pop() {
        let data = grammar.sym_data(symbol);
        let is_nullable = data.is_nullable || !data.cond_nullable.is_empty();
        if data.is_terminal || is_nullable || (data.rules.is_empty() && data.gen_grammar.is_some()) {
            ended.push(symbol);
        }
        for &rule in &data.rules {
            let (needed, _, _) = grammar.rule_rhs(rule);
            for &inner in needed {
                if rules_with.len() <= inner.as_index() {
                    rules_with.resize(inner.as_index() + 1, Vec::new());
                }
                rules_with[inner.as_index()].push(rules.len());
                if is_known.add(inner) {
                    symbols.push(inner);
                }
            }
            rules.push((symbol, needed.len()));
        }
    }
    let mut has_text = Seen::default();
    ended.iter().for_each(|symbol| _ = has_text.add(*symbol));
    while let Some(symbol) = ended.pop() {
        for &rule in rules_with.get(symbol.as_index()).into_iter().flatten() {
            let (whose, left) = &mut rules[rule];
            *left -= 1;
            if *left == 0 && has_text.add(*whose) {
                ended.push(*whose);
            }
        }
    }
    has_text.has(grammar.start())
}

/// Bytes of a grammar, about: of its symbols that are reached, and of their rules.
pub(crate) fn grammar_bytes(grammar: &CGrammar) -> usize {
    /// Of each: the symbol's data with its name, and a symbol with its parameter in a rule.
    const SYMBOL: usize = 256;
    const IN_RULE: usize = 24;
    let mut bytes = 0;
    for_each_symbol(grammar, |_, in_rules| bytes += SYMBOL + IN_RULE * in_rules);
    bytes
}

/// Whether some rule of a grammar may take so many tokens at most.
pub(crate) fn limits_tokens(grammar: &CGrammar) -> bool {
    let mut limits = false;
    for_each_symbol(grammar, |symbol, _| limits |= grammar.sym_data(symbol).props.max_tokens != usize::MAX);
    limits
}

/// Whether a grammar has another one in it.
pub(crate) fn nests(grammar: &CGrammar) -> bool {
    let mut nests = false;
    for_each_symbol(grammar, |symbol, _| nests |= grammar.sym_data(symbol).gen_grammar.is_some());
    nests
}

/// Calls `of` with each symbol of a grammar that is reached, and the size of its rules: the symbols in them and their
/// ends.
fn for_each_symbol(grammar: &CGrammar, mut of: impl FnMut(CSymIdx, usize)) {
    let mut symbols = vec![grammar.start()];
    let mut is_known = Seen::default();
    is_known.add(grammar.start());
    while let Some(symbol) = symbols.pop() {
        let mut in_rules = 0;
        for &rule in &grammar.sym_data(symbol).rules {
            let (needed, _, _) = grammar.rule_rhs(rule);
            in_rules += needed.len() + 1;
            symbols.extend(needed.iter().copied().filter(|inner| is_known.add(*inner)));
        }
        of(symbol, in_rules);
    }
}

/// A set of symbols.
#[derive(Default)]
struct Seen(Vec<bool>);

impl Seen {
    fn has(&self, symbol: CSymIdx) -> bool {
        self.0.get(symbol.as_index()).copied().unwrap_or(false)
    }

    /// Adds a symbol. Whether it was not there.
    fn add(&mut self, symbol: CSymIdx) -> bool {
        if self.0.len() <= symbol.as_index() {
            self.0.resize(symbol.as_index() + 1, false);
        }
        !std::mem::replace(&mut self.0[symbol.as_index()], true)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::spec::Form;
    use crate::trial::parser;
    use crate::vocabulary::FormVocabulary;

    fn fits(form: &Form) -> bool {
        match parser(form, &FormVocabulary::of_bytes(256, Vec::new(), Vec::new())) {
            Ok(_) => true,
            Err(refusal) => {
                assert!(refusal.found.contains("without end"), "{refusal:?}");
                false
            }
        }
    }

    #[test]
    fn schemas_that_need_themselves_are_refused() {
        let properties = json!({"next": {"$ref": "#/$defs/node"}, "id": {}});
        let node = |required: Value| json!({"type": "object", "required": required, "properties": properties});
        let of = |node: Value| fits(&Form::Json(json!({"$defs": {"node": node}, "$ref": "#/$defs/node"})));
        assert!(of(node(json!([]))));
        assert!(of(node(json!(["id"]))));
        assert!(!of(node(json!(["next"]))));
        assert!(of(json!({"anyOf": [{"type": "null"}, node(json!(["next"]))]})));
        let list = |least: usize| json!({"type": "array", "items": {"$ref": "#/$defs/node"}, "minItems": least});
        assert!(of(list(0)));
        assert!(!of(list(1)));
    }

    #[test]
    fn rules_that_need_themselves_are_refused() {
        let of = |rules: &str| fits(&Form::Lark(rules.to_string()));
        assert!(!of("start: \"(\" start \")\""));
        assert!(of("start: \"(\" start \")\" | \"x\""));
        assert!(of("start: \"(\" start? \")\""));
        assert!(!of("start: \"a\" b\nb: \"b\" c\nc: \"c\" b"));
        assert!(of("start: \"a\" b*\nb: \"b\" c\nc: \"c\" b"));
        assert!(of("start: %json {\"type\": \"integer\"}"));
    }
}
