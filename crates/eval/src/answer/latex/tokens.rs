//! Splits LaTeX into tokens: drops spacing, sizes of brackets and the dollar signs around formulas, and replaces
//! synonymous commands by one name. The sibling modules interpret the tokens.

use crate::answer::latex::brackets::command;
use crate::answer::latex::derivatives;
use crate::answer::latex::names::{
    ALPHABETS, DATE_WORDS, FUNCTIONS, IGNORED, KEPT_WORDS, MATRICES, MONEY, PLAIN, PLAIN_UNITS, SHORT_UNITS, SYMBOLS,
    TEXTS, UNITS, compass, has, large_unit, magnitude, one_name,
};
use crate::answer::latex::unicode::spelled;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// `12`, `0.5`, `0.1\overline{6}`: digits with an optional fraction, without thousands separators.
    Number(String),
    /// Adjacent letters.
    Word(String),
    /// A word in `\text{…}` or similar, in lower case except for single letters.
    Text(String),
    /// Without its backslash; `begin` and `end` are those of a matrix.
    Command(String),
    Sign(char),
}

/// The tokens of a text, up to a closing brace that nothing opened: there the box of the answer ended.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let text = spelled(text);
    let has_rows = text.contains("\\begin");
    let mut lexer = Lexer { found: Vec::new(), depth: 0, texts: 0, in_text: false, has_rows };
    lexer.read(&text);
    let mut tokens = derivatives::with_symbols(lexer.found);
    let mut depth = 0_usize;
    let end = tokens.iter().position(|token| {
        depth += usize::from(*token == Token::Sign('{'));
        let is_end = *token == Token::Sign('}') && depth == 0;
        depth = depth.saturating_sub(usize::from(*token == Token::Sign('}')));
        is_end
    });
    tokens.truncate(end.filter(|end| *end > 0).unwrap_or(tokens.len()));
    without_end(&mut tokens);
    tokens
}

/// Removes the punctuation at the end.
pub(crate) fn without_end(tokens: &mut Vec<Token>) {
    while let Some(Token::Sign('.' | ',' | ';' | ':')) = tokens.last() {
        tokens.pop();
    }
}

/// Groups of text in one another that are read.
const MOST_TEXTS: usize = 8;

/// Groups in groups: in a text of thousands that open, each search ends here.
const MOST_GROUPS: usize = 100;

struct Lexer {
    found: Vec<Token>,
    /// Number of open round, square and set brackets.
    depth: usize,
    /// Number of open groups of text: `\text{a \textbf{b`.
    texts: usize,
    in_text: bool,
    /// Whether two backslashes end a row of a matrix; otherwise they are one that was escaped.
    has_rows: bool,
}

impl Lexer {
    fn read(&mut self, text: &str) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let behind = &rest[c.len_utf8()..];
            // `x != 3` is an inequality, `n!=6` an equation of a factorial.
            let is_apart = text[..text.len() - rest.len()].ends_with(char::is_whitespace);
            if let Some(behind) = rest.strip_prefix("!=").filter(|_| is_apart) {
                self.push(Token::Command("ne".to_string()));
                rest = behind;
                continue;
            }
            if let Some(behind) = rest.strip_prefix("...") {
                self.push(Token::Command("dots".to_string()));
                rest = behind;
                continue;
            }
            let is_behind_number = rest.len() == text.len() && matches!(self.found.last(), Some(Token::Number(_)));
            if self.in_text && is_mark(text, rest, is_behind_number) {
                self.push(Token::Sign(c));
                rest = behind;
                continue;
            }
            if self.in_text && c == '-' && self.is_range(rest) {
                self.found.push(Token::Text("to".to_string()));
                rest = rest.trim_start_matches('-');
                continue;
            }
            // `. 3` and `. \overline{3}` are a point and a number.
            let is_fraction = || {
                let is_next = !behind.starts_with(char::is_whitespace);
                behind.starts_with(|c: char| c.is_ascii_digit()) || is_next && marked_period(behind).is_some()
            };
            let is_number = c.is_ascii_digit() || (c == '.' && is_fraction());
            rest = if is_number {
                self.number(rest)
            } else if c.is_ascii_alphabetic() {
                let (word, behind) = split(rest, |c| c.is_ascii_alphabetic());
                if self.is_noun(word, is_apart) {
                    self.found.push(Token::Text(word.to_string()));
                } else {
                    self.word(word);
                }
                behind
            } else if c == '\\' {
                self.command(behind)
            } else {
                self.sign(c);
                behind
            };
        }
    }

    /// Whether the dashes at the start of `rest`, in a text, stand between the ends of a range, as in `5\text{-}10` and
    /// `\text{5--10}`. Those of a date do not.
    fn is_range(&self, rest: &str) -> bool {
        let behind = rest.trim_start_matches('-').trim_start();
        let (digits, more) = split(behind, |c| c.is_ascii_digit());
        let is_between = behind.is_empty() || !digits.is_empty() && !more.starts_with('-');
        match &self.found[..] {
            [.., Token::Sign('-'), Token::Number(_)] => false,
            [.., Token::Number(_)] => is_between,
            _ => false,
        }
    }

    /// Whether a word outside of text is what the number before it counts, as in `10 people`, and no product of its
    /// letters: four or more small ones with a vowel, which a product would rather have in the order of the alphabet.
    fn is_noun(&self, word: &str, is_apart: bool) -> bool {
        let is_only_value = match &self.found[..] {
            [Token::Number(_)] => true,
            [before @ .., sign, Token::Number(_)] => {
                let is_sign = matches!(sign, Token::Sign('-' | '=')) || has(MONEY, command(sign));
                is_sign && !before.iter().any(|token| matches!(token, Token::Number(_) | Token::Text(_)))
            }
            _ => false,
        };
        let letters = word.as_bytes();
        let has_name = || {
            let names = [FUNCTIONS, PLAIN, SYMBOLS].into_iter().flat_map(|names| names.split(' '));
            names.filter(|name| name.len() > 1).any(|name| word.contains(name))
        };
        let is_known =
            || [UNITS, PLAIN_UNITS, KEPT_WORDS].into_iter().any(|names| has(names, word)) || magnitude(word).is_some();
        !self.in_text
            && is_apart
            && is_only_value
            && letters.len() > 3
            && letters.iter().all(u8::is_ascii_lowercase)
            && letters.iter().any(|letter| b"aeiou".contains(letter))
            && !letters.windows(2).all(|pair| pair[0] < pair[1])
            && !is_known()
            && !has_name()
    }

    fn word(&mut self, word: &str) {
        let lower = word.to_lowercase();
        let is_behind_degree = matches!(self.found.last(), Some(Token::Command(name)) if name == "degree");
        let side = is_behind_degree.then(|| compass(word)).flatten();
        match (&self.found[..], magnitude(&lower), word) {
            (_, _, "C") if is_behind_degree => self.found.push(Token::Command("celsius".to_string())),
            (_, _, "F") if is_behind_degree => self.found.push(Token::Command("fahrenheit".to_string())),
            _ if side.is_some() => self.found.extend(side.map(|side| Token::Text(side.to_string()))),
            ([.., Token::Number(_) | Token::Sign('}')], Some(digits), _) if !ends_in_index(&self.found) => {
                self.found.extend([Token::Sign('*'), Token::Number(digits.to_string())]);
            }
            ([.., Token::Text(half)], _, "m" | "M") if self.in_text && has("a p A P", half) => {
                let half = half.to_lowercase();
                self.found.pop();
                self.found.push(Token::Text(half + "m"));
            }
            ([.., Token::Number(_)], ..) if self.in_text && large_unit(word).is_some() => {
                self.found.extend(large_unit(word).map(|unit| Token::Text(unit.to_string())));
            }
            ([.., Token::Number(_)], ..) if has("am pm", &lower) => self.found.push(Token::Text(lower)),
            ([.., Token::Number(_), Token::Word(half), Token::Sign('.')], _, "m") if has("a p", half) => {
                let half = half.clone();
                self.found.truncate(self.found.len() - 2);
                self.found.push(Token::Text(half + "m"));
            }
            _ if word.len() > 1 && (self.in_text || has(DATE_WORDS, &lower)) => self.found.push(Token::Text(lower)),
            _ if self.in_text => self.found.push(Token::Text(word.to_string())),
            _ => self.found.push(Token::Word(word.to_string())),
        }
    }

    fn sign(&mut self, c: char) {
        let compared = if c == '=' { self.compared_before() } else { None };
        let token = match c {
            '~' | '$' => return,
            '%' => Token::Command("%".to_string()),
            c if c.is_whitespace() => return,
            '.' | ';' | '?' | '!' | '\'' | '"' if self.in_text => return,
            c => Token::Sign(c),
        };
        match compared {
            Some(command) => {
                self.found.pop();
                self.push(Token::Command(command.to_string()));
            }
            None => self.push(token),
        }
    }

    /// The command for `<=` and `>=` if a `=` follows now.
    fn compared_before(&self) -> Option<&'static str> {
        match self.found.last()? {
            Token::Sign('<') => Some("le"),
            Token::Sign('>') => Some("ge"),
            _ => None,
        }
    }

    /// Appends a token; complete degree signs (`^\circ`, `^{\circ}`) become the command `degree`.
    fn push(&mut self, token: Token) {
        match &token {
            Token::Sign('(' | '[') => self.depth += 1,
            Token::Sign(')' | ']') => self.depth = self.depth.saturating_sub(1),
            Token::Command(name) if name == "{" => self.depth += 1,
            Token::Command(name) if name == "}" => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        let is_circle = |token: &Token| matches!(token, Token::Command(name) if name == "circ");
        let dropped = match (&self.found[..], &token) {
            ([.., Token::Sign('^')], circle) if is_circle(circle) => 1,
            ([.., Token::Sign('^'), Token::Sign('{'), circle], Token::Sign('}')) if is_circle(circle) => 3,
            _ => 0,
        };
        match dropped {
            0 => self.found.push(token),
            _ => {
                self.found.truncate(self.found.len() - dropped);
                self.found.push(Token::Command("degree".to_string()));
            }
        }
    }

    fn number<'t>(&mut self, text: &'t str) -> &'t str {
        let digits = |text: &'t str| split(text, |c| c.is_ascii_digit());
        let (first, mut rest) = digits(text);
        let mut number = if first.is_empty() { "0".to_string() } else { first.to_string() };
        while (1..=3).contains(&first.len()) && !first.starts_with('0') {
            let is_argument = matches!(self.found.last(), Some(Token::Sign('_' | '^') | Token::Command(_)));
            let group = without_separator(rest, self.depth == 0, !is_argument).map(digits);
            let Some((group, behind)) = group.filter(|(group, _)| group.len() == 3) else { break };
            number.push_str(group);
            rest = behind;
        }
        if let Some(behind) = rest.strip_prefix('.').filter(|behind| !behind.starts_with("..")) {
            let (fraction, behind) = digits(behind);
            rest = behind;
            let mut value = self.found.rsplit(|token| *token == Token::Sign('=')).next().unwrap_or_default().iter();
            let is_first = value.all(|token| matches!(token, Token::Sign('+' | '-')));
            let is_whole = is_first && self.texts == 0 && first.trim_start_matches('0').is_empty();
            if let Some((fixed, group, behind)) = repeating(fraction, behind, is_whole) {
                number.push_str(&format!(".{fixed}\\overline{{{group}}}"));
                rest = behind;
            } else if !fraction.trim_end_matches('0').is_empty() {
                number.push_str(&format!(".{}", fraction.trim_end_matches('0')));
            }
            // Digits with a mark that are no period are no factor either.
            let marked = period_mark(rest).map(|marked| marked.trim_start_matches(['{', ' ']));
            if marked.is_some_and(|marked| marked.starts_with(|c: char| c.is_ascii_digit())) {
                self.found.extend([Token::Number(number), Token::Sign('.')]);
                return rest;
            }
        }
        let exponent = exponent(rest, &text[..text.len() - rest.len()]);
        self.found.push(Token::Number(number));
        match exponent {
            Some((exponent, behind)) => {
                let power = [Token::Sign('*'), Token::Number("10".to_string()), Token::Sign('^'), Token::Sign('{')];
                self.found.extend(power);
                self.found.extend(exponent.starts_with('-').then_some(Token::Sign('-')));
                let digits = exponent.trim_start_matches(['-', '+']);
                self.found.extend([Token::Number(digits.to_string()), Token::Sign('}')]);
                behind
            }
            None => rest,
        }
    }

    /// Whether the `\times` before `rest` is that of two vectors or sets, not of numbers.
    fn is_cross_product(&self, rest: &str) -> bool {
        match self.found.last() {
            Some(Token::Command(name)) if name == "nabla" => true,
            before => begins_with_vector(rest) && !matches!(before, Some(Token::Number(_))),
        }
    }

    /// Reads the command at the start of `text`; returns the rest after it and its arguments.
    fn command<'t>(&mut self, text: &'t str) -> &'t str {
        let (letters, _) = split(text, |c| c.is_ascii_alphabetic());
        let length = if letters.is_empty() { text.chars().next().map_or(0, char::len_utf8) } else { letters.len() };
        // `\quadx` is `\quad x` without its space.
        let length = if letters.starts_with("quad") { 4 } else { length };
        let (name, rest) = text.split_at(length);
        let is_text = has(TEXTS, name) || has(ALPHABETS, name);
        if name == "\\" && !self.has_rows && rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return self.command(rest);
        }
        if name == "mathbb"
            && let Some((set, rest)) = group(rest).or_else(|| letter(rest))
            && let [b'A'..=b'Z'] = set.trim().as_bytes()
        {
            self.push(Token::Command(format!("mathbb{{{}}}", set.trim())));
            return rest;
        }
        // Text in text in text is no answer.
        if is_text
            && self.texts < MOST_TEXTS
            && let Some((inside, rest)) = group(rest)
        {
            let is_behind_number = matches!(self.found.last(), Some(Token::Number(_)));
            let is_unit = name == "mathrm" && is_behind_number && has(SHORT_UNITS, inside);
            let is_letter = has(ALPHABETS, name) && inside.trim().chars().count() == 1 && !is_unit;
            let outer = std::mem::replace(&mut self.in_text, !is_letter);
            self.texts += 1;
            self.read(inside);
            self.texts -= 1;
            self.in_text = outer;
            return rest;
        }
        if has(ALPHABETS, name) && letter(rest).is_some() {
            return rest;
        }
        if ["color", "textcolor"].contains(&name)
            && let Some((_, behind)) = group(rest)
        {
            return behind;
        }
        if ["begin", "end"].contains(&name)
            && let Some((kind, behind)) = group(rest)
        {
            let is_matrix = has(MATRICES, kind);
            self.push(Token::Command(if is_matrix { name.to_string() } else { format!("{name}{{{kind}}}") }));
            let columns = (name == "begin" && kind == "array").then(|| group(behind)).flatten();
            return columns.map_or(behind, |(_, behind)| behind);
        }
        if name == "left" || name == "right" {
            return rest.strip_prefix('.').unwrap_or(rest);
        }
        let is_silent = has(IGNORED, name) || name.starts_with(char::is_whitespace) || name.is_empty();
        if !is_silent {
            self.push(match name {
                "times" if self.is_cross_product(rest) => Token::Command("times".to_string()),
                "cdot" | "times" | "ast" => Token::Sign('*'),
                "div" => Token::Sign('/'),
                "lt" => Token::Sign('<'),
                "gt" => Token::Sign('>'),
                "colon" => Token::Sign(':'),
                "langle" => Token::Sign('('),
                "rangle" => Token::Sign(')'),
                "vert" | "lvert" | "rvert" | "mid" => Token::Sign('|'),
                other => Token::Command(one_name(other).to_string()),
            });
        }
        rest
    }
}

/// Whether tokens end with an index in braces, as in `x_{2}`.
fn ends_in_index(tokens: &[Token]) -> bool {
    let group = tokens.iter().rposition(|token| *token == Token::Sign('{'));
    let is_index = |at: usize| at > 0 && tokens[at - 1] == Token::Sign('_');
    tokens.last() == Some(&Token::Sign('}')) && group.is_some_and(is_index)
}

/// Whether a text begins with a vector or a set, the products of which have an order.
fn begins_with_vector(text: &str) -> bool {
    let text = text.trim_start();
    let marks = ["\\vec", "\\overrightarrow", "\\hat", "\\widehat", "\\mathbb"];
    let bold = ["\\mathbf", "\\boldsymbol", "\\bm"].iter().find_map(|bold| text.strip_prefix(bold));
    let is_letter = |inside: &str| inside.trim_start_matches([' ', '{', '\\']).starts_with(|c: char| c.is_alphabetic());
    marks.iter().any(|mark| text.starts_with(mark)) || bold.is_some_and(is_letter)
}

/// Whether the mark at the start of `rest`, within `text`, belongs to the number or the letter before it: a factorial,
/// a prime, feet, inches. Others are punctuation and quotation marks.
fn is_mark(text: &str, rest: &str, is_behind_number: bool) -> bool {
    let before = &text[..text.len() - rest.len()];
    let mark = rest.chars().next().unwrap_or_default();
    let is_behind_digit = is_behind_number || before.ends_with(|c: char| c.is_ascii_digit());
    let mut letters = before.chars().rev();
    let is_behind_letter = letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && !letters.next().is_some_and(char::is_alphabetic)
        && !rest[mark.len_utf8()..].starts_with(char::is_alphabetic);
    match mark {
        '!' => is_behind_digit,
        '\'' | '"' => {
            let first = before.find(mark).filter(|at| !before[..*at].ends_with(|c: char| c.is_ascii_alphanumeric()));
            first.is_none() && (is_behind_digit || is_behind_letter || before.ends_with(mark))
        }
        _ => false,
    }
}

/// `text` without the thousands separator at its start. A plain comma is one only outside brackets; inside it separates
/// elements. A space is one unless it ends an argument (`\log_2 100`), or the digits behind it begin a fraction, as in
/// `1 100/200`.
fn without_separator(text: &str, is_outside: bool, may_be_space: bool) -> Option<&str> {
    let comma = text.trim_start().strip_prefix(',').unwrap_or(text);
    let set_close = comma.trim_start().strip_prefix("\\!").map(str::trim_start);
    let commas = || text.strip_prefix("{,}").or_else(|| text.strip_prefix(',').filter(|_| is_outside));
    let spaces = || {
        let behind = [" ", "~", "\\,", "\\ ", "\\:", "\\;"].iter().find_map(|space| text.strip_prefix(space))?;
        let digits = behind.find(|c: char| !c.is_ascii_digit()).map_or("", |end| &behind[end..]);
        (!digits.trim_start().starts_with('/')).then_some(behind)
    };
    set_close.or_else(commas).or_else(|| spaces().filter(|_| may_be_space))
}

/// The digits of a fraction that are not repeated and those that are, and the rest after them: marked
/// (`0.1\overline{6}`, `0.1(6)`), or written three times before dots (`0.1666...`). `is_whole`: the number is less than
/// 1, and nothing but a name and a sign stands before it.
fn repeating<'t>(fraction: &'t str, behind: &'t str, is_whole: bool) -> Option<(&'t str, &'t str, &'t str)> {
    let bracketed = || {
        let (group, behind) = split(behind.strip_prefix('(')?, |c| c.is_ascii_digit());
        let behind = behind.strip_prefix(')').filter(|_| !group.is_empty())?;
        // `0.5(20)`, `1.5(2)` and `0.5(3)^2` are products.
        let is_alone = || is_whole && behind.trim_matches([' ', '$', '.']).is_empty() && !group.ends_with('0');
        let is_period = if fraction.is_empty() { !behind.starts_with(['^', '(', '!']) } else { is_alone() };
        is_period.then_some((group, behind))
    };
    let marked = marked_period(behind).or_else(bracketed).map(|(group, behind)| (fraction, group, behind));
    marked.or_else(|| {
        let dots = ["...", "\\ldots", "\\dots", "\\cdots"].iter().find_map(|dots| behind.strip_prefix(dots))?;
        let length = (1..=3).find(|length| {
            let thrice = fraction.len().checked_sub(3 * length).map(|at| &fraction[at..]);
            thrice.is_some_and(|digits| digits == digits[..*length].repeat(3))
        })?;
        let (fixed, digits) = fraction.split_at(fraction.len() - 3 * length);
        digits.contains(|c| c != '0').then_some((fixed, &digits[..length], dots))
    })
}

/// What stands behind the mark of a period at the start of a text: `\overline`, `\bar` or `\dot`.
fn period_mark(text: &str) -> Option<&str> {
    let behind = ["\\overline", "\\bar", "\\dot"].iter().find_map(|mark| text.trim_start().strip_prefix(mark))?;
    (!behind.starts_with(|c: char| c.is_ascii_alphabetic())).then_some(behind)
}

/// The digits that the mark at the start of a text marks as a period, in braces or a single one, and the rest.
fn marked_period(text: &str) -> Option<(&str, &str)> {
    let behind = period_mark(text)?.trim_start();
    let (digits, rest) = match behind.strip_prefix('{') {
        Some(inside) => {
            let (digits, behind) = split(inside.trim_start(), |c| c.is_ascii_digit());
            (digits, behind.trim_start().strip_prefix('}')?)
        }
        None => split(behind, |c| c.is_ascii_digit()),
    };
    // `\overline36` marks one digit or both.
    let is_clear = behind.starts_with('{') || digits.len() == 1;
    (is_clear && !digits.is_empty()).then_some((digits, rest))
}

/// The exponent of scientific notation (`e5`, `E-3`) behind a number at the start of `text`, and the rest after it.
/// `2e-5` is read as a difference; `2.0e-5` and `2e-05` are numbers.
fn exponent<'t>(text: &'t str, number: &str) -> Option<(&'t str, &'t str)> {
    let behind = text.strip_prefix(['e', 'E'])?;
    let sign = usize::from(behind.starts_with(['+', '-']));
    (sign == 0 || number.contains('.') || behind[sign..].starts_with('0')).then_some(())?;
    let digits = behind[sign..].bytes().take_while(u8::is_ascii_digit).count();
    let (exponent, rest) = behind.split_at(sign + digits);
    let goes_on = rest.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '^' | '_'));
    ((1..=3).contains(&digits) && !goes_on).then_some((exponent, rest))
}

/// The letter at the start of `text` (after white space), and the rest after it.
fn letter(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    text.starts_with(|c: char| c.is_ascii_alphabetic()).then(|| text.split_at(1))
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

/// The contents of the group in braces at the start of `text` (after white space), and the rest after it.
pub(crate) fn group(text: &str) -> Option<(&str, &str)> {
    let inside = text.trim_start().strip_prefix('{')?;
    let (mut depth, mut is_escaped) = (0, false);
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'{' if depth == MOST_GROUPS => return None,
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some((&inside[..at], &inside[at + 1..])),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// LaTeX with these tokens.
pub(crate) fn written(tokens: &[Token]) -> String {
    let mut text = String::new();
    for (ix, token) in tokens.iter().enumerate() {
        let before = ix.checked_sub(1).map(|before| &tokens[before]);
        let is_apart = match (before, token) {
            (Some(Token::Number(_)), Token::Number(_) | Token::Command(_) | Token::Sign('.')) => true,
            // `1 e5` is no number with an exponent.
            (Some(Token::Number(_)), Token::Word(word)) => word.starts_with(['e', 'E']),
            // `, !=` would be an inequality.
            (_, Token::Sign('!')) => false,
            (Some(Token::Word(_)), Token::Word(_)) | (Some(Token::Sign(',' | '.')), _) => true,
            (Some(Token::Command(name)), Token::Word(_)) => {
                name == "\\" || name.ends_with(|c: char| c.is_ascii_alphabetic())
            }
            _ => false,
        };
        // A plain space before three digits would separate thousands.
        let is_group = |digits: &str| split(digits, |c| c.is_ascii_digit()).0.len() == 3;
        let space = match (before, token) {
            (Some(Token::Number(_)), Token::Number(digits)) if is_group(digits) => "\\quad ",
            _ => " ",
        };
        text.push_str(if is_apart { space } else { "" });
        match token {
            Token::Number(digits) => text.push_str(digits),
            Token::Word(word) => text.push_str(word),
            Token::Text(word) => text.push_str(&format!("\\text{{{word}}}")),
            Token::Command(name) if name == "begin" || name == "end" => text.push_str(&format!("\\{name}{{pmatrix}}")),
            Token::Command(name) => text.push_str(&format!("\\{name}")),
            Token::Sign(c) => text.push(*c),
        }
    }
    text
}
