//! Brackets of all kinds, and what is between or outside them.

use super::tokens::Token;

pub fn command(token: &Token) -> &str {
    if let Token::Command(name) = token { name } else { "" }
}

pub fn opens(token: &Token) -> bool {
    matches!(token, Token::Sign('(' | '[' | '{')) || matches!(command(token), "{" | "begin" | "lfloor" | "lceil")
}

pub fn closes(token: &Token) -> bool {
    matches!(token, Token::Sign(')' | ']' | '}')) || matches!(command(token), "}" | "end" | "rfloor" | "rceil")
}

pub fn depth(tokens: &[Token]) -> usize {
    let deeper = |(depth, most): (usize, usize), token| match (opens(token), closes(token)) {
        (true, _) => (depth + 1, most.max(depth + 1)),
        (_, true) => (depth.saturating_sub(1), most),
        _ => (depth, most),
    };
    tokens.iter().fold((0, 0), deeper).1
}

/// Splits at the separators that are outside all brackets.
pub fn parts<'t>(tokens: &'t [Token], separates: &dyn Fn(&Token) -> bool) -> Vec<&'t [Token]> {
    let (mut found, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, token) in tokens.iter().enumerate() {
        if opens(token) {
            depth += 1;
        } else if closes(token) {
            depth = depth.saturating_sub(1);
        } else if depth == 0 && separates(token) {
            found.push(&tokens[start..at]);
            start = at + 1;
        }
    }
    found.push(&tokens[start..]);
    found
}

/// The tokens between a bracket at the start and its closing bracket at the end; `None` if there is no such pair.
pub fn enclosed(tokens: &[Token]) -> Option<&[Token]> {
    let [first, inside @ .., _] = tokens else { return None };
    let mut depth = 1_usize;
    for (at, token) in tokens.iter().enumerate().skip(1) {
        depth = if opens(token) { depth + 1 } else { depth - usize::from(closes(token)) };
        if depth == 0 {
            return (opens(first) && at + 1 == tokens.len()).then_some(inside);
        }
    }
    None
}
