//! Compares two answers: whether they say the same. Unlike the key, by which votes are counted, this is no
//! equivalence: `5` is the same as `5\text{ cm}` and as `5\text{ m}`, which are not the same. What cannot be decided is
//! not the same.

use crate::answer::latex::brackets::command;
use crate::answer::latex::intervals::{number_set, region};
use crate::answer::latex::names::{MONEY, has, is_value};
use crate::answer::latex::numeric;
use crate::answer::latex::quantity::Unit;
use crate::answer::latex::read;
use crate::answer::latex::relation::{Name, Relation, Sign, normal};
use crate::answer::latex::sum::{Atom, Sum};
use crate::answer::latex::tokens::{Token, tokens, written};
use crate::answer::latex::value::{Element, List, Value};
use crate::answer::rational::Rational;

/// Maximum number of elements of a list that are compared with each other, to bound the time.
const MOST_ELEMENTS: usize = 24;

/// Whether two answers say the same.
pub fn same(one: &str, other: &str) -> bool {
    let comma = |text: &str, other: &str| with_point(text).is_some_and(|text| is_same(&text, other));
    match (is_decimal(one), is_decimal(other)) {
        (true, false) => comma(other, one) || is_same(one, other),
        (false, true) => comma(one, other) || is_same(one, other),
        _ => is_same(one, other),
    }
}

fn is_decimal(text: &str) -> bool {
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b' ');
    let text = text.trim().trim_start_matches(['-', '+']);
    text.split_once('.')
        .is_some_and(|(whole, fraction)| is_digits(whole) && is_digits(fraction) && !fraction.is_empty())
}

/// A number with its decimal comma as a point, as in `1,22` and `0,111`, unless the comma may separate thousands.
fn with_point(text: &str) -> Option<String> {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = text.trim();
    let (whole, fraction) = text.split_once(',')?;
    let digits = whole.trim_start_matches(['-', '+']);
    let is_thousands = fraction.len() == 3 && digits.len() <= 3 && !digits.starts_with('0');
    // `1,5` is rather a list.
    let is_list = fraction.len() == 1;
    (is_digits(digits) && is_digits(fraction) && !is_thousands && !is_list).then(|| format!("{whole}.{fraction}"))
}

fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (tokens(one), tokens(other));
    if one.is_empty() || other.is_empty() {
        return false;
    }
    if one == other {
        return true;
    }
    if let (Some(one), Some(other)) = (choice(&one), choice(&other)) {
        return one == other;
    }
    match (labelled(&one), labelled(&other)) {
        (Some((label, one)), None) => return is_choice(&other, label) || same_tokens(one, &other),
        (None, Some((label, other))) => return is_choice(&one, label) || same_tokens(&one, other),
        (Some((one, inside)), Some((other, other_inside))) => return one == other && same_tokens(inside, other_inside),
        (None, None) => {}
    }
    same_tokens(&one, &other)
}

fn same_tokens(one: &[Token], other: &[Token]) -> bool {
    match (read(one), read(other)) {
        (Some(one), Some(other)) => same_lists(&one, &other),
        (None, None) => plain(one) == plain(other),
        _ => false,
    }
}

/// The text of tokens that are not understood.
fn plain(tokens: &[Token]) -> String {
    written(tokens)
}

/// The letter of a choice, `\text{c}` or `(C)`, as a capital.
fn choice(tokens: &[Token]) -> Option<String> {
    match tokens {
        [Token::Text(letter)] | [Token::Sign('('), Token::Text(letter) | Token::Word(letter), Token::Sign(')')]
            if letter.len() == 1 =>
        {
            Some(letter.to_uppercase())
        }
        _ => None,
    }
}

/// The letter of a choice and the value that stands behind it, as in `\text{(B) }5`.
fn labelled(tokens: &[Token]) -> Option<(&str, &[Token])> {
    let [Token::Sign('('), Token::Text(letter), Token::Sign(')'), value @ ..] = tokens else { return None };
    let is_value = match value.first()? {
        Token::Number(_) | Token::Sign('-') => true,
        token => is_value(command(token)) || has(MONEY, command(token)),
    };
    let has_more = value.iter().any(|token| matches!(token, Token::Text(text) if text.len() == 1));
    (matches!(letter.as_bytes(), [b'A'..=b'J']) && is_value && !has_more).then_some((letter, value))
}

fn is_choice(tokens: &[Token], letter: &str) -> bool {
    matches!(tokens, [Token::Word(other)] if other == letter) || choice(tokens).is_some_and(|other| other == letter)
}

fn same_lists(one: &List, other: &List) -> bool {
    let regions = || region(one).zip(region(other)).is_some_and(|(one, other)| one.is_same(&other));
    let (one_flat, other_flat) = (Flat::new(one), Flat::new(other));
    let by_coordinates = || match (coordinates(one), coordinates(other)) {
        (Some(one), None) => same_elements(&one, &other_flat),
        (None, Some(other)) => same_elements(&one_flat, &other),
        _ => false,
    };
    let by_elements = || same_elements(&one_flat, &other_flat) || by_coordinates();
    (!differ_in_or(one, other) && by_elements()) || regions()
}

/// Whether one of two lists has an `or` between what another word, or a comma, would make something else: conditions,
/// and values of several names. Solutions of one name are the same with `and`, `or` and a comma.
fn differ_in_or(one: &List, other: &List) -> bool {
    if one.has_or == other.has_or {
        return false;
    }
    let list = if one.has_or { one } else { other };
    let is_condition = |element: &Element| match &element.value {
        Value::Relation(Relation::Compared { sign, .. }) => *sign != Sign::Equal,
        Value::Relation(Relation::Chain { .. }) => true,
        Value::Words(_) => one.has_and || other.has_and,
        _ => false,
    };
    let mut names: Vec<&str> = list.elements.iter().filter_map(|element| Some(element.name.as_ref()?.text())).collect();
    names.dedup();
    names.len() > 1 || list.elements.len() > 1 && list.elements.iter().any(is_condition)
}

/// `(x,y)=(1,2)` as `x=1, y=2`.
fn coordinates(list: &List) -> Option<Flat> {
    let [Element { name: Some(name), value: Value::Tuple { open: '(', elements, close: ')' }, .. }] =
        &list.elements[..]
    else {
        return None;
    };
    let names = name.coordinates();
    (names.len() == elements.len()).then_some(())?;
    let named = |(name, element): (Name, &Element)| Element { name: Some(name), ..element.clone() };
    Some(Flat { elements: names.into_iter().zip(elements).map(named).collect(), is_set: false })
}

/// The elements of a list or set.
struct Flat {
    elements: Vec<Element>,
    is_set: bool,
}

impl Flat {
    fn new(list: &List) -> Flat {
        match &list.elements[..] {
            [Element { name, value: Value::Set(elements), unit }] if elements.len() > 1 || name.is_some() => {
                let inherit = |element: &Element| Element {
                    name: element.name.clone().or_else(|| name.clone()),
                    unit: element.unit.clone().or_else(|| unit.clone()),
                    ..element.clone()
                };
                Flat { elements: elements.iter().map(inherit).collect(), is_set: true }
            }
            // A name before the first element only is that of all.
            elements => {
                let mut elements = elements.to_vec();
                let first = elements.first().and_then(|element| element.name.clone());
                if elements.iter().skip(1).all(|element| element.name.is_none()) {
                    elements.iter_mut().for_each(|element| element.name = first.clone());
                }
                Flat { elements, is_set: false }
            }
        }
    }

    /// The names of elements that have each another: their values belong to these names, in the order of writing.
    fn names(&self) -> Option<Vec<&str>> {
        let names: Vec<&str> = self.elements.iter().map(|e| e.name.as_ref().map(Name::text)).collect::<Option<_>>()?;
        let mut roots: Vec<&str> = names.iter().map(|name| name.split('_').next().unwrap_or(name)).collect();
        roots.sort_unstable();
        roots.dedup();
        (names.len() > 1 && roots.len() == names.len()).then_some(names)
    }

    fn is_unnamed(&self) -> bool {
        self.elements.iter().all(|element| element.name.is_none())
    }
}

fn same_elements(one: &Flat, other: &Flat) -> bool {
    for (named, bare) in [(one, other), (other, one)] {
        if let (Some(names), true) = (named.names(), bare.is_unnamed()) {
            return named_values(&named.elements, &names, bare);
        }
    }
    // Solutions that are tuples have no multiplicity.
    let are_points = || {
        let is_tuple = |element: &Element| matches!(element.value, Value::Tuple { .. });
        one.elements.len().min(other.elements.len()) > 1 && one.elements.iter().chain(&other.elements).all(is_tuple)
    };
    match one.is_set && other.is_set || are_points() {
        true => includes(&one.elements, &other.elements) && includes(&other.elements, &one.elements),
        false => matched(&one.elements, &other.elements),
    }
}

/// Whether a list or tuple has the values of `x=1, y=2` in their order: that of writing or, of a tuple, of the names.
fn named_values(named: &[Element], names: &[&str], bare: &Flat) -> bool {
    let in_order = |elements: &[Element], others: &[Element]| {
        elements.len() == others.len() && elements.iter().zip(others).all(|(a, b)| same_element(a, b))
    };
    match &bare.elements[..] {
        [Element { value: Value::Tuple { open: '(', elements, close: ')' }, .. }] => {
            let mut sorted: Vec<(&str, Element)> = names.iter().copied().zip(named.iter().cloned()).collect();
            sorted.sort_by(|a, b| a.0.cmp(b.0));
            let sorted: Vec<Element> = sorted.into_iter().map(|(_, element)| element).collect();
            in_order(&sorted, elements)
        }
        elements => !bare.is_set && in_order(named, elements),
    }
}

/// Whether each element of one list has its own equal in the other.
fn matched(one: &[Element], other: &[Element]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let text = |element: &Element| (element.key(true), element.unit.clone());
    let mut left: Vec<(&Element, _)> = other.iter().map(|element| (element, text(element))).collect();
    let mut unmatched = Vec::new();
    for element in one {
        let own = text(element);
        match left.iter().position(|(_, other)| *other == own) {
            Some(at) => drop(left.swap_remove(at)),
            None => unmatched.push(element),
        }
    }
    unmatched.len() <= MOST_ELEMENTS
        && unmatched.into_iter().all(|element| {
            let at = left.iter().position(|(other, _)| same_element(element, other));
            at.map(|at| left.swap_remove(at)).is_some()
        })
}

/// Whether each element of a set is in the other.
fn includes(set: &[Element], elements: &[Element]) -> bool {
    set.len().max(elements.len()) <= MOST_ELEMENTS
        && elements.iter().all(|element| set.iter().any(|own| same_element(own, element)))
}

fn same_element(one: &Element, other: &Element) -> bool {
    let by_equation = || equation(one).zip(equation(other)).is_some_and(|(one, other)| numeric::same(&one, &other));
    (same_names(one, other) && same_quantities(one, other)) || by_equation()
}

/// Whether both have the same name, or one has none. `y` and `f(x)` name the same.
fn same_names(one: &Element, other: &Element) -> bool {
    match (&one.name, &other.name) {
        (Some(one), Some(other)) => {
            let is_function = |name: &Name| name.text() == "y" || name.text() == "f(x)";
            one == other || (is_function(one) && is_function(other))
        }
        _ => true,
    }
}

/// An equation as the expression that is 0. A name that is more than a symbol, such as `f(2)`, is no part of one.
fn equation(element: &Element) -> Option<Sum> {
    match (&element.name, &element.value) {
        (Some(name), Value::Expression(sum)) if name.sign() == Sign::Equal && element.unit.is_none() => {
            let name = name.symbol()?;
            normal(name.plus(&sum.clone().negative())?, Sign::Equal).map(|(difference, _)| difference)
        }
        (None, Value::Relation(Relation::Compared { difference, sign: Sign::Equal })) => Some(difference.clone()),
        _ => None,
    }
}

fn same_quantities(one: &Element, other: &Element) -> bool {
    let scaled = |element: &Element, by: Rational| match &element.value {
        Value::Expression(sum) => sum.scaled(by).map(Value::Expression),
        value => (by == Rational::whole(1)).then(|| value.clone()),
    };
    let is_equal = same_values(&one.value, &other.value);
    match (&one.unit, &other.unit) {
        (None, None) => is_equal,
        (Some(unit), Some(to)) => match unit.converted(to) {
            Some(factor) => scaled(one, factor).is_some_and(|value| same_values(&value, &other.value)),
            None => same_angles(one, other) || same_angles(other, one),
        },
        _ if is_equal || same_angles(one, other) || same_angles(other, one) => true,
        // `1000 m` is a product or has a unit; beside one with a unit it has one.
        (Some(_), None) => with_letters(other).is_some_and(|other| same_quantities(one, &other)),
        (None, Some(_)) => with_letters(one).is_some_and(|one| same_quantities(&one, other)),
    }
}

/// An element whose value is a number times letters, with these as its unit.
fn with_letters(element: &Element) -> Option<Element> {
    let Value::Expression(sum) = &element.value else { return None };
    let mut terms = sum.terms.iter();
    let ((product, coefficient), None) = (terms.next()?, terms.next()) else { return None };
    let mut number = product.clone();
    let mut letters: Vec<(&str, i128)> = Vec::new();
    for (atom, power) in product {
        match atom {
            Atom::Named(name) if name.len() == 1 && power.is_whole() => {
                letters.push((name, power.above));
                number.remove(atom);
            }
            _ => {}
        }
    }
    // `m` alone is a variable, `5m` a number with its unit.
    let is_times = !number.is_empty() || *coefficient != Rational::whole(1);
    let unit = Unit::of_letters(letters.into_iter()).filter(|_| is_times && number.len() < product.len())?;
    let value = Value::Expression(Sum { terms: [(number, *coefficient)].into() });
    Some(Element { name: element.name.clone(), value, unit: Some(unit) })
}

/// Whether the first, in degrees, is the angle that the second is in radians.
fn same_angles(degrees: &Element, radians: &Element) -> bool {
    let is = |element: &Element, unit: &str| element.unit.as_ref().is_some_and(|own: &Unit| own.is(unit));
    let (Value::Expression(angle), Value::Expression(other)) = (&degrees.value, &radians.value) else { return false };
    let is_in_radians = is(radians, "radian") || (radians.unit.is_none() && other.latex().contains("\\pi"));
    let factor = Rational::new(1, 180).and_then(|factor| Sum::named("\\pi").scaled(factor));
    is(degrees, "degree")
        && is_in_radians
        && factor.and_then(|factor| angle.times(&factor)).is_some_and(|angle| numeric::same(&angle, other))
}

fn same_values(one: &Value, other: &Value) -> bool {
    if let (Some(one), Some(other)) = (number_set(one), number_set(other)) {
        return one == other;
    }
    match (one, other) {
        (Value::Words(one), Value::Words(other)) => one == other,
        (Value::Expression(one), Value::Expression(other)) => numeric::same(one, other),
        (Value::Set(one), Value::Set(other)) => includes(one, other) && includes(other, one),
        (
            Value::Tuple { open, elements, close },
            Value::Tuple { open: other_open, elements: others, close: other_close },
        ) => {
            (open, close) == (other_open, other_close)
                && elements.len() == others.len()
                && elements.iter().zip(others).all(|(one, other)| same_element(one, other))
        }
        (Value::Matrix(one), Value::Matrix(other)) => {
            let same_row = |(one, other): (&Vec<Value>, &Vec<Value>)| {
                one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same_values(one, other))
            };
            one.len() == other.len() && one.iter().zip(other).all(same_row)
        }
        (Value::Union(one), Value::Union(other)) => {
            let elements = |values: &[Value]| -> Vec<Element> {
                values.iter().map(|value| Element { name: None, value: value.clone(), unit: None }).collect()
            };
            matched(&elements(one), &elements(other))
        }
        (Value::Difference(one, without), Value::Difference(other, others)) => {
            same_values(one, other) && same_values(without, others)
        }
        (Value::Ratio(one), Value::Ratio(other)) => same_ratios(one, other),
        (Value::Relation(one), Value::Relation(other)) => same_relations(one, other),
        _ => false,
    }
}

/// Whether the parts are equal or, if neither is a time of day, have the same quotients.
fn same_ratios(one: &[Sum], other: &[Sum]) -> bool {
    let is_time = |parts: &[Sum]| {
        parts[1..].iter().all(|part| part.as_whole().is_some_and(|number| (10..60).contains(&number) || number == 0))
    };
    let is_zero = |parts: &[Sum]| parts.iter().any(Sum::is_zero);
    if one.len() != other.len() {
        return false;
    }
    if is_time(one) || is_time(other) || is_zero(one) || is_zero(other) {
        return one.iter().zip(other).all(|(one, other)| numeric::same(one, other));
    }
    let crossed = |at: usize| one[at].times(&other[0]).zip(other[at].times(&one[0]));
    (1..one.len()).all(|at| crossed(at).is_some_and(|(one, other)| numeric::same(&one, &other)))
}

fn same_relations(one: &Relation, other: &Relation) -> bool {
    match (one, other) {
        (Relation::Compared { difference, sign }, Relation::Compared { difference: other, sign: other_sign }) => {
            sign == other_sign && numeric::same(difference, other)
        }
        (Relation::Chain { values, signs }, Relation::Chain { values: others, signs: other_signs }) => {
            signs == other_signs && values.iter().zip(others).all(|(one, other)| same_values(one, other))
        }
        _ => false,
    }
}
