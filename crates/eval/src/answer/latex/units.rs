//! Separates values from the texts, units and signs of money beside them, as in `5 \text{ cm}` and `5 \text{ apples}`.
//! The sibling modules parse the values; `quantity` says which units are equal.

use crate::answer::latex::brackets::command;
use crate::answer::latex::names::{FUNCTIONS, KEPT_WORDS, MONEY, PLAIN_UNITS, SHORT_UNITS, UNIT_SIGNS, UNITS, has};
use crate::answer::latex::tokens::Token;

/// Whether the tokens are the whole answer or an element of a list: an unknown noun is dropped only after the single
/// value of a whole answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerScope {
    Whole,
    Listed,
}

/// The tokens without signs of money, and the first of these.
pub(crate) fn without_money(tokens: &[Token]) -> (Vec<Token>, Option<&Token>) {
    let is_money = |token: &&Token| has(MONEY, command(token));
    (tokens.iter().filter(|token| !is_money(token)).cloned().collect(), tokens.iter().find(is_money))
}

/// The tokens before the unit or noun at the end, and this, unless there are other texts.
pub(crate) fn without_units(tokens: &[Token], place: AnswerScope) -> (&[Token], &[Token]) {
    let is_end =
        |start: &usize| is_whole_unit(&tokens[*start..]) || (place == AnswerScope::Whole && is_noun(&tokens[*start..]));
    let value = |start: usize| {
        let value = &tokens[..start];
        let is_relation = |token: &Token| *token == Token::Sign('=');
        &value[value.iter().rposition(is_relation).map_or(0, |at| at + 1)..]
    };
    let is_behind_value =
        |start: usize| !matches!(value(start), [] | [.., Token::Sign('_' | '^' | '*' | '/' | '+' | '-')]);
    let start = (1..tokens.len()).find(|start| is_behind_value(*start) && is_end(start));
    let is_only = |start: &usize| {
        let value = value(*start);
        is_bare(value) && (is_whole_unit(&tokens[*start..]) || is_number(value) && !is_product(value))
    };
    // The last degree sign of `30^\circ+60^\circ` or `\sin 30^\circ` is not one of the whole value.
    let is_angle = |start: &usize| command(&tokens[*start]) == "degree";
    let has_angles =
        |value: &[Token]| value.iter().any(|token| command(token) == "degree" || has(FUNCTIONS, names_function(token)));
    let start = start.filter(is_only).filter(|start| !is_angle(start) || !has_angles(value(*start)));
    tokens.split_at(start.unwrap_or(tokens.len()))
}

/// Whether the elements of a list have the same unit, so that it can be dropped.
pub(crate) fn have_same_unit(listed: &[&[Token]]) -> bool {
    let mut units: Vec<&[Token]> =
        listed.iter().map(|part| without_units(part, AnswerScope::Listed).1).filter(|u| !u.is_empty()).collect();
    units.dedup();
    units.len() <= 1
}

/// Whether there are units between numbers (`2 h 30 min`, `5 ft 6 in`), which are not products of their letters.
pub(crate) fn has_units_between_numbers(tokens: &[Token]) -> bool {
    let is_unit = |pair: &[Token]| matches!(pair, [Token::Number(_), Token::Word(word)] if has(UNITS, word));
    let is_between = |three: &[Token]| matches!(three, [Token::Number(_), Token::Word(_), Token::Number(_)]);
    tokens.windows(2).any(is_unit) || tokens.windows(3).any(is_between)
}

/// The name of a function, with or without its backslash.
fn names_function(token: &Token) -> &str {
    if let Token::Word(word) = token { word } else { command(token) }
}

fn is_bare(tokens: &[Token]) -> bool {
    !tokens.iter().any(|token| matches!(token, Token::Text(_)))
}

/// Whether it has no letters.
fn is_number(tokens: &[Token]) -> bool {
    !tokens.iter().any(|token| matches!(token, Token::Word(_)))
}

/// Whether it is a product of other numbers than a power of ten: a `3\times5` grid is no grid of 15.
fn is_product(tokens: &[Token]) -> bool {
    let is_power = |behind: &[Token]| matches!(behind, [Token::Number(ten), Token::Sign('^'), ..] if ten == "10");
    tokens.iter().enumerate().any(|(at, token)| *token == Token::Sign('*') && !is_power(&tokens[at + 1..]))
}

/// Whether they are texts that are not a known unit, number or place, such as `apples` or `ways to choose`.
fn is_noun(tokens: &[Token]) -> bool {
    let is_long = |token: &Token| matches!(token, Token::Text(word) if word.len() >= 3);
    let is_kept = |token: &Token| matches!(token, Token::Text(word) if has(KEPT_WORDS, word));
    let is_short = |token: &Token| matches!(token, Token::Text(word) if has("of to in a an", word));
    tokens.first().is_some_and(is_long)
        && tokens.iter().all(|token| (is_long(token) || is_short(token)) && !is_kept(token))
}

/// Whether the tokens are exactly one unit: `cm`, `square feet`, `m/s^2`, `dollars per hour`, `\frac{km}{h}`.
fn is_whole_unit(tokens: &[Token]) -> bool {
    let mut rest = match without_size(tokens) {
        [
            Token::Command(name),
            Token::Sign('{'),
            above,
            Token::Sign('}'),
            Token::Sign('{'),
            below,
            Token::Sign('}'),
        ] if name == "frac" => {
            return is_unit(above) && is_unit_after_per(below);
        }
        [Token::Sign('{'), inside @ .., Token::Sign('}')] | [Token::Sign('('), inside @ .., Token::Sign(')')] => {
            return is_whole_unit(inside);
        }
        [unit, rest @ ..] if is_unit(unit) => without_power(rest),
        _ => return false,
    };
    while !rest.is_empty() {
        rest = match rest {
            [Token::Sign('/'), unit, rest @ ..] if is_unit_after_per(unit) => without_power(rest),
            [Token::Text(word) | Token::Word(word), unit, rest @ ..] if word == "per" && is_unit_after_per(unit) => {
                without_power(rest)
            }
            [Token::Sign('*'), unit, rest @ ..] | [unit, rest @ ..] if is_unit(unit) => without_power(rest),
            _ => return false,
        };
    }
    true
}

/// Without the `square` before a unit.
fn without_size(tokens: &[Token]) -> &[Token] {
    match tokens {
        [Token::Text(word) | Token::Word(word), rest @ ..] if has("square sq cubic cu", word) && !rest.is_empty() => {
            rest.strip_prefix(&[Token::Sign('.')]).unwrap_or(rest)
        }
        _ => tokens,
    }
}

fn without_power(tokens: &[Token]) -> &[Token] {
    let tokens = tokens.strip_prefix(&[Token::Sign('.')]).unwrap_or(tokens);
    match tokens {
        [Token::Sign('^'), Token::Number(_), rest @ ..]
        | [Token::Sign('^'), Token::Sign('{'), Token::Number(_), Token::Sign('}'), rest @ ..]
        | [Token::Sign('^'), Token::Sign('{'), Token::Sign('-'), Token::Number(_), Token::Sign('}'), rest @ ..] => rest,
        rest => rest,
    }
}

fn is_unit(token: &Token) -> bool {
    match token {
        Token::Text(word) => has(UNITS, word) || has(PLAIN_UNITS, word) || has(SHORT_UNITS, word),
        Token::Word(word) => has(UNITS, word) || has(PLAIN_UNITS, word),
        Token::Command(sign) => has(UNIT_SIGNS, sign),
        Token::Number(_) | Token::Sign(_) => false,
    }
}

/// Whether it is a unit after `per`, where single letters count too.
fn is_unit_after_per(token: &Token) -> bool {
    is_unit(token) || matches!(token, Token::Word(word) if has(SHORT_UNITS, word))
}
