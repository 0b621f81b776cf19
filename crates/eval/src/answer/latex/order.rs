//! Adjacent letters that may be a word, whose order matters: `item` is not `time`, though both are the same product.
//! `same` asks it before it compares what the letters are read as.

use std::collections::BTreeMap;

use crate::answer::latex::brackets::command;
use crate::answer::latex::names::{has, is_plain};
use crate::answer::latex::tokens::Token;

/// Whether two answers have the same adjacent letters in different orders: three or more of them, or two capitals that
/// are a whole element.
pub(crate) fn differs(one: &[Token], other: &[Token]) -> bool {
    let is_list = |tokens: &[Token]| tokens.contains(&Token::Sign(','));
    let is_tuple = |tokens: &[Token]| tokens.iter().any(|token| matches!(token, Token::Sign('(' | '[')));
    let are_lists = is_list(one) || is_list(other);
    let are_ordered = are_lists && (is_tuple(one) || is_tuple(other));
    let (one, other) = (by_letters(one), by_letters(other));
    one.into_iter().any(|(letters, mut own)| {
        let Some(mut others) = other.get(&letters).cloned() else { return false };
        for words in [&mut own, &mut others] {
            if !are_ordered {
                words.sort_unstable();
            }
            // A sum may have a product twice, in one term or in two.
            if !are_lists {
                words.dedup();
            }
        }
        own != others
    })
}

/// The words by their sorted letters, each in the order of writing.
fn by_letters(tokens: &[Token]) -> BTreeMap<Vec<u8>, Vec<&str>> {
    let mut found: BTreeMap<Vec<u8>, Vec<&str>> = BTreeMap::new();
    for (at, token) in tokens.iter().enumerate() {
        let Token::Word(word) = token else { continue };
        let is_pair = word.len() == 2 && word.bytes().all(|letter| letter.is_ascii_uppercase());
        let is_word = word.len() > 2 || is_pair && is_alone(tokens, at);
        if is_word && !is_plain(word) {
            let mut letters = word.as_bytes().to_vec();
            letters.sort_unstable();
            found.entry(letters).or_default().push(word);
        }
    }
    found
}

/// Whether the token at `at` is a whole answer or a whole element of a list.
fn is_alone(tokens: &[Token], at: usize) -> bool {
    let is_end = |token: Option<&Token>| match token {
        None | Some(Token::Sign(',' | ';' | '=' | '(' | ')' | '[' | ']')) => true,
        Some(Token::Word(word) | Token::Text(word)) => has("and or", word),
        Some(token) => has("{ } in", command(token)),
    };
    is_end(at.checked_sub(1).and_then(|before| tokens.get(before))) && is_end(tokens.get(at + 1))
}
