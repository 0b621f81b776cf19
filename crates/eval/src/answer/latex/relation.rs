//! Equations and inequalities: finds the name of a value (`x=5`), the last member of a chain of equations, and gives
//! the others a canonical form. `value` parses the sides that are values; `reader` those that are expressions.

use crate::answer::latex::brackets::{command, enclosed, parts};
use crate::answer::latex::names;
use crate::answer::latex::reader;
use crate::answer::latex::sum::{Atom, Monomial, Sum};
use crate::answer::latex::tokens::{Token, tokens, written};
use crate::answer::latex::value::{Element, Value, value};
use crate::answer::rational::Rational;

/// The relation of two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    Equal,
    Approximate,
    Unequal,
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
    In,
}

/// What precedes `=` or `\in` and only names the value behind it.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    text: String,
    sign: Sign,
}

/// Names are equal if their texts are.
impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        self.text == other.text
    }
}

/// An equation or inequality that does not name a value.
#[derive(Clone, Debug)]
pub(crate) enum Relation {
    /// The left minus the right side, with coprime integers as coefficients, the first of them positive.
    Compared { difference: Sum, sign: Sign },
    /// Three or more sides, or two whose difference is a number, with the signs between them, ascending if all of these
    /// are inequalities of one direction.
    Chain { values: Vec<Value>, signs: Vec<Sign> },
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
        (_, "approx") => Sign::Approximate,
        _ => return None,
    })
}

impl Sign {
    pub fn turned(self) -> Sign {
        match self {
            Sign::Less => Sign::More,
            Sign::LessOrEqual => Sign::MoreOrEqual,
            Sign::More => Sign::Less,
            Sign::MoreOrEqual => Sign::LessOrEqual,
            other => other,
        }
    }

    pub fn latex(self) -> &'static str {
        match self {
            Sign::Equal => "=",
            Sign::Approximate => "\\approx ",
            Sign::Unequal => "\\ne ",
            Sign::Less => "<",
            Sign::LessOrEqual => "\\le ",
            Sign::More => ">",
            Sign::MoreOrEqual => "\\ge ",
            Sign::In => "\\in ",
        }
    }
}

impl Name {
    /// `None` if the tokens are more than a name: `x`, `AB`, `x_1`, `f(x)`, `(x,y)`, `AB:CD`, a text.
    fn read(tokens: &[Token], sign: Sign) -> Option<Name> {
        is_name(tokens).then_some(())?;
        let text = match tokens {
            [Token::Text(letter)] if letter.len() == 1 => letter.clone(),
            [_, Token::Sign('_'), ..] if !tokens.contains(&Token::Sign(':')) => reader::sum(tokens)?.latex(),
            _ => written(tokens),
        };
        Some(Name { text, sign })
    }

    /// The name as a symbol, if it is one.
    pub fn symbol(&self) -> Option<Sum> {
        let sum = reader::sum(&tokens(&self.text))?;
        let is_symbol = |product: &Monomial| {
            product.len() == 1 && product.iter().all(|(atom, at)| matches!(atom, Atom::Named(_)) && at.is_whole())
        };
        (sum.terms.len() == 1 && sum.terms.keys().all(is_symbol) && sum.latex() == self.text).then_some(sum)
    }

    /// The names in a name such as `(x,y)`; empty if it is no such.
    pub fn coordinates(&self) -> Vec<Name> {
        let inside = self.text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
        let name = |text: &str| Name { text: text.trim().to_string(), sign: Sign::Equal };
        inside.map(|inside| inside.split(',').map(name).collect()).unwrap_or_default()
    }

    /// The canonical form.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// `Equal` or `In`.
    pub fn sign(&self) -> Sign {
        self.sign
    }
}

impl Relation {
    /// The expression that an inequality compares with numbers, if there is one such: the name in the middle of a
    /// chain, or the only symbol or function of a difference.
    pub fn variable(&self) -> Option<String> {
        match self {
            Relation::Compared { difference, .. } => linear(difference).map(|(variable, _, _)| variable.latex()),
            Relation::Chain { values, .. } => match &values[..] {
                [_, Value::Expression(middle), _] => Some(middle.latex()),
                _ => None,
            },
        }
    }
}

/// The parts of `a v + b`, where `v` is a symbol, a function value or an absolute value, and `a` a number other than 0.
/// A power or a product is none of these.
pub(crate) fn linear(sum: &Sum) -> Option<(Sum, Rational, Sum)> {
    let is_constant = |atom: &Atom| match atom {
        Atom::Prime(_) => true,
        Atom::Named(name) => ["\\pi", "e", "\\infty"].contains(&&name[..]),
        Atom::Call(..) | Atom::Group(_) => false,
    };
    let mut rest = sum.clone();
    let mut found = None;
    for (product, coefficient) in &sum.terms {
        if !product.keys().all(is_constant) {
            let is_plain = product.values().all(|power| *power == Rational::whole(1));
            (is_plain && product.len() == 1).then_some(())?;
            rest.terms.remove(product);
            let variable = Sum { terms: [(product.clone(), Rational::whole(1))].into() };
            (found.replace((variable, *coefficient)).is_none()).then_some(())?;
        }
    }
    found.map(|(variable, coefficient)| (variable, coefficient, rest))
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

/// The variable of a set with a condition: `x` or `x \in \mathbb{R}`.
pub(crate) fn variable(tokens: &[Token]) -> Option<Name> {
    let (sides, signs) = sides(tokens);
    match (&sides[..], &signs[..]) {
        ([name], []) => Name::read(name, Sign::In),
        ([name, [Token::Command(set)]], [Sign::In]) if set == "mathbb{R}" => Name::read(name, Sign::In),
        _ => None,
    }
}

fn is_name(tokens: &[Token]) -> bool {
    let is_constant = |token: &Token| names::has("pi infty emptyset dots", command(token));
    let is_letter = |token: &Token| match token {
        Token::Word(word) => word.len() == 1,
        token => names::is_symbol(command(token)) && !is_constant(token),
    };
    let is_factor = |token: &Token| {
        let name = if let Token::Word(word) = token { word.clone() } else { format!("\\{}", command(token)) };
        names::has(names::NEVER_FUNCTIONS, &name)
    };
    // What probabilities and expected values are those of: `X>2`, `A|B`.
    let is_event = |inside: &[Token]| {
        let tells = |token: &Token| sign(token).is_some() || *token == Token::Sign('|');
        inside.iter().any(|token| tells(token) || names::has("cap cup", command(token)))
    };
    let ratio = parts(tokens, &|token| *token == Token::Sign(':'));
    if ratio.len() > 1 {
        return ratio.into_iter().all(is_name);
    }
    match tokens {
        [] => false,
        [one] if is_letter(one) => true,
        // `AB` is a line; `xy` is a product.
        [Token::Word(word)] => word.len() == 2 && word.bytes().all(|letter| letter.is_ascii_uppercase()),
        [one, Token::Sign('_'), _] => is_letter(one),
        [one, Token::Sign('_'), Token::Sign('{'), _, Token::Sign('}')] => is_letter(one),
        [one, Token::Sign('('), Token::Number(_), Token::Sign(')')] => is_letter(one) && !is_factor(one),
        [Token::Word(word), inside @ ..] if names::has("P E", word) && enclosed(inside).is_some_and(is_event) => true,
        [one, marks @ .., Token::Sign('('), other, Token::Sign(')')] if is_letter(one) && is_letter(other) => {
            marks.iter().all(|mark| *mark == Token::Sign('\'')) || written(marks) == "^{-1}"
        }
        [Token::Sign('('), inside @ .., Token::Sign(')')] => parts(inside, &|token| *token == Token::Sign(','))
            .iter()
            .all(|part| matches!(part, [one] if is_letter(one))),
        [Token::Sign('|'), inside @ .., Token::Sign('|')] => is_line(inside),
        [Token::Command(mark), inside @ ..] if names::has(names::MARKS, mark) => enclosed(inside).is_some_and(is_name),
        [Token::Command(figure), inside @ ..] if names::has("angle triangle", figure) => is_line(inside),
        [Token::Command(frac), Token::Sign('{'), a, Token::Sign('}'), Token::Sign('{'), b, Token::Sign('}')] => {
            frac == "frac" && is_line(std::slice::from_ref(a)) && is_line(std::slice::from_ref(b))
        }
        texts => texts.iter().all(|token| matches!(token, Token::Text(_))),
    }
}

/// Whether they are the points of a line, angle or figure: two or more capital letters.
fn is_line(tokens: &[Token]) -> bool {
    matches!(tokens, [Token::Word(points)] if points.len() > 1 && points.bytes().all(|b| b.is_ascii_uppercase()))
}

/// A value with its name, an equation, an inequality, or a chain of them.
pub(crate) fn element(tokens: &[Token]) -> Option<Element> {
    let (sides, signs) = sides(tokens);
    let named = |name: Option<Name>, value: Value| Some(Element { name, value, unit: None });
    if let Some(at) = signs.iter().position(|sign| *sign == Sign::Approximate) {
        return match Name::read(sides[0], Sign::Equal) {
            Some(name) if at == 0 => named(Some(name), value(sides[1])?),
            _ => element(&tokens[..sides[..=at].iter().map(|side| side.len()).sum::<usize>() + at]),
        };
    }
    let is_equation = !signs.is_empty() && signs.iter().all(|sign| *sign == Sign::Equal);
    let is_identity = || {
        let sums: Option<Vec<Sum>> = sides.iter().map(|side| reader::sum(side)).collect();
        sums.is_some_and(|sums| sums.iter().all(|sum| *sum == sums[0]))
    };
    match (&sides[..], &signs[..]) {
        ([one], []) => named(None, value(one)?),
        ([name, given], [sign @ (Sign::Equal | Sign::In)]) if is_name(name) => {
            named(Some(Name::read(name, *sign)?), value(given)?)
        }
        ([given, name], [Sign::Equal]) if is_name(name) && !matches!(name, [Token::Word(word)] if word.len() > 1) => {
            named(Some(Name::read(name, Sign::Equal)?), value(given)?)
        }
        ([first, between @ .., last], _)
            if is_equation
                && sides.len() > 2
                && simplified(first).is_some()
                && !between.iter().any(|side| *side != *first && names_another(side)) =>
        {
            named(simplified(first), value(last)?)
        }
        ([_, .., last], _) if is_equation && is_identity() => named(None, value(last)?),
        ([left, right], [sign]) if *sign != Sign::In => compared(left, *sign, right),
        (_, [_, _, ..]) if !signs.contains(&Sign::In) => {
            let mut values = sides.iter().map(|side| value(side)).collect::<Option<Vec<_>>>()?;
            let mut signs = signs;
            if signs.iter().all(|sign| matches!(sign, Sign::More | Sign::MoreOrEqual)) {
                values.reverse();
                signs = signs.into_iter().rev().map(Sign::turned).collect();
            }
            named(None, Value::Relation(Relation::Chain { values, signs }))
        }
        _ => None,
    }
}

/// Whether a side of a chain is a name or a multiple of one, as in `x=2y=4`: the chain says more than its first name's
/// value. Formulas, as in `A=\pi r^2=9\pi`, only lead to it.
fn names_another(side: &[Token]) -> bool {
    let is_multiple = || {
        let sum = reader::sum(side)?;
        let (product, _) = sum.terms.first_key_value().filter(|_| sum.terms.len() == 1)?;
        let (atom, power) = product.first_key_value().filter(|_| product.len() == 1)?;
        let is_name = match atom {
            Atom::Named(name) => !["\\pi", "e"].contains(&&name[..]),
            Atom::Call(name, _) => !name.starts_with('\\') && !["|", "^", "!", "!!"].contains(&&name[..]),
            Atom::Prime(_) | Atom::Group(_) => false,
        };
        (is_name && *power == Rational::whole(1)).then_some(())
    };
    is_name(side) || is_multiple().is_some()
}

/// The name that a side is, perhaps only when it is simplified, as `x+0`.
fn simplified(side: &[Token]) -> Option<Name> {
    Name::read(side, Sign::Equal).or_else(|| Name::read(&tokens(&reader::sum(side)?.latex()), Sign::Equal))
}

/// Moves both sides to the left. An equation of a name and 0 names the value 0.
fn compared(left: &[Token], sign: Sign, right: &[Token]) -> Option<Element> {
    let (left, right) = (reader::sum(left)?, reader::sum(right)?);
    let difference = left.clone().plus(&right.clone().negative())?;
    // What holds always or never, as `5<6`, is what it is written as, and infinity has no difference.
    if difference.as_number().is_some() || [&left, &right].iter().any(|side| side.is_infinite()) {
        let is_turned = matches!(sign, Sign::More | Sign::MoreOrEqual);
        let (values, signs) = match is_turned {
            true => (vec![right, left], vec![sign.turned()]),
            false => (vec![left, right], vec![sign]),
        };
        let values = values.into_iter().map(Value::Expression).collect();
        let value = Value::Relation(Relation::Chain { values, signs });
        return Some(Element { name: None, value, unit: None });
    }
    let (difference, sign) = normal(difference, sign)?;
    let text = tokens(&difference.latex());
    match Name::read(&text, Sign::Equal) {
        Some(name) if sign == Sign::Equal => {
            Some(Element { name: Some(name), value: Value::Expression(Sum::default()), unit: None })
        }
        _ => Some(Element { name: None, value: Value::Relation(Relation::Compared { difference, sign }), unit: None }),
    }
}

/// With coprime integers as coefficients, the first of them positive.
pub(crate) fn normal(difference: Sum, sign: Sign) -> Option<(Sum, Sign)> {
    if difference.is_zero() {
        return Some((difference, sign));
    }
    let (content, leading) = (difference.content()?, difference.leading()?);
    let difference = difference.scaled(content.inverse()?)?;
    Some(if leading.above < 0 { (difference.negative(), sign.turned()) } else { (difference, sign) })
}
