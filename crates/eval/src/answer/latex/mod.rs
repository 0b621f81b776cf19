//! The canonical form of a mathematical answer in LaTeX: equal answers have the same text, so that they count as one
//! vote and compare as texts. `answer` finds answers in texts, `grade` decides which are right.
//!
//! The conventions are those of MATH's graders (Hendrycks et al. 2021, *Measuring Mathematical Problem Solving With the
//! MATH Dataset*, `math_equivalence.py`; Lewkowycz et al. 2022, *Solving Quantitative Reasoning Problems with Language
//! Models*, appendix on answer normalisation). Expressions are compared by exact value:
//!
//! | equal | because |
//! |---|---|
//! | `\dfrac12`, `\frac{1}{2}`, `1/2`, `.5`, `0.50` | exact rational numbers; a digit after `\frac` or `\sqrt` is a whole argument |
//! | `3\frac{1}{2}`, `3.5`; `0.\overline{3}`, `\frac13` | mixed numbers, repeating decimals |
//! | `10,000`, `10{,}000`, `10,\!000`, `10000` | groups of three digits; a list has a space after its comma, or brackets |
//! | `\sqrt{12}`, `2\sqrt3`; `\frac{1}{\sqrt2}`, `\frac{\sqrt2}{2}` | roots without square factors, denominators without square roots |
//! | `(x+1)^2`, `x^2+2x+1`; `\frac{\pi}{2}`, `0.5\pi` | sums of products of powers, expanded; `i` is the imaginary unit |
//! | `\left( 3, 4 \right)`, `(3,4)` | spacing, sizes of brackets and dollar signs are ignored |
//! | `10`, `10^\circ`, `10\%`, `\$10`, `10\text{ cm}^2`, `10 km/h` | a known unit at the end, degrees, percent and money are dropped |
//! | `5`, `5\text{ apples}` | so is a noun after an answer's only value, unless it is a time, date or number word |
//! | `5\text{ million}`, `5000000` | number words after a number multiply it |
//! | `x=5`, `AB=5`, `x \in \{5\}` and the value alone | a name before `=` or `\in` is dropped |
//! | `√2`, `x²`, `½`; `{\bf 5}` | Unicode signs are converted to LaTeX; fonts and colours are ignored |
//! | `2x+3y=6`, `4x=12-6y`; `x<5`, `5>x` | an equation's sides are subtracted, then divided by their common factor |
//! | `1,2`, `2 and 1`, `\{1,2\}` | a list has no order and is a set; intervals of a union have none |
//! | `1\pm\sqrt2`, `1+\sqrt2, 1-\sqrt2` | one `\pm` makes two elements |
//! | `\text{Evelyn}`, `evelyn` | words ignore case; answers with three adjacent letters, `no` and `IV` are words |
//!
//! Not equal: `(1,2)` and `[1,2]` or `(2,1)` (tuples and intervals have order and brackets), `10\%` and `0.1`, `2516_8`
//! and its decimal value or `2516`, `\pi` and `3.14`, `x>1` and `(1,\infty)`. Texts are never products of their
//! letters. Other answers, and those with numbers beyond 128 bits, are equal if their tokens are; identities (of
//! logarithms, trigonometry, nested roots, quotients of polynomials) are not applied.

mod brackets;
mod names;
mod numbers;
mod reader;
mod relation;
mod sum;
#[cfg(test)]
mod tests;
mod tokens;
mod unicode;
mod units;
mod written;

use brackets::{command, depth, enclosed, parts};
use relation::relation;
pub(crate) use tokens::group;
use tokens::{Token, tokens, written};
use units::{AnswerScope, without_units};

/// Maximum depth of brackets, and maximum number of tokens, of an answer that is parsed.
const DEEPEST: usize = 32;
const LONGEST: usize = 1000;

/// The canonical form of an answer: LaTeX that is its own canonical form. `None` if it is empty.
pub fn canonical(text: &str) -> Option<String> {
    let tokens = tokens(text);
    let plain = || written(&tokens);
    let is_short = tokens.len() <= LONGEST && depth(&tokens) <= DEEPEST;
    let read = is_short.then(|| elements(&tokens)).flatten();
    Some(read.map_or_else(plain, set)).filter(|text| !text.is_empty())
}

/// A single element as it is; several as a set.
fn set(mut elements: Vec<String>) -> String {
    match &mut elements[..] {
        [one] => std::mem::take(one),
        several => braced(several),
    }
}

fn braced(elements: &mut [String]) -> String {
    elements.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    format!("\\{{{}\\}}", elements.join(", "))
}

/// The elements of a list in canonical form. `None` if one cannot be parsed.
fn elements(tokens: &[Token]) -> Option<Vec<String>> {
    let is_word =
        |token: &Token| matches!(token, Token::Word(word) | Token::Text(word) if word == "and" || word == "or");
    let mut listed = parts(tokens, &|token| *token == Token::Sign(',') || is_word(token));
    listed.retain(|part| !part.is_empty());
    units::have_same_unit(&listed).then_some(())?;
    let place = if listed.len() > 1 { AnswerScope::Listed } else { AnswerScope::Whole };
    let mut names: Vec<_> = listed.iter().filter_map(|part| relation::name(part)).collect();
    names.dedup();
    let mut found = Vec::new();
    for part in listed {
        for part in both_signs(part)? {
            found.push(element(&part, names.len() > 1, place)?);
        }
    }
    (!found.is_empty()).then_some(found)
}

/// The two elements with plus and minus for the `\pm` outside all sets; the element itself if it has none; `None` if it
/// has several.
fn both_signs(tokens: &[Token]) -> Option<Vec<Vec<Token>>> {
    let mut sets = 0_usize;
    let mut places = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match command(token) {
            "{" => sets += 1,
            "}" => sets = sets.saturating_sub(1),
            "pm" | "mp" if sets == 0 => places.push(at),
            _ => {}
        }
    }
    let signed = |place: usize, sign| {
        let mut tokens = tokens.to_vec();
        tokens[place] = Token::Sign(sign);
        tokens
    };
    match places[..] {
        [] => Some(vec![tokens.to_vec()]),
        [place] => Some(vec![signed(place, '+'), signed(place, '-')]),
        _ => None,
    }
}

/// `is_named`: the name before `=` distinguishes this element from others and is kept.
fn element(tokens: &[Token], is_named: bool, place: AnswerScope) -> Option<String> {
    words(tokens).or_else(|| {
        let value = without_units(tokens, place);
        words(value).or_else(|| relation(value, is_named, self::value))
    })
}

/// An answer in words, perhaps with numbers (a date), in lower case. A word of two letters counts only inside `\text`.
fn words(tokens: &[Token]) -> Option<String> {
    let word = |token: &Token| match token {
        Token::Word(word) | Token::Text(word) => Some(word.to_lowercase()),
        Token::Number(digits) => Some(digits.clone()),
        _ => None,
    };
    let words: Vec<String> = tokens.iter().map(word).collect::<Option<_>>()?;
    let is_long = |word: &String| word.len() >= 3 && word.bytes().all(|b| b.is_ascii_alphabetic());
    let is_plain = |word: &String| is_long(word) || names::has(names::SHORT_WORDS, word);
    let is_word = |(token, word): (&Token, &String)| match token {
        Token::Text(_) => word.len() >= 2,
        _ => is_plain(word),
    };
    let is_first = match tokens.first()? {
        Token::Word(_) => tokens.iter().all(|token| !matches!(token, Token::Text(_))) || is_plain(&words[0]),
        token => matches!(token, Token::Text(_)),
    };
    let has_command = tokens.iter().any(|token| matches!(token, Token::Word(word) if names::is_plain(word)));
    if !is_first || has_command || !tokens.iter().zip(&words).any(is_word) {
        return None;
    }
    let joined = words.join(" ");
    let is_same_without_text = words.iter().any(is_plain) && !words.iter().any(|word| names::is_plain(word));
    Some(if is_same_without_text { joined } else { format!("\\text{{{joined}}}") })
}

/// A set, tuple, interval, matrix, union or ratio of values, or an expression.
fn value(tokens: &[Token]) -> Option<String> {
    let united = parts(tokens, &|token| command(token) == "cup");
    if united.len() > 1 {
        let mut united = united.into_iter().map(value).collect::<Option<Vec<_>>>()?;
        united.sort();
        return Some(united.join(" \\cup "));
    }
    let ratio = parts(tokens, &|token| *token == Token::Sign(':'));
    if ratio.len() > 1 {
        return Some(ratio.into_iter().map(expression).collect::<Option<Vec<_>>>()?.join(":"));
    }
    let Some(inside) = enclosed(tokens) else { return expression(tokens) };
    match (&tokens[0], &tokens[tokens.len() - 1]) {
        (Token::Command(open), Token::Command(close)) if open == "{" && close == "}" => match inside {
            [] => Some("\\emptyset".to_string()),
            inside => elements(inside).map(|mut elements| braced(&mut elements)),
        },
        (Token::Command(open), Token::Command(close)) if open == "begin" && close == "end" => matrix(inside),
        (Token::Sign(open @ ('(' | '[')), Token::Sign(close @ (')' | ']'))) => {
            let listed = parts(inside, &|token| *token == Token::Sign(','));
            match listed[..] {
                [one] if (*open == '(') == (*close == ')') => value(one),
                [_] => None,
                _ => {
                    units::have_same_unit(&listed).then_some(())?;
                    let element = |part| element(part, true, AnswerScope::Listed);
                    let listed = listed.into_iter().map(element).collect::<Option<Vec<_>>>()?;
                    Some(format!("{open}{}{close}", listed.join(", ")))
                }
            }
        }
        _ => expression(tokens),
    }
}

fn matrix(inside: &[Token]) -> Option<String> {
    let row = |row: &[Token]| {
        let entries = parts(row, &|token| *token == Token::Sign('&'));
        Some(entries.into_iter().map(value).collect::<Option<Vec<_>>>()?.join(" & "))
    };
    let mut rows = parts(inside, &|token| command(token) == "\\");
    rows.retain(|row| !row.is_empty());
    let rows: Vec<String> = rows.into_iter().map(row).collect::<Option<_>>()?;
    Some(format!("\\begin{{pmatrix}}{}\\end{{pmatrix}}", rows.join(" \\\\ ")))
}

fn expression(tokens: &[Token]) -> Option<String> {
    reader::sum(tokens).map(|sum| sum.latex())
}
