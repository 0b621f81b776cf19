//! Sets of real numbers that answers describe: intervals and their unions, inequalities in one variable, `x \ne 3`, and
//! `\mathbb{R}`. `same` compares them, so that `x>3` and `(3,\infty)` are equal.

use crate::answer::latex::numeric;
use crate::answer::latex::relation::{Relation, Sign, linear};
use crate::answer::latex::sum::{Atom, Sum};
use crate::answer::latex::value::{Element, List, Value};
use crate::answer::rational::Rational;

/// A set of real numbers: disjoint intervals that do not touch, in ascending order.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// The expression whose values it contains, if the answer names one.
    variable: Option<String>,
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
struct Piece {
    from: IntervalEnd,
    to: IntervalEnd,
}

#[derive(Clone, Debug)]
struct IntervalEnd {
    /// `None`: infinity, minus infinity for the lower end.
    at: Option<Sum>,
    /// The value for comparisons; that of symbols is not known.
    float: f64,
    /// Whether the end belongs to the set.
    is_closed: bool,
}

/// The region that a list describes; `None` if it is only numbers, or describes none.
pub(crate) fn region(list: &List) -> Option<Region> {
    let is_plain = |element: &Element| matches!(element.value, Value::Expression(_));
    let is_number_set = |element: &Element| number_set(&element.value).is_some();
    list.elements.iter().any(|element| !is_plain(element) || is_number_set(element)).then_some(())?;
    if list.has_and && list.has_or {
        return None;
    }
    // A list of sets is no set of their elements.
    let is_set = |element: &Element| element.name.is_none() && matches!(element.value, Value::Set(_));
    if list.elements.len() > 1 && list.elements.iter().any(is_set) {
        return None;
    }
    let mut regions = list.elements.iter().map(of_element).collect::<Option<Vec<_>>>()?.into_iter();
    let mut whole = regions.next()?;
    for region in regions {
        let variable = match (whole.variable, region.variable) {
            (Some(one), Some(other)) if one != other => return None,
            (one, other) => one.or(other),
        };
        let both = intersection(&whole.pieces, &region.pieces)?;
        // Conditions of one variable may hold at once; bare intervals that overlap may be points.
        if !list.has_or && !both.is_empty() && variable.is_none() {
            return None;
        }
        // A comma may mean either: what cannot hold at once is meant one by one.
        let is_union = list.has_or || both.is_empty() && !list.has_and;
        let pieces = if is_union { union([whole.pieces, region.pieces].concat())? } else { both };
        whole = Region { variable, pieces };
    }
    (!whole.pieces.is_empty()).then_some(whole)
}

impl Region {
    /// Whether both are the same numbers, and of the same variable if both name one.
    pub fn is_same(&self, other: &Region) -> bool {
        let same_at = |one: &IntervalEnd, other: &IntervalEnd| {
            let is_same = match (&one.at, &other.at) {
                (Some(one), Some(other)) => numeric::same(one, other),
                (one, other) => one.is_none() && other.is_none(),
            };
            is_same && one.is_closed == other.is_closed
        };
        let same_piece =
            |(one, other): (&Piece, &Piece)| same_at(&one.from, &other.from) && same_at(&one.to, &other.to);
        let has_same_variable = match (&self.variable, &other.variable) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        has_same_variable
            && self.pieces.len() == other.pieces.len()
            && self.pieces.iter().zip(&other.pieces).all(same_piece)
    }
}

fn of_element(element: &Element) -> Option<Region> {
    element.unit.is_none().then_some(())?;
    let is_point = element.name.as_ref().is_some_and(|name| name.coordinates().len() > 1);
    (!is_point).then_some(())?;
    if let Value::Relation(relation) = &element.value {
        return of_relation(relation);
    }
    let variable = element.name.as_ref().map(|name| name.text().to_string());
    Some(Region { variable, pieces: of_value(&element.value)? })
}

fn of_value(value: &Value) -> Option<Vec<Piece>> {
    match value {
        Value::Tuple { open, elements, close } => {
            let [from, to] = &elements[..] else { return None };
            let end = |element: &Element, is_closed: bool| match &element.value {
                Value::Expression(sum) if element.name.is_none() && element.unit.is_none() => {
                    IntervalEnd::new(sum, is_closed)
                }
                _ => None,
            };
            let (from, to) = (end(from, *open == '[')?, end(to, *close == ']')?);
            let is_fit = |end: &IntervalEnd, sign: f64| end.at.is_some() || end.float == sign * f64::INFINITY;
            (is_fit(&from, -1.0) && is_fit(&to, 1.0)).then_some(())?;
            let piece = Piece { from, to };
            // A point with its coordinates in descending order is no interval.
            (!piece.is_empty()).then(|| vec![piece])
        }
        Value::Union(united) => union(united.iter().map(of_value).collect::<Option<Vec<_>>>()?.concat()),
        Value::Set(points) => {
            let point = |element: &Element| match &element.value {
                Value::Expression(sum) => Piece::point(sum),
                _ => None,
            };
            union(points.iter().map(point).collect::<Option<Vec<_>>>()?)
        }
        Value::Difference(set, without) => {
            let holes = of_value(without)?;
            let mut left = of_value(set)?;
            for hole in holes {
                left = intersection(&left, &complement(&hole))?;
            }
            Some(left)
        }
        Value::Relation(relation) => of_relation(relation).map(|region| region.pieces),
        value if number_set(value) == Some('R') => Some(vec![Piece::all()]),
        value if number_set(value) == Some('∅') => Some(Vec::new()),
        Value::Expression(sum) => Piece::point(sum).map(|point| vec![point]),
        _ => None,
    }
}

/// The letter of the set of numbers that a value names; `∅` for the empty set.
pub(crate) fn number_set(value: &Value) -> Option<char> {
    match value {
        Value::Expression(sum) => match &sum.latex()[..] {
            "\\emptyset" => Some('∅'),
            "\\mathbb{R}" => Some('R'),
            "\\mathbb{Z}" => Some('Z'),
            "\\mathbb{N}" => Some('N'),
            "\\mathbb{Q}" => Some('Q'),
            "\\mathbb{C}" => Some('C'),
            _ => None,
        },
        Value::Words(words) => match words.strip_prefix("all ").unwrap_or(words) {
            "real numbers" | "reals" | "real" => Some('R'),
            "integers" => Some('Z'),
            "natural numbers" | "naturals" => Some('N'),
            "rational numbers" | "rationals" => Some('Q'),
            "complex numbers" => Some('C'),
            "no solution" | "no solutions" => Some('∅'),
            _ => None,
        },
        _ => None,
    }
}

/// The numbers for which an inequality in one variable holds.
fn of_relation(relation: &Relation) -> Option<Region> {
    match relation {
        Relation::Compared { difference, sign } => {
            let (variable, factor, rest) = linear(difference)?;
            let bound = rest.negative().scaled(factor.inverse()?)?;
            let sign = if factor.above < 0 { sign.turned() } else { *sign };
            of_bound(variable, sign, &bound)
        }
        Relation::Chain { values, signs } => {
            let [Value::Expression(low), Value::Expression(middle), Value::Expression(high)] = &values[..] else {
                return None;
            };
            let (variable, factor, rest) = linear(middle)?;
            let bound = |side: &Sum| side.clone().plus(&rest.clone().negative())?.scaled(factor.inverse()?);
            let ends = [(low, signs[0].turned()), (high, signs[1])];
            let mut pieces = vec![Piece::all()];
            let mut name = None;
            for (side, sign) in ends {
                let sign = if factor.above < 0 { sign.turned() } else { sign };
                let region = of_bound(variable.clone(), sign, &bound(side)?)?;
                name = region.variable;
                pieces = intersection(&pieces, &region.pieces)?;
            }
            Some(Region { variable: name, pieces })
        }
    }
}

/// The numbers `v` with `v < bound` (or another sign); those with `|v| < bound` if the variable is an absolute value.
fn of_bound(variable: Sum, sign: Sign, bound: &Sum) -> Option<Region> {
    let end = IntervalEnd::new(bound, matches!(sign, Sign::LessOrEqual | Sign::MoreOrEqual))?;
    if end.at.is_none() {
        let is_all = matches!((sign, end.float > 0.0), (Sign::Less, true) | (Sign::More, false));
        return is_all.then(|| Region { variable: Some(variable.latex()), pieces: vec![Piece::all()] });
    }
    let below = |end: IntervalEnd| Piece { from: IntervalEnd::infinite(-1.0), to: end };
    let above = |end: IntervalEnd| Piece { from: end, to: IntervalEnd::infinite(1.0) };
    let around = |end: IntervalEnd| vec![below(end.clone()), above(end)];
    if let Some(inside) = absolute(&variable) {
        (end.float > 0.0).then_some(())?;
        let (variable, factor, rest) = linear(inside)?;
        // `|a v + b| < c` is `-c < a v + b < c`, where `a` may be made positive.
        let is_negative = factor.above < 0;
        let (factor, rest) = if is_negative { (factor.negative(), rest.negative()) } else { (factor, rest) };
        let moved = |bound: Sum| {
            let at = bound.plus(&rest.clone().negative())?.scaled(factor.inverse()?)?;
            IntervalEnd::new(&at, end.is_closed)
        };
        let (low, high) = (moved(bound.clone().negative())?, moved(bound.clone())?);
        let pieces = match sign {
            Sign::Less | Sign::LessOrEqual => vec![Piece { from: low, to: high }],
            Sign::More | Sign::MoreOrEqual => vec![below(low), above(high)],
            _ => return None,
        };
        return Some(Region { variable: Some(variable.latex()), pieces });
    }
    let pieces = match sign {
        Sign::Less | Sign::LessOrEqual => vec![below(end)],
        Sign::More | Sign::MoreOrEqual => vec![above(end)],
        Sign::Unequal => around(end),
        Sign::Equal | Sign::Approximate | Sign::In => return None,
    };
    Some(Region { variable: Some(variable.latex()), pieces })
}

/// What is between the bars of an absolute value.
fn absolute(sum: &Sum) -> Option<&Sum> {
    let (product, _) = sum.terms.first_key_value()?;
    match product.first_key_value()? {
        (Atom::Call(name, of), exponent) if product.len() == 1 && *exponent == Rational::whole(1) && name == "|" => {
            of.first()
        }
        _ => None,
    }
}

impl IntervalEnd {
    fn new(sum: &Sum, is_closed: bool) -> Option<IntervalEnd> {
        let is_set = |atom: &Atom| matches!(atom, Atom::Named(name) if name == "\\emptyset" || name.contains("mathbb"));
        if sum.terms.keys().any(|product| product.keys().any(is_set)) {
            return None;
        }
        let infinity = Sum::named("\\infty");
        if *sum == infinity {
            return (!is_closed).then(|| IntervalEnd::infinite(1.0));
        }
        if *sum == infinity.negative() {
            return (!is_closed).then(|| IntervalEnd::infinite(-1.0));
        }
        Some(IntervalEnd { at: Some(sum.clone()), float: numeric::constant(sum).unwrap_or(f64::NAN), is_closed })
    }

    fn infinite(sign: f64) -> IntervalEnd {
        IntervalEnd { at: None, float: sign * f64::INFINITY, is_closed: false }
    }

    /// The end that is open where this is closed.
    fn opposite(&self) -> IntervalEnd {
        IntervalEnd { is_closed: !self.is_closed, ..self.clone() }
    }

    fn is_at(&self, other: &IntervalEnd) -> bool {
        let is_near = (self.float - other.float).abs() <= 1e-12 * self.float.abs();
        self.float == other.float || (self.float.is_finite() && other.float.is_finite() && is_near)
    }
}

impl Piece {
    fn all() -> Piece {
        Piece { from: IntervalEnd::infinite(-1.0), to: IntervalEnd::infinite(1.0) }
    }

    fn point(sum: &Sum) -> Option<Piece> {
        let end = IntervalEnd::new(sum, true)?;
        Some(Piece { from: end.clone(), to: end })
    }

    fn is_empty(&self) -> bool {
        let is_point = self.from.is_at(&self.to) && self.from.at.is_some();
        match is_point {
            true => !(self.from.is_closed && self.to.is_closed),
            false => self.from.float > self.to.float,
        }
    }

    /// Whether its ends can be ordered among others.
    fn is_ordered(&self) -> bool {
        !self.from.float.is_nan() && !self.to.float.is_nan()
    }
}

fn complement(hole: &Piece) -> Vec<Piece> {
    let below = Piece { from: IntervalEnd::infinite(-1.0), to: hole.from.opposite() };
    let above = Piece { from: hole.to.opposite(), to: IntervalEnd::infinite(1.0) };
    let is_real = |piece: &Piece| piece.from.at.is_some() || piece.to.at.is_some();
    [below, above].into_iter().filter(is_real).collect()
}

/// Joins intervals that overlap or touch. `None` if one of several has an end whose value is not known.
fn union(mut pieces: Vec<Piece>) -> Option<Vec<Piece>> {
    if pieces.len() < 2 {
        return Some(pieces);
    }
    pieces.iter().all(Piece::is_ordered).then_some(())?;
    pieces.sort_by(|a, b| a.from.float.total_cmp(&b.from.float));
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if touches(&last.to, &piece.from) => {
                last.from.is_closed |= piece.from.is_closed && last.from.is_at(&piece.from);
                let is_longer = match last.to.is_at(&piece.to) {
                    true => piece.to.is_closed,
                    false => piece.to.float > last.to.float,
                };
                if is_longer {
                    last.to = piece.to;
                }
            }
            _ => joined.push(piece),
        }
    }
    Some(joined)
}

/// Whether no number is between an upper end and the lower end of a piece that begins later.
fn touches(to: &IntervalEnd, from: &IntervalEnd) -> bool {
    match to.is_at(from) {
        true => to.is_closed || from.is_closed,
        false => to.float > from.float,
    }
}

/// `None` if an end has a value that is not known and must be compared.
fn intersection(some: &[Piece], others: &[Piece]) -> Option<Vec<Piece>> {
    (some.len() * others.len() <= MOST_PIECES).then_some(())?;
    let mut found = Vec::new();
    for one in some {
        for other in others {
            let from = later(&one.from, &other.from, 1.0)?;
            let to = later(&one.to, &other.to, -1.0)?;
            let piece = Piece { from, to };
            if !piece.is_empty() {
                found.push(piece);
            }
        }
    }
    Some(found)
}

/// Maximum number of pairs of intervals that are intersected.
const MOST_PIECES: usize = 10_000;

/// The end that excludes more: the greater lower end (`sign` 1), or the lesser upper end (`sign` -1).
fn later(one: &IntervalEnd, other: &IntervalEnd, sign: f64) -> Option<IntervalEnd> {
    if one.at.is_none() || other.at.is_none() {
        // Infinite ends exclude nothing; those of a lower end are minus infinity.
        return Some(if one.at.is_none() { other.clone() } else { one.clone() });
    }
    if one.is_at(other) {
        return Some(if one.is_closed { other.clone() } else { one.clone() });
    }
    (!one.float.is_nan() && !other.float.is_nan()).then_some(())?;
    Some(if one.float * sign > other.float * sign { one.clone() } else { other.clone() })
}
