//! Grammars in GBNF (`root ::= …`), as llama.cpp and xgrammar read them, become grammars in Lark. `parse` reads one,
//! this module writes the other: what no recursion passes through becomes a terminal, which is matched exactly; rules
//! are left for what recurs.

mod parse;

use std::fmt::Write;

use offshoot_core::error::Result;

use super::spec::Form;
use parse::{Node, Rule};

impl Form {
    /// The form of this grammar, which is written in Lark or in GBNF.
    ///
    /// # Errors
    ///
    /// GBNF that can't be read. Whether Lark can be is found when it is compiled.
    pub fn of_grammar(text: &str) -> Result<Form> {
        let lark = match parse::is_gbnf(text) {
            true => Translation::of(&parse::rules(text)?),
            false => text.to_owned(),
        };
        Ok(Form::Lark(lark))
    }
}

/// A grammar in Lark so far.
struct Translation<'a> {
    rules: &'a [Rule],
    /// By rule: whether no recursion passes through it.
    is_terminal: Vec<bool>,
    lark: String,
    /// Terminals of runs within rules.
    runs: usize,
}

impl<'a> Translation<'a> {
    fn of(rules: &'a [Rule]) -> String {
        let mut made = Translation { rules, is_terminal: terminals(rules), lark: String::new(), runs: 0 };
        let root = rules.iter().position(|rule| rule.name == parse::ROOT).expect("a grammar that was read has a root");
        made.lark = format!("start: {}\n", made.name(root));
        for (index, rule) in rules.iter().enumerate() {
            let mut body = String::new();
            match made.is_terminal[index] {
                true => made.write_terminal(&rule.body, &mut body),
                false => made.write_rule(&rule.body, &mut body),
            }
            let name = made.name(index);
            writeln!(made.lark, "{name}: {body}").expect("memory takes it");
        }
        made.lark
    }

    /// The rule's name in Lark, where letters say what is a terminal. Its number keeps it apart from others.
    fn name(&self, rule: usize) -> String {
        let own: String =
            self.rules[rule].name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let name = format!("r{rule}_{own}");
        if self.is_terminal[rule] { name.to_ascii_uppercase() } else { name.to_ascii_lowercase() }
    }

    /// Whether no recursion passes through a part of a rule.
    fn is_regular(&self, node: &Node) -> bool {
        let mut is_regular = true;
        node.each_rule(&mut |rule| is_regular &= self.is_terminal[rule]);
        is_regular
    }

    /// Writes what no recursion passes through.
    fn write_terminal(&self, node: &Node, out: &mut String) {
        match node {
            Node::Literal(text) => out.push_str(&quoted(text)),
            Node::Class(class) => write!(out, "/{class}/").expect("memory takes it"),
            Node::Rule(rule) => out.push_str(&self.name(*rule)),
            Node::Choice(all) => grouped(out, all, " | ", |one, out| self.write_terminal(one, out)),
            Node::Sequence(all) => grouped(out, all, " ", |one, out| self.write_terminal(one, out)),
            Node::Repeat { of, least, most } => {
                self.write_terminal(of, out);
                write_count(*least, *most, out);
            }
        }
    }

    /// Writes a part of a rule that recurs; each run of its parts that do not becomes a terminal.
    fn write_rule(&mut self, node: &Node, out: &mut String) {
        if self.is_regular(node) {
            return self.write_run(std::slice::from_ref(node), out);
        }
        match node {
            Node::Literal(_) | Node::Class(_) => self.write_terminal(node, out),
            Node::Rule(rule) => out.push_str(&self.name(*rule)),
            Node::Choice(all) => {
                out.push('(');
                for (at, one) in all.iter().enumerate() {
                    out.push_str(if at > 0 { " | " } else { "" });
                    self.write_rule(one, out);
                }
                out.push(')');
            }
            Node::Sequence(all) => {
                out.push('(');
                let runs: Vec<&[Node]> = all.chunk_by(|a, b| self.is_regular(a) && self.is_regular(b)).collect();
                for (at, run) in runs.into_iter().enumerate() {
                    out.push_str(if at > 0 { " " } else { "" });
                    match run {
                        [one] => self.write_rule(one, out),
                        several => self.write_run(several, out),
                    }
                }
                out.push(')');
            }
            Node::Repeat { of, least, most } => {
                self.write_rule(of, out);
                write_count(*least, *most, out);
            }
        }
    }

    /// Writes a run of parts that no recursion passes through as one terminal.
    fn write_run(&mut self, run: &[Node], out: &mut String) {
        if let [one @ (Node::Literal(_) | Node::Class(_) | Node::Rule(_))] = run {
            return self.write_terminal(one, out);
        }
        let mut body = String::new();
        grouped(&mut body, run, " ", |one, out| self.write_terminal(one, out));
        let name = format!("T{}", self.runs);
        self.runs += 1;
        writeln!(self.lark, "{name}: {body}").expect("memory takes it");
        out.push_str(&name);
    }
}

/// Writes all in parentheses, so that no operator binds to a part of them.
fn grouped(out: &mut String, all: &[Node], between: &str, mut write: impl FnMut(&Node, &mut String)) {
    out.push('(');
    if all.is_empty() {
        out.push_str("\"\"");
    }
    for (at, one) in all.iter().enumerate() {
        out.push_str(if at > 0 { between } else { "" });
        write(one, out);
    }
    out.push(')');
}

fn write_count(least: u32, most: Option<u32>, out: &mut String) {
    match (least, most) {
        (0, None) => out.push('*'),
        (1, None) => out.push('+'),
        (0, Some(1)) => out.push('?'),
        (least, None) => write!(out, "{{{least},}}").expect("memory takes it"),
        (least, Some(most)) => write!(out, "{{{least},{most}}}").expect("memory takes it"),
    }
}

/// A text as Lark writes it.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// By rule: whether no recursion passes through it, that is, whether all rules that it needs are of this kind.
fn terminals(rules: &[Rule]) -> Vec<bool> {
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); rules.len()];
    let mut waits_for = vec![0_usize; rules.len()];
    for (index, rule) in rules.iter().enumerate() {
        rule.body.each_rule(&mut |needed| {
            users[needed].push(index);
            waits_for[index] += 1;
        });
    }
    let mut is_terminal = vec![false; rules.len()];
    let mut ready: Vec<usize> = (0..rules.len()).filter(|&rule| waits_for[rule] == 0).collect();
    while let Some(rule) = ready.pop() {
        is_terminal[rule] = true;
        for &user in &users[rule] {
            waits_for[user] -= 1;
            if waits_for[user] == 0 {
                ready.push(user);
            }
        }
    }
    is_terminal
}

#[cfg(test)]
mod tests {
    use llguidance::api::TopLevelGrammar;
    use llguidance::toktrie::ApproximateTokEnv;
    use llguidance::{Matcher, ParserFactory};
    use proptest::prelude::*;

    use super::*;

    fn lark(text: &str) -> String {
        match Form::of_grammar(text) {
            Ok(Form::Lark(lark)) => lark,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn what_does_not_recur_is_a_terminal() {
        let text = "# Cities.\nroot ::= city \" is \" (\"big\" | \"small\")? [.!]{1,3}\n\
                    city ::= \"Par\\x69s\" |\n  \"Ro\\\"me\"";
        assert_eq!(
            lark(text),
            "start: R0_ROOT\n\
             R0_ROOT: (R1_CITY \" is \" (\"big\" | \"small\")? /[\\x{2e}\\x{21}]/{1,3})\n\
             R1_CITY: (\"Paris\" | \"Ro\\\"me\")\n"
        );
    }

    #[test]
    fn what_recurs_is_a_rule_with_terminals_between() {
        let text = "root ::= value\nvalue ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws | num ws\n\
                    num ::= [0-9]+ \"px\"\nws ::= [ \\n]*\n";
        assert_eq!(
            lark(text),
            "start: r0_root\n\
             r0_root: r1_value\n\
             T0: (\"[\" R2_WS)\n\
             T1: (\",\" R2_WS)\n\
             T2: (\"]\" R2_WS)\n\
             T3: ((R3_NUM R2_WS))\n\
             r1_value: ((T0 (r1_value (T1 r1_value)*)? T2) | T3)\n\
             R2_WS: /[\\x{20}\\x{a}]/*\n\
             R3_NUM: (/[0-9]/+ \"px\")\n"
        );
    }

    /// The library reads what is written, and accepts what the grammar in GBNF does.
    #[test]
    fn translations_accept_what_their_grammars_do() {
        let json = "root ::= object\nvalue ::= object | array | string | number | (\"true\" | \"null\") ws\n\
                    object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? \"}\" ws\n\
                    array ::= \"[\" ws (value (\",\" ws value)*)? \"]\" ws\n\
                    string ::= \"\\\"\" ([^\"\\\\\\x7F\\x00-\\x1F] \
                    | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4}))* \"\\\"\" ws\n\
                    number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ws\n\
                    ws ::= ([ \\t\\n] ws)?\n";
        let runs = "root ::= \"(\" root \")\" | word \"ing\" | . \"\\x7f\\u00e9\" {2}\nword ::= [a-z]+";
        let cases = [
            (json, "{\"a\": [1, -2.50, {\"\\u00e9\\n\": null}, true ], \"b\":\"\"}\n", true),
            (json, "{}", true),
            (json, "{\"a\": [1,]}", false),
            (json, "{\"a\": 01}", false),
            (runs, "((sing))", true),
            (runs, "ing", false),
            (runs, "-\u{7f}\u{e9}\u{7f}\u{e9}", true),
            (runs, "(sing", false),
        ];
        let tokens = ApproximateTokEnv::single_byte_env();
        let factory = ParserFactory::new_simple(&tokens).expect("a vocabulary of bytes");
        for (grammar, text, is_right) in cases {
            let grammar = TopLevelGrammar::from_lark(lark(grammar));
            let mut matcher = Matcher::new(factory.create_parser(grammar));
            let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
            let taken = matcher.try_consume_tokens(&bytes).expect("a grammar that compiles");
            let accepted = taken == bytes.len() && matcher.is_accepting().expect("it has not failed");
            assert_eq!(accepted, is_right, "{text}");
        }
    }

    proptest! {
        /// Whatever a client sends is translated or refused.
        #[test]
        fn any_text_is_translated_or_refused(
            parts in proptest::collection::vec(
                prop::sample::select(vec![
                    "root ::= ", "a ::= ", "\n", "root", "a", "\"x\"", "\"", "[a-z]", "[^", "]", "\\", "\\x41", "(",
                    ")", "|", "*", "+", "?", "{2}", "{1,", "}", ".", "#", "é", " ", "-", "::=",
                ]),
                0..40,
            )
        ) {
            let text = format!("root ::= {}", parts.concat());
            if let Ok(Form::Lark(lark)) = Form::of_grammar(&text) {
                prop_assert!(lark.starts_with("start: "), "{text}: {lark}");
            }
        }
    }

    #[test]
    fn lark_stays_as_it_is() {
        let text = "start: /[0-9]+/ \" ::= \"\n";
        assert_eq!(lark(text), text);
    }
}
