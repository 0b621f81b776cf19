//! Reads grammars in GBNF.

use std::collections::HashMap;

use offshoot_core::error::{Error, Result};

/// The rule that the whole text is.
pub const ROOT: &str = "root";
/// Most parentheses within each other, and most operators in a row.
const MOST_DEPTH: usize = 64;

/// A rule of a grammar.
pub struct Rule {
    pub name: String,
    pub body: Node,
}

/// A part of a rule.
#[derive(Debug)]
pub enum Node {
    /// A text.
    Literal(String),
    /// One character of a class, as a regular expression has it, with its brackets.
    Class(String),
    /// The rule of this index.
    Rule(usize),
    Choice(Vec<Node>),
    Sequence(Vec<Node>),
    /// `most`: `None` if there is no limit.
    Repeat {
        of: Box<Node>,
        least: u32,
        most: Option<u32>,
    },
}

impl Node {
    /// Calls `act` for each rule that is named in it.
    pub fn each_rule(&self, act: &mut impl FnMut(usize)) {
        match self {
            Node::Literal(_) | Node::Class(_) => {}
            Node::Rule(rule) => act(*rule),
            Node::Choice(all) | Node::Sequence(all) => all.iter().for_each(|one| one.each_rule(act)),
            Node::Repeat { of, .. } => of.each_rule(act),
        }
    }
}

/// Whether a line of a grammar begins with `name ::=`, which no line of Lark does.
pub fn is_gbnf(text: &str) -> bool {
    let begins = |line: &str| {
        let behind = line.trim_start().trim_start_matches(is_of_name);
        behind.len() < line.trim_start().len() && behind.trim_start().starts_with(DEFINES)
    };
    text.lines().any(begins)
}

const DEFINES: &str = "::=";

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// All rules of a grammar, which defines each that it names, and `root`.
///
/// # Errors
///
/// It is no such grammar.
pub fn rules(text: &str) -> Result<Vec<Rule>> {
    let mut parser = Parser { text, at: 0, names: HashMap::new(), depth: 0 };
    let mut bodies: HashMap<usize, Node> = HashMap::new();
    parser.skip_space();
    while !parser.rest().is_empty() {
        let name = parser.name().ok_or_else(|| parser.wrong("the name of a rule"))?;
        if !parser.takes(DEFINES) {
            return Err(parser.wrong("`::=` behind the name of a rule"));
        }
        let index = parser.index(name);
        let body = parser.choice()?;
        if bodies.insert(index, body).is_some() {
            return Err(wrong("each rule once", format!("`{name}` twice")));
        }
    }
    let mut names: Vec<(&str, usize)> = parser.names.into_iter().collect();
    names.sort_by_key(|&(_, index)| index);
    if !names.iter().any(|&(name, index)| name == ROOT && bodies.contains_key(&index)) {
        return Err(wrong("a rule `root`", "none"));
    }
    let rule = |(name, index): (&str, usize)| {
        let body =
            bodies.remove(&index).ok_or_else(|| wrong("a definition of each rule", format!("none of `{name}`")))?;
        Ok(Rule { name: name.to_owned(), body })
    };
    names.into_iter().map(rule).collect()
}

fn wrong(expected: &str, found: impl Into<String>) -> Error {
    Error::value("a grammar in GBNF", expected, found)
}

struct Parser<'t> {
    text: &'t str,
    /// Bytes that are read.
    at: usize,
    /// The index of each name that was met, in their order.
    names: HashMap<&'t str, usize>,
    /// Open parentheses.
    depth: usize,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    /// The error of what stands here.
    fn wrong(&self, expected: &str) -> Error {
        let line = self.text[..self.at].matches('\n').count() + 1;
        let found: String = self.rest().chars().take_while(|&c| c != '\n').take(20).collect();
        let found = if found.is_empty() { "nothing".to_owned() } else { format!("`{found}`") };
        wrong(expected, format!("{found} in line {line}"))
    }

    fn skip_space(&mut self) {
        loop {
            let rest = self.rest().trim_start();
            self.at = self.text.len() - rest.len();
            match rest.strip_prefix('#') {
                Some(comment) => {
                    self.at = self.text.len() - comment.len() + comment.find('\n').unwrap_or(comment.len())
                }
                None => return,
            }
        }
    }

    /// Whether `mark` stands here, which is read then, with the space behind it.
    fn takes(&mut self, mark: &str) -> bool {
        let stands = self.rest().starts_with(mark);
        if stands {
            self.at += mark.len();
            self.skip_space();
        }
        stands
    }

    fn name(&mut self) -> Option<&'t str> {
        let rest = self.rest();
        let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        self.at += end;
        self.skip_space();
        (end > 0).then(|| &rest[..end])
    }

    fn index(&mut self, name: &'t str) -> usize {
        let next = self.names.len();
        *self.names.entry(name).or_insert(next)
    }

    fn choice(&mut self) -> Result<Node> {
        let mut all = vec![self.sequence()?];
        while self.takes("|") {
            all.push(self.sequence()?);
        }
        Ok(one_or(all, Node::Choice))
    }

    fn sequence(&mut self) -> Result<Node> {
        let mut all = Vec::new();
        while let Some(item) = self.item()? {
            let item = self.repeated(item)?;
            all.push(item);
        }
        Ok(one_or(all, Node::Sequence))
    }

    /// The next part of a sequence; `None`: it has ended.
    fn item(&mut self) -> Result<Option<Node>> {
        let node = match self.rest().chars().next() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('.') if self.takes(".") => Node::Class("[\\x{0}-\\x{10ffff}]".to_owned()),
            Some('(') if self.takes("(") => {
                self.depth += 1;
                if self.depth > MOST_DEPTH {
                    return Err(wrong(&format!("at most {MOST_DEPTH} parentheses within each other"), "more"));
                }
                let inner = self.choice()?;
                if !self.takes(")") {
                    return Err(self.wrong("`)`"));
                }
                self.depth -= 1;
                inner
            }
            Some(c) if is_of_name(c) => {
                let begin = self.at;
                let name = self.name().expect("it begins with a character of names");
                if self.rest().starts_with(DEFINES) {
                    // It is the name of the next rule.
                    self.at = begin;
                    return Ok(None);
                }
                Node::Rule(self.index(name))
            }
            Some('|' | ')') | None => return Ok(None),
            Some(_) => return Err(self.wrong("a text in quotation marks, a class of characters, a rule or `(`")),
        };
        Ok(Some(node))
    }

    /// The item with what stands behind it: `*`, `+`, `?` or `{m,n}`.
    fn repeated(&mut self, mut item: Node) -> Result<Node> {
        for _ in 0..MOST_DEPTH {
            let (least, most) = match self.rest().chars().next() {
                Some('*') if self.takes("*") => (0, None),
                Some('+') if self.takes("+") => (1, None),
                Some('?') if self.takes("?") => (0, Some(1)),
                Some('{') if self.takes("{") => {
                    let least = self.number()?;
                    let most = match self.takes(",") {
                        false => Some(least),
                        true if self.rest().starts_with('}') => None,
                        true => Some(self.number()?),
                    };
                    if !self.takes("}") || most.is_some_and(|most| most < least || most == 0) {
                        return Err(self.wrong("`{m}`, `{m,}` or `{m,n}` with m up to n and n from 1 up, and then `}`"));
                    }
                    (least, most)
                }
                _ => return Ok(item),
            };
            // In a group of its own: one operator may follow another.
            let of = match item {
                Node::Repeat { .. } => Node::Sequence(vec![item]),
                item => item,
            };
            item = Node::Repeat { of: Box::new(of), least, most };
        }
        Err(self.wrong(&format!("fewer than {MOST_DEPTH} operators in a row")))
    }

    fn number(&mut self) -> Result<u32> {
        let digits = self.rest().find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest().len());
        // As many as the grammars' library counts.
        let number = self.rest()[..digits].parse().ok().filter(|&number: &u32| number < i32::MAX as u32);
        let number = number.ok_or_else(|| self.wrong("a number of times"))?;
        self.at += digits;
        self.skip_space();
        Ok(number)
    }

    fn literal(&mut self) -> Result<Node> {
        self.at += 1;
        let mut text = String::new();
        while let Some(c) = self.character("\"")? {
            text.push(c);
        }
        self.skip_space();
        Ok(Node::Literal(text))
    }

    fn class(&mut self) -> Result<Node> {
        self.at += 1;
        let is_negated = self.rest().starts_with('^');
        self.at += usize::from(is_negated);
        let mut class = if is_negated { "[^".to_owned() } else { "[".to_owned() };
        let begin = self.at;
        while let Some(first) = self.character("]")? {
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            self.at += usize::from(is_range);
            let last = if is_range { self.character("]")?.unwrap_or(first) } else { first };
            if last < first {
                return Err(wrong(
                    "ranges of characters from a lower to a higher one",
                    format!("{first:?} to {last:?}"),
                ));
            }
            class += &in_class(first);
            if is_range {
                class.push('-');
                class += &in_class(last);
            }
        }
        if self.at == begin + 1 {
            return Err(wrong("a class of at least one character", "`[]`"));
        }
        class.push(']');
        self.skip_space();
        Ok(Node::Class(class))
    }

    /// The next character of a text or a class, which may be escaped; `None`: `end` stands here, which is read.
    fn character(&mut self, end: &str) -> Result<Option<char>> {
        if self.rest().starts_with(end) {
            self.at += end.len();
            return Ok(None);
        }
        let missing = || wrong(&format!("`{end}` at the end of a text or a class of characters"), "none");
        let mut chars = self.rest().chars();
        let mut next = || chars.next().ok_or_else(missing);
        let c = match next()? {
            '\\' => match next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                digits @ ('x' | 'u' | 'U') => {
                    let count = [('x', 2), ('u', 4), ('U', 8)].iter().find(|(c, _)| *c == digits).map_or(0, |of| of.1);
                    let hex: String = chars.by_ref().take(count).collect();
                    let code = u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == count);
                    code.and_then(char::from_u32).ok_or_else(|| {
                        wrong(&format!("{count} hexadecimal digits of a character"), format!("`\\{digits}{hex}`"))
                    })?
                }
                escaped => escaped,
            },
            '\n' => return Err(missing()),
            c => c,
        };
        self.at = self.text.len() - chars.as_str().len();
        Ok(Some(c))
    }
}

/// The only one of them, or all in one node.
fn one_or(mut all: Vec<Node>, of: impl FnOnce(Vec<Node>) -> Node) -> Node {
    match all.len() {
        1 => all.remove(0),
        _ => of(all),
    }
}

/// A character within the brackets of a regular expression.
fn in_class(c: char) -> String {
    if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\x{{{:x}}}", u32::from(c)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_grammar_is_refused_and_the_place_named() {
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(1000), ")".repeat(1000));
        let many = format!("root ::= \"a\"{}", "+".repeat(1000));
        let cases = [
            ("a ::= \"b\"", "a rule `root`"),
            ("root ::= a", "none of `a`"),
            ("root ::= \"a\"\nroot ::= \"b\"", "`root` twice"),
            ("root ::= \"a", "`\"` at the end"),
            ("root ::= [a", "`]` at the end"),
            ("root ::= []", "at least one character"),
            ("root ::= [b-a]", "'b' to 'a'"),
            ("root ::= (\"a\"", "`)`"),
            ("root ::= \"a\"{2,1}", "`{m,n}`"),
            ("root ::= \"a\"{9999999999}", "a number of times"),
            ("root ::= \"\\xZZ\"", "2 hexadecimal digits"),
            ("root ::= \"\\ud800\"", "4 hexadecimal digits"),
            ("root ::= \"a\"\n  & \"b\"", "`& \"b\"` in line 2"),
            ("root ::= \"a\" ) \"b\"", "the name of a rule"),
            (&*deep, "parentheses within each other"),
            (&*many, "operators in a row"),
        ];
        for (text, said) in cases {
            let error = rules(text).map(|rules| rules.len()).expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn a_line_that_defines_a_rule_tells_gbnf_from_lark() {
        for gbnf in ["root ::= \"a\"", "# a\n  x-1::=[a]\n"] {
            assert!(is_gbnf(gbnf), "{gbnf}");
        }
        for lark in ["start: \"a ::= b\"", "start: a::5\n", "", "::= a"] {
            assert!(!is_gbnf(lark), "{lark}");
        }
    }
}
