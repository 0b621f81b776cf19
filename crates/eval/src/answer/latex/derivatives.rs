//! Derivatives in Leibniz's notation: `\frac{dy}{dx}`, `dy/dx`, `\frac{d^2y}{dx^2}`. They become symbols of their own,
//! such as `D_{yx}`, so that no `d` is cancelled. `reader` parses the symbols.

use crate::answer::latex::brackets::command;
use crate::answer::latex::names::is_symbol;
use crate::answer::latex::tokens::Token;

/// The tokens with a symbol in place of each derivative.
pub(crate) fn with_symbols(tokens: Vec<Token>) -> Vec<Token> {
    let is_d =
        |token: &Token| matches!(token, Token::Word(word) if word.starts_with('d')) || command(token) == "partial";
    if !tokens.iter().any(is_d) {
        return tokens;
    }
    let mut found: Vec<Token> = Vec::new();
    let mut rest = &tokens[..];
    while let [first, behind @ ..] = rest {
        let is_apart = !matches!(found.last(), Some(Token::Word(_) | Token::Sign('_' | '^')));
        match derivative(rest).filter(|_| is_apart) {
            Some((inside, after)) => {
                found.extend([Token::Word("D".to_string()), Token::Sign('_'), Token::Sign('{')]);
                found.extend(inside);
                found.push(Token::Sign('}'));
                rest = after;
            }
            None => {
                found.push(first.clone());
                rest = behind;
            }
        }
    }
    found
}

/// The index of the symbol for the derivative at the start of tokens: its order, what is derived and by what; and the
/// tokens behind it.
fn derivative(tokens: &[Token]) -> Option<(Vec<Token>, &[Token])> {
    let (above, below, rest) = match tokens {
        [Token::Command(name), Token::Sign('{'), rest @ ..] if name == "frac" => {
            let (above, rest) = differential(rest)?;
            let rest = rest.strip_prefix(&[Token::Sign('}'), Token::Sign('{')])?;
            let (below, rest) = differential(rest)?;
            (above, below, rest.strip_prefix(&[Token::Sign('}')])?)
        }
        rest => {
            let (above, rest) = differential(rest)?;
            let (below, rest) = differential(rest.strip_prefix(&[Token::Sign('/')])?)?;
            let is_more = matches!(rest.first(), Some(Token::Word(_) | Token::Number(_) | Token::Sign('^' | '_')));
            (above, below, (!is_more).then_some(rest)?)
        }
    };
    // The order stands behind the `d` above and behind the variable below.
    let by = below.letter?;
    let letters = match (above.letter, by) {
        (Some(Token::Word(of)), Token::Word(by)) => vec![Token::Word(of + &by)],
        (of, by) => of.into_iter().chain([by]).collect(),
    };
    Some((above.order.into_iter().chain(letters).collect(), rest))
}

/// `d`, `dy`, `d^2y` or `dx^2`.
struct Differential {
    order: Option<Token>,
    letter: Option<Token>,
}

fn differential(tokens: &[Token]) -> Option<(Differential, &[Token])> {
    let letter = |token: &Token| match token {
        Token::Word(word) => word.len() == 1,
        token => is_symbol(command(token)),
    };
    let [first, rest @ ..] = tokens else { return None };
    // `\mathrm{d}y` has its letters apart.
    let (letter_of_word, rest) = match first {
        Token::Word(word) if word == "d" => (None, rest),
        Token::Word(word) if word.len() == 2 && word.starts_with('d') => {
            (Some(Token::Word(word[1..].to_string())), rest)
        }
        token if command(token) == "partial" => (None, rest),
        _ => return None,
    };
    let (order, rest) = power(rest);
    let (letter, rest) = match rest {
        [next, behind @ ..] if letter_of_word.is_none() && letter(next) => (Some(next.clone()), behind),
        _ => (letter_of_word, rest),
    };
    let (order_behind, rest) = if order.is_none() { power(rest) } else { (None, rest) };
    Some((Differential { order: order.or(order_behind), letter }, rest))
}

/// The number or letter of a power, and the tokens behind it.
fn power(tokens: &[Token]) -> (Option<Token>, &[Token]) {
    match tokens {
        [Token::Sign('^'), order @ (Token::Number(_) | Token::Word(_)), rest @ ..]
        | [
            Token::Sign('^'),
            Token::Sign('{'),
            order @ (Token::Number(_) | Token::Word(_)),
            Token::Sign('}'),
            rest @ ..,
        ] => (Some(order.clone()), rest),
        rest => (None, rest),
    }
}
