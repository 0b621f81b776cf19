//! What an answer says: a list of elements, each a value with its name and unit, where a value is an expression, words,
//! a set, a tuple or interval, a matrix, a union, a ratio, an equation or an inequality. This module parses tokens to
//! them; `key` writes them as text, `same` compares them.

use crate::answer::latex::brackets::{command, enclosed, parts};
use crate::answer::latex::names::{self, has};
use crate::answer::latex::quantity::Unit;
use crate::answer::latex::reader;
use crate::answer::latex::relation::{self, Name, Relation};
use crate::answer::latex::sum::Sum;
use crate::answer::latex::tokens::Token;
use crate::answer::latex::units::{self, AnswerScope, without_money, without_units};

/// The elements of an answer, in the order of writing.
#[derive(Clone, Debug)]
pub(crate) struct List {
    pub elements: Vec<Element>,
    /// Whether an `and` separates elements.
    pub has_and: bool,
    /// Whether an `or` separates elements.
    pub has_or: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Element {
    /// What precedes `=` or `\in`, if that only names the value.
    pub name: Option<Name>,
    pub value: Value,
    pub unit: Option<Unit>,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// In canonical form.
    Words(String),
    Expression(Sum),
    Set(Vec<Element>),
    /// A tuple or interval: `open` is `(` or `[`, `close` is `)` or `]`.
    Tuple {
        open: char,
        elements: Vec<Element>,
        close: char,
    },
    /// Its rows.
    Matrix(Vec<Vec<Value>>),
    Union(Vec<Value>),
    /// The first set without the elements of the second.
    Difference(Box<Value>, Box<Value>),
    Ratio(Vec<Sum>),
    Relation(Relation),
}

impl Element {
    fn plain(value: Value) -> Element {
        Element { name: None, value, unit: None }
    }
}

/// The elements of a list. `None` if one cannot be parsed.
pub(crate) fn list(tokens: &[Token]) -> Option<List> {
    if let ([Token::Sign('{'), ..], Some(inside)) = (tokens, enclosed(tokens)) {
        // `{1,2}` is a set, but `{{1},{2}}` may be one of sets or of numbers.
        let members = parts(inside, &|token| *token == Token::Sign(','));
        let is_braced = |member: &&[Token]| member.first() == Some(&Token::Sign('{')) && enclosed(member).is_some();
        let is_clear = members.len() < 2 || !members.iter().any(is_braced);
        return is_clear.then(|| list(inside)).flatten();
    }
    let groups: Vec<&[Token]> = parts(tokens, &|token| *token == Token::Sign(';'));
    let groups: Vec<&[Token]> = groups.into_iter().filter(|group| !group.is_empty()).collect();
    if groups.len() > 1 {
        let lists = groups.iter().map(|group| comma_list(group)).collect::<Option<Vec<_>>>()?;
        let length = lists[0].elements.len();
        let is_tuple = length > 1;
        lists.iter().all(|list| list.elements.len() == length).then_some(())?;
        let has_and = lists.iter().any(|list| list.has_and);
        let has_or = lists.iter().any(|list| list.has_or);
        let tuple = |list: List| Element::plain(Value::Tuple { open: '(', elements: list.elements, close: ')' });
        let elements = match is_tuple {
            true => lists.into_iter().map(tuple).collect(),
            false => lists.into_iter().flat_map(|list| list.elements).collect(),
        };
        return Some(List { elements, has_and, has_or });
    }
    comma_list(groups.first()?)
}

fn is_word(token: &Token, expected: &str) -> bool {
    matches!(token, Token::Word(word) | Token::Text(word) if word == expected)
}

fn is_conjunction(token: &Token) -> bool {
    is_word(token, "and") || is_word(token, "or")
}

fn comma_list(tokens: &[Token]) -> Option<List> {
    let [has_and, has_or] = ["and", "or"].map(|word| tokens.iter().any(|token| is_word(token, word)));
    let mut listed = parts(tokens, &|token| *token == Token::Sign(',') || is_conjunction(token));
    listed.retain(|part| !part.is_empty());
    units::have_same_unit(&listed).then_some(())?;
    let place = if listed.len() > 1 { AnswerScope::Listed } else { AnswerScope::Whole };
    let mut elements = Vec::new();
    for part in listed {
        for part in both_signs(part)? {
            elements.push(element(&part, place)?);
        }
    }
    (!elements.is_empty()).then_some(List { elements, has_and, has_or })
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

fn element(tokens: &[Token], place: AnswerScope) -> Option<Element> {
    let tokens = if place == AnswerScope::Whole { without_lead(tokens) } else { tokens };
    if let Some(words) = date(tokens).or_else(|| words(tokens)) {
        return Some(Element::plain(Value::Words(words)));
    }
    let (tokens, money) = without_money(tokens);
    let (tokens, unit) = without_units(&tokens, place);
    let unit = Unit::read(money, unit);
    match words(tokens) {
        Some(words) => Some(Element { unit, ..Element::plain(Value::Words(words)) }),
        None => relation::element(tokens).map(|element| Element { unit, ..element }),
    }
}

/// Without words that only announce the number behind them, as in `Answer: 9`.
fn without_lead(tokens: &[Token]) -> &[Token] {
    let is_lead = |token: &Token| match token {
        Token::Word(word) | Token::Text(word) => has(names::LEADS, &word.to_lowercase()),
        _ => false,
    };
    let lead = tokens.iter().take_while(|token| is_lead(token)).count();
    let behind = &tokens[lead..];
    let behind = behind.strip_prefix(&[Token::Sign(':')]).unwrap_or(behind);
    let is_value = matches!(behind.first(), Some(Token::Number(_) | Token::Sign('-' | '(' | '[') | Token::Command(_)));
    if lead > 0 && is_value { behind } else { tokens }
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
    // Digits side by side would be one number.
    let has_numbers = tokens.windows(2).any(|pair| matches!(pair, [Token::Number(_), Token::Number(_)]));
    if !is_first || has_command || has_numbers || !tokens.iter().zip(&words).any(is_word) {
        return None;
    }
    let joined = words.join(" ");
    let is_same_without_text = words.iter().any(is_plain) && !words.iter().any(|word| names::is_plain(word));
    Some(if is_same_without_text { joined } else { format!("\\text{{{joined}}}") })
}

/// A set, tuple, interval, matrix, union or ratio of values, or an expression.
pub(crate) fn value(tokens: &[Token]) -> Option<Value> {
    let united = parts(tokens, &|token| command(token) == "cup");
    if united.len() > 1 {
        return Some(Value::Union(united.into_iter().map(value).collect::<Option<_>>()?));
    }
    if let [set, without] = parts(tokens, &|token| command(token) == "setminus")[..] {
        return Some(Value::Difference(Box::new(value(set)?), Box::new(value(without)?)));
    }
    let ratio = parts(tokens, &|token| *token == Token::Sign(':'));
    if ratio.len() > 1 {
        if let Some(time) = time(&ratio) {
            return Some(Value::Words(time));
        }
        return Some(Value::Ratio(ratio.into_iter().map(reader::sum).collect::<Option<_>>()?));
    }
    let Some(inside) = enclosed(tokens) else { return expression(tokens) };
    match (&tokens[0], &tokens[tokens.len() - 1]) {
        (Token::Command(open), Token::Command(close)) if open == "{" && close == "}" => set(inside),
        (Token::Command(open), Token::Command(close)) if open == "begin" && close == "end" => matrix(inside),
        (Token::Sign(open @ ('(' | '[')), Token::Sign(close @ (')' | ']'))) => {
            let by_semicolons = parts(inside, &|token| *token == Token::Sign(';'));
            let by_commas = parts(inside, &|token| *token == Token::Sign(','));
            let listed = match (by_semicolons.len(), by_commas.len()) {
                (2.., 2..) => return None,
                (2.., _) => by_semicolons,
                _ => by_commas,
            };
            match listed[..] {
                [one] if (*open == '(') == (*close == ')') => value(one),
                [_] => None,
                _ => {
                    units::have_same_unit(&listed).then_some(())?;
                    let element = |part| element(part, AnswerScope::Listed);
                    let elements = listed.into_iter().map(element).collect::<Option<Vec<_>>>()?;
                    Some(Value::Tuple { open: *open, elements, close: *close })
                }
            }
        }
        _ => expression(tokens),
    }
}

/// A time of day, whose minutes or seconds have a zero in front (`1:05`): no ratio.
fn time(parts: &[&[Token]]) -> Option<String> {
    let digits = |part: &&[Token]| match part {
        [Token::Number(digits)] => Some(digits.clone()),
        _ => None,
    };
    let mut parts: Vec<String> = parts.iter().map(digits).collect::<Option<_>>()?;
    let is_zeroed = |digits: &String| digits.len() == 2 && digits.starts_with('0');
    parts[1..].iter().any(is_zeroed).then_some(())?;
    parts[0] = without_zeros(&parts[0]);
    Some(parts.join(":"))
}

fn without_zeros(digits: &str) -> String {
    let rest = digits.trim_start_matches('0');
    if rest.is_empty() { "0".to_owned() } else { rest.to_owned() }
}

/// A date in digits: `2020-05-06`, `5/6/2020` or `5-6-2020`, with the month before or behind the day. No difference and
/// no quotient.
fn date(tokens: &[Token]) -> Option<String> {
    let [Token::Number(one), Token::Sign(first), Token::Number(two), Token::Sign(second), Token::Number(three)] =
        tokens
    else {
        return None;
    };
    let number = |digits: &String| digits.parse::<u32>().ok().filter(|_| digits.len() <= 2);
    let are_day_and_month = |one: &String, other: &String| {
        let days = number(one).zip(number(other)).map(|(one, other)| (one.min(other), one.max(other)));
        days.is_some_and(|(month, day)| (1..=12).contains(&month) && (1..=31).contains(&day))
    };
    let is_year = |digits: &String| digits.len() == 4 && !digits.contains('.');
    (first == second && matches!(first, '-' | '/')).then_some(())?;
    let [day, month] = [without_zeros(one), without_zeros(two)];
    if is_year(three) && are_day_and_month(one, two) {
        return Some(format!("{day}{first}{month}{first}{three}"));
    }
    let is_padded = two.len() == 2 && three.len() == 2 && are_day_and_month(two, three);
    (is_year(one) && is_padded).then(|| format!("{one}{first}{two}{first}{three}"))
}

/// A set of elements, or of what fulfils a condition (`\{x : x>3\}`), which is that condition.
fn set(inside: &[Token]) -> Option<Value> {
    if inside.is_empty() {
        return Some(Value::Expression(Sum::named("\\emptyset")));
    }
    let divides = |token: &Token| matches!(token, Token::Sign('|' | ':'));
    if let [of, condition] = parts(inside, &divides)[..]
        && let Some(variable) = relation::variable(of)
    {
        let element = relation::element(condition)?;
        let is_about = match &element.value {
            Value::Relation(relation) => relation.variable().as_deref() == Some(variable.text()),
            _ => element.name.as_ref() == Some(&variable),
        };
        return is_about
            .then_some(element.value)
            .filter(|value| matches!(value, Value::Relation(_) | Value::Tuple { .. }));
    }
    list(inside).map(|list| Value::Set(list.elements))
}

fn matrix(inside: &[Token]) -> Option<Value> {
    let row = |row: &[Token]| {
        parts(row, &|token| *token == Token::Sign('&')).into_iter().map(value).collect::<Option<Vec<_>>>()
    };
    let mut rows = parts(inside, &|token| command(token) == "\\");
    rows.retain(|row| !row.is_empty());
    Some(Value::Matrix(rows.into_iter().map(row).collect::<Option<_>>()?))
}

fn expression(tokens: &[Token]) -> Option<Value> {
    reader::sum(tokens).map(Value::Expression)
}
