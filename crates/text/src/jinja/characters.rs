//! Classes of characters and their case, as the methods and filters of texts ask for them.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

/// `str.isspace` of a character: four control characters more than Unicode's white space.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

static LETTER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\p{L}$").expect("a pattern of ours"));
static DECIMAL: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\p{Nd}$").expect("a pattern of ours"));
pub static IDENTIFIER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^[\p{XID_Start}_]\p{XID_Continue}*$").expect("a pattern of ours"));

pub fn all(text: &str, is: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(is)
}

pub fn is_letter(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_alphabetic() } else { LETTER.is_match(c.encode_utf8(&mut [0; 4])) }
}

pub fn is_decimal(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_digit() } else { DECIMAL.is_match(c.encode_utf8(&mut [0; 4])) }
}

/// The text with Unicode's other decimal digits as 0 to 9, as Python reads numbers.
pub fn ascii_digits(text: &str) -> Cow<'_, str> {
    if text.is_ascii() { text.into() } else { text.chars().map(|c| ascii_digit(c).unwrap_or(c)).collect() }
}

/// Digits of one script follow each other from 0 to 9, and so do scripts whose digits are neighbours.
fn ascii_digit(c: char) -> Option<char> {
    let is_digit = |code: &u32| char::from_u32(*code).is_some_and(is_decimal);
    let before = (0..=c as u32).rev().take_while(is_digit).count();
    char::from_digit((before.checked_sub(1)? % 10) as u32, 10)
}

pub fn is_alphanumeric(c: char) -> bool {
    is_letter(c) || c.is_numeric()
}

/// `str.isdigit`: decimals, and digits that are raised, lowered or in circles.
pub fn is_digits(text: &str) -> bool {
    let is_other = |c: char| {
        matches!(c, '²' | '³' | '¹' | '⁰' | '⁴'..='⁹' | '₀'..='₉' | '①'..='⑨' | '⑴'..='⑼' | '⒈'..='⒐' | '⓪' | '⓵'..='⓽'
            | '⓿' | '❶'..='❾' | '➀'..='➈' | '➊'..='➒')
    };
    all(text, |c| is_decimal(c) || is_other(c))
}

/// `str.islower`
pub fn is_lower(text: &str) -> bool {
    text.chars().any(char::is_lowercase) && !text.chars().any(|c| c.is_uppercase() || is_titlecase(c))
}

/// `str.isupper`
pub fn is_upper(text: &str) -> bool {
    text.chars().any(char::is_uppercase) && !text.chars().any(|c| c.is_lowercase() || is_titlecase(c))
}

fn is_titlecase(c: char) -> bool {
    matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ' | 'ᾈ'..='ᾏ' | 'ᾘ'..='ᾟ' | 'ᾨ'..='ᾯ' | 'ᾼ' | 'ῌ' | 'ῼ')
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_titlecase(c)
}

pub fn is_title(text: &str) -> bool {
    let (mut any, mut is_inside) = (false, false);
    for c in text.chars() {
        let is_capital = c.is_uppercase() || is_titlecase(c);
        if is_capital && is_inside || c.is_lowercase() && !is_inside {
            return false;
        }
        is_inside = is_cased(c);
        any |= is_inside;
    }
    any
}

/// A character's capital at the begin of a word.
fn title_of(c: char) -> String {
    match c {
        'ß' => "Ss".to_string(),
        'Ǆ' | 'ǅ' | 'ǆ' => 'ǅ'.to_string(),
        'Ǉ' | 'ǈ' | 'ǉ' => 'ǈ'.to_string(),
        'Ǌ' | 'ǋ' | 'ǌ' => 'ǋ'.to_string(),
        'Ǳ' | 'ǲ' | 'ǳ' => 'ǲ'.to_string(),
        // Ligatures have one capital.
        'ﬀ'..='ﬗ' => {
            let mut letters = c.to_uppercase();
            let first: String = letters.next().into_iter().collect();
            first + &letters.flat_map(char::to_lowercase).collect::<String>()
        }
        c => c.to_uppercase().collect(),
    }
}

/// `text.capitalize()`
pub fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return String::new() };
    // In lower case as a whole, as a sigma at a word's end depends on what is in front.
    let rest: String = text.to_lowercase().chars().skip(first.to_lowercase().count()).collect();
    title_of(first) + &rest
}

pub fn titled(text: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    let flush = |word: &mut String, out: &mut String| {
        out.push_str(&capitalized(word));
        word.clear();
    };
    for c in text.chars() {
        if is_cased(c) {
            word.push(c);
        } else {
            flush(&mut word, &mut out);
            out.push(c);
        }
    }
    flush(&mut word, &mut out);
    out
}

pub fn swapped(text: &str) -> String {
    let swap =
        |c: char| -> String { if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() } };
    text.chars().map(swap).collect()
}

/// `text.casefold()`, of the characters whose fold is not their small letter the most used ones.
pub fn folded(text: &str) -> String {
    let fold = |c: char| -> String {
        match c {
            'ß' | 'ẞ' => "ss".to_string(),
            'ς' => "σ".to_string(),
            'ſ' => "s".to_string(),
            'µ' => "μ".to_string(),
            'ﬀ'..='ﬆ' => c.to_uppercase().flat_map(char::to_lowercase).collect(),
            c => c.to_lowercase().collect(),
        }
    };
    text.chars().map(fold).collect()
}
