//! Equations and inequalities: drops the name of a value (`x=5`) and gives the others a canonical form. The caller says
//! how a side that is a value is read; `reader` parses the others.

use crate::answer::latex::brackets::{command, parts};
use crate::answer::latex::tokens::{Token, tokens, written};
use crate::answer::latex::{names, reader};

/// The relation of two sides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
    In,
}

fn sign(token: &Token) -> Option<Sign> {
    Some(match (token, command(token)) {
        (Token::Sign('='), _) => Sign::Equal,
        (Token::Sign('<'), _) => Sign::Less,
        (Token::Sign('>'), _) => Sign::More,
        (_, "ne") => Sign::Unequal,
        (_, "le") => Sign::LessOrEqual,
        (_, "ge") => Sign::MoreOrEqual,
        (_, "in") => Sign::In,
        _ => return None,
    })
}

impl Sign {
    fn turned(self) -> Sign {
        match self {
            Sign::Less => Sign::More,
            Sign::LessOrEqual => Sign::MoreOrEqual,
            Sign::More => Sign::Less,
            Sign::MoreOrEqual => Sign::LessOrEqual,
            other => other,
        }
    }

    fn latex(self) -> &'static str {
        match self {
            Sign::Equal => "=",
            Sign::Unequal => "\\ne ",
            Sign::Less => "<",
            Sign::LessOrEqual => "\\le ",
            Sign::More => ">",
            Sign::MoreOrEqual => "\\ge ",
            Sign::In => "\\in ",
        }
    }
}

/// The sides and the signs between them.
fn sides(tokens: &[Token]) -> (Vec<&[Token]>, Vec<Sign>) {
    let sides = parts(tokens, &|token| sign(token).is_some());
    let mut end = 0;
    let mut signs = Vec::new();
    for side in &sides[..sides.len() - 1] {
        end += side.len();
        signs.extend(sign(&tokens[end]));
        end += 1;
    }
    (sides, signs)
}

/// The name to which `=` or `\in` assigns a value, if nothing else precedes it: `x`, `AB`, `x_1`, `f(x)`, `(x,y)`, a
/// text.
pub(crate) fn name(tokens: &[Token]) -> Option<&[Token]> {
    let (sides, signs) = sides(tokens);
    match (&sides[..], &signs[..]) {
        ([name, _], [Sign::Equal | Sign::In]) if is_name(name) => Some(name),
        _ => None,
    }
}

fn is_name(tokens: &[Token]) -> bool {
    let is_letter =
        |token: &Token| matches!(token, Token::Word(word) if word.len() == 1) || names::is_symbol(command(token));
    match tokens {
        [] => false,
        [one] if is_letter(one) => true,
        [Token::Word(word)] => word.len() == 2 && !names::is_plain(word),
        [one, Token::Sign('_'), _] => is_letter(one),
        [one, Token::Sign('_'), Token::Sign('{'), _, Token::Sign('}')] => is_letter(one),
        [one, Token::Sign('('), other, Token::Sign(')')] => is_letter(one) && is_letter(other),
        [Token::Sign('('), inside @ .., Token::Sign(')')] => parts(inside, &|token| *token == Token::Sign(','))
            .iter()
            .all(|part| matches!(part, [one] if is_letter(one))),
        texts => texts.iter().all(|token| matches!(token, Token::Text(_))),
    }
}

/// The canonical form of an equation, an inequality, a chain of them, or a named value. `is_named`: the name is kept.
/// `value` gives the canonical form of a side, which may hold relations itself.
pub(crate) fn relation(tokens: &[Token], is_named: bool, value: fn(&[Token]) -> Option<String>) -> Option<String> {
    let (sides, signs) = sides(tokens);
    match (&sides[..], &signs[..]) {
        ([one], []) => value(one),
        ([name, given], [Sign::Equal | Sign::In]) if is_name(name) => {
            let given = value(given)?;
            let name = match name {
                _ if !is_named => return Some(given),
                [_, Token::Sign('_'), ..] => value(name)?,
                _ => written(name),
            };
            Some(format!("{name}{}{given}", signs[0].latex()))
        }
        ([left, right], [sign]) if *sign != Sign::In => compared(left, *sign, right, is_named),
        (_, [_, _, ..]) if !signs.contains(&Sign::In) => {
            let mut values = sides.iter().map(|side| value(side)).collect::<Option<Vec<_>>>()?;
            let mut signs = signs;
            if signs.iter().all(|sign| matches!(sign, Sign::More | Sign::MoreOrEqual)) {
                values.reverse();
                signs = signs.into_iter().rev().map(Sign::turned).collect();
            }
            let rest: String =
                signs.iter().zip(&values[1..]).map(|(sign, value)| sign.latex().to_string() + value).collect();
            Some(values[0].clone() + &rest)
        }
        _ => None,
    }
}

/// Moves both sides to the left, with coprime integers as coefficients, the first of them positive.
fn compared(left: &[Token], sign: Sign, right: &[Token], is_named: bool) -> Option<String> {
    let difference = reader::sum(left)?.plus(&reader::sum(right)?.negative())?;
    if difference.is_zero() {
        return Some(format!("0{}0", sign.latex()));
    }
    let (content, leading) = (difference.content()?, difference.leading()?);
    let is_negative = leading.above < 0;
    let difference = difference.scaled(content.inverse()?)?;
    let (difference, sign) = if is_negative { (difference.negative(), sign.turned()) } else { (difference, sign) };
    let difference = difference.latex();
    match sign {
        Sign::Equal if !is_named && is_name(&tokens(&difference)) => Some("0".to_string()),
        sign => Some(format!("{difference}{}0", sign.latex())),
    }
}
