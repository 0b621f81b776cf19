//! Expressions in normal form: sums of products of powers, with exact rational coefficients. Equal sums of rational
//! numbers, roots of them and powers of symbols are equal in memory, because roots of different primes are linearly
//! independent. `reader` parses sums, `written` formats them.

use std::collections::BTreeMap;

use crate::answer::rational::{Rational, gcd};

/// The base of a power.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Atom {
    /// A prime, or -1, whose root is the imaginary unit; its exponent is between 0 and 1. Prime factors above
    /// [`LARGEST_FACTOR`] are not separated.
    Prime(i128),
    /// A symbol, or a number with its base: compared by its text.
    Named(String),
    /// A function of sums, which `written` writes and `numeric` evaluates by its name: a command (`\sin`, `\log_`
    /// with its base as the second sum, `\sum` with its limits), or `|`, `!`, `^`.
    Call(String, Vec<Sum>),
    /// A power of a sum that no rule expands; its exponent is below 1.
    Group(Sum),
}

/// Atoms with their exponents; no exponent is 0.
pub(crate) type Monomial = BTreeMap<Atom, Rational>;

/// Monomials with their coefficients; no coefficient is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sum {
    pub terms: BTreeMap<Monomial, Rational>,
}

/// Maximum number of terms, to bound the time per answer.
const MOST_TERMS: usize = 200;
/// Maximum size of the arguments of a function or of a group, and of all products of two sums: without it, functions of
/// powers of functions would grow with the power of their depth.
const LARGEST_ARGUMENT: usize = 400;
const LARGEST_PRODUCT: usize = 10_000;
const LARGEST_FACTOR: i128 = 20_000;
const ONE: Rational = Rational { above: 1, below: 1 };

impl Sum {
    pub fn number(number: Rational) -> Sum {
        Sum::term(Monomial::new(), number)
    }

    pub fn named(name: impl Into<String>) -> Sum {
        Sum::term(Monomial::from([(Atom::Named(name.into()), ONE)]), ONE)
    }

    /// `None` if the arguments are too large.
    pub fn call(name: impl Into<String>, of: Vec<Sum>) -> Option<Sum> {
        let is_small = of.iter().map(Sum::size).sum::<usize>() <= LARGEST_ARGUMENT;
        is_small.then(|| Sum::term(Monomial::from([(Atom::Call(name.into(), of), ONE)]), ONE))
    }

    /// The number of terms and atoms, those of arguments included.
    fn size(&self) -> usize {
        let atom = |atom: &Atom| match atom {
            Atom::Prime(_) | Atom::Named(_) => 1,
            Atom::Call(_, of) => 1 + of.iter().map(Sum::size).sum::<usize>(),
            Atom::Group(of) => 1 + of.size(),
        };
        self.terms.keys().map(|product| 1 + product.keys().map(atom).sum::<usize>()).sum()
    }

    /// The imaginary unit.
    pub fn imaginary() -> Sum {
        Sum::term(Monomial::from([(Atom::Prime(-1), Rational { above: 1, below: 2 })]), ONE)
    }

    fn term(product: Monomial, coefficient: Rational) -> Sum {
        let mut sum = Sum::default();
        if coefficient.above != 0 {
            sum.terms.insert(product, coefficient);
        }
        sum
    }

    /// Whether it has a function or a power of a sum.
    pub fn has_calls(&self) -> bool {
        let is_call = |atom: &Atom| matches!(atom, Atom::Call(..) | Atom::Group(_));
        self.terms.keys().any(|product| product.keys().any(is_call))
    }

    pub fn is_zero(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether it is infinity with a sign.
    pub fn is_infinite(&self) -> bool {
        let infinity = Sum::named("\\infty");
        *self == infinity || *self == infinity.negative()
    }

    /// The sum as a rational number, if it is one.
    pub fn as_number(&self) -> Option<Rational> {
        match self.terms.first_key_value() {
            None => Some(Rational::whole(0)),
            Some((product, number)) => (self.terms.len() == 1 && product.is_empty()).then_some(*number),
        }
    }

    pub fn as_whole(&self) -> Option<i128> {
        self.as_number().filter(|number| number.is_whole()).map(|number| number.above)
    }

    pub fn plus(mut self, other: &Sum) -> Option<Sum> {
        for (product, coefficient) in &other.terms {
            let sum = match self.terms.get(product) {
                Some(own) => own.plus(*coefficient)?,
                None => *coefficient,
            };
            match sum.above {
                0 => self.terms.remove(product),
                _ => self.terms.insert(product.clone(), sum),
            };
        }
        (self.terms.len() <= MOST_TERMS).then_some(self)
    }

    pub fn negative(self) -> Sum {
        Sum { terms: self.terms.into_iter().map(|(product, number)| (product, number.negative())).collect() }
    }

    pub fn scaled(&self, by: Rational) -> Option<Sum> {
        self.times(&Sum::number(by))
    }

    pub fn times(&self, other: &Sum) -> Option<Sum> {
        let size = self.size() * other.terms.len() + other.size() * self.terms.len();
        (size <= LARGEST_PRODUCT).then_some(())?;
        let mut sum = Sum::default();
        for (a, x) in &self.terms {
            for (b, y) in &other.terms {
                let mut product = a.clone();
                for (atom, exponent) in b {
                    let total = product.get(atom).map_or(Some(*exponent), |own| own.plus(*exponent))?;
                    product.insert(atom.clone(), total);
                }
                sum = sum.plus(&settled(product, x.times(*y)?)?)?;
            }
        }
        Some(sum)
    }

    pub fn power(&self, exponent: Rational) -> Option<Sum> {
        if !exponent.is_whole() {
            return self.root(exponent);
        }
        if exponent.above < 0 {
            return self.inverse()?.power(exponent.negative());
        }
        if let Some((product, coefficient)) = self.single() {
            return settled(raised(product, exponent)?, coefficient.power(exponent.above)?);
        }
        let mut power = Sum::number(ONE);
        for _ in 0..u8::try_from(exponent.above).ok()? {
            power = power.times(self)?;
        }
        Some(power)
    }

    fn single(&self) -> Option<(&Monomial, Rational)> {
        self.terms.first_key_value().filter(|_| self.terms.len() == 1).map(|(product, number)| (product, *number))
    }

    fn inverse(&self) -> Option<Sum> {
        if let Some((product, coefficient)) = self.single() {
            return settled(raised(product, Rational::whole(-1))?, coefficient.inverse()?);
        }
        if let Some(root) = self.square_root() {
            let (with, without): (BTreeMap<_, _>, BTreeMap<_, _>) =
                self.terms.clone().into_iter().partition(|(product, _)| product.contains_key(&root));
            let conjugate = Sum { terms: without }.plus(&Sum { terms: with }.negative())?;
            return self.times(&conjugate)?.inverse()?.times(&conjugate);
        }
        (self.size() <= LARGEST_ARGUMENT).then_some(())?;
        let leading = if self.leading()?.above < 0 { Rational::whole(-1) } else { ONE };
        let outside =
            Sum::term(raised(&self.common(), Rational::whole(-1))?, self.content()?.times(leading)?.inverse()?);
        match outside == Sum::number(ONE) {
            true => Some(group_inverse(self)),
            false => self.times(&outside)?.inverse()?.times(&outside),
        }
    }

    /// A square root that can be removed from a denominator: only if all of its roots are square roots of numbers.
    fn square_root(&self) -> Option<Atom> {
        let is_square = |(atom, exponent): (&Atom, &Rational)| matches!(atom, Atom::Prime(_)) && exponent.below == 2;
        let all = self.terms.keys().all(|product| product.iter().all(is_square));
        self.terms.keys().flat_map(|product| product.keys()).find(|_| all).cloned()
    }

    /// A power with a non-integer exponent.
    fn root(&self, exponent: Rational) -> Option<Sum> {
        if self.is_zero() {
            return (exponent.above > 0).then(Sum::default);
        }
        if let Some((product, coefficient)) = self.single() {
            let is_positive = |(atom, own): (&Atom, &Rational)| match atom {
                Atom::Prime(prime) => *prime > 0,
                Atom::Named(_) | Atom::Call(..) => *own == ONE && coefficient.above > 0,
                Atom::Group(_) => false,
            };
            if product.iter().all(is_positive) {
                return settled(raised(product, exponent)?, ONE)?.times(&number_root(coefficient, exponent)?);
            }
        }
        (self.size() <= LARGEST_ARGUMENT).then_some(())?;
        let content = self.content()?;
        let group = Monomial::from([(Atom::Group(self.scaled(content.inverse()?)?), exponent)]);
        Sum::term(group, ONE).times(&number_root(content, exponent)?)
    }

    /// The largest rational number that divides all coefficients.
    pub fn content(&self) -> Option<Rational> {
        let mut coefficients = self.terms.values();
        let first = coefficients.next()?;
        coefficients.try_fold(Rational { above: first.above.checked_abs()?, ..*first }, |content, number| {
            let below = content.below.checked_mul(number.below / gcd(content.below, number.below))?;
            let above = |r: &Rational| r.above.checked_abs()?.checked_mul(below / r.below);
            Rational::new(gcd(above(&content)?, above(number)?), below)
        })
    }

    /// The common factor of all terms.
    fn common(&self) -> Monomial {
        let mut products = self.terms.keys();
        let mut common = products.next().cloned().unwrap_or_default();
        common.retain(|atom, exponent| is_symbol(atom) && exponent.is_whole() && exponent.above > 0);
        for product in products {
            common.retain(|atom, exponent| match product.get(atom) {
                Some(other) if other.is_whole() && other.above > 0 => {
                    exponent.above = exponent.above.min(other.above);
                    true
                }
                _ => false,
            });
        }
        common
    }
}

fn is_symbol(atom: &Atom) -> bool {
    matches!(atom, Atom::Named(_) | Atom::Call(..))
}

fn raised(product: &Monomial, exponent: Rational) -> Option<Monomial> {
    product.iter().map(|(atom, own)| Some((atom.clone(), own.times(exponent)?))).collect()
}

/// The term with its exponents in the ranges that [`Atom`] gives.
fn settled(product: Monomial, mut coefficient: Rational) -> Option<Sum> {
    let mut kept = Monomial::new();
    let mut expanded: Vec<Sum> = Vec::new();
    for (atom, exponent) in product {
        let whole = match &atom {
            Atom::Named(_) | Atom::Call(..) => 0,
            Atom::Prime(_) => exponent.floor(),
            Atom::Group(_) if exponent.is_whole() => exponent.above,
            Atom::Group(_) => exponent.floor().max(0),
        };
        let mut left = exponent.plus(Rational::whole(whole.checked_neg()?))?;
        match &atom {
            Atom::Prime(prime) => coefficient = coefficient.times(Rational::whole(*prime).power(whole)?)?,
            Atom::Group(sum) if whole > 0 => expanded.push(sum.power(Rational::whole(whole))?),
            Atom::Group(sum) if whole < 0 => match sum.inverse()? {
                inverse if inverse == group_inverse(sum) => left = exponent,
                inverse => expanded.push(inverse.power(Rational::whole(whole.checked_neg()?))?),
            },
            Atom::Named(_) | Atom::Call(..) | Atom::Group(_) => {}
        }
        if left.above != 0 {
            kept.insert(atom, left);
        }
    }
    expanded.iter().try_fold(Sum::term(kept, coefficient), |product, factor| product.times(factor))
}

/// The inverse of a sum that no rule expands.
fn group_inverse(sum: &Sum) -> Sum {
    Sum::term(Monomial::from([(Atom::Group(sum.clone()), Rational::whole(-1))]), ONE)
}

/// A root of a number. Odd roots of negative numbers are negative; of their even roots only the square root is defined
/// here.
fn number_root(number: Rational, exponent: Rational) -> Option<Sum> {
    let mut product = Monomial::new();
    for (factors, sign) in [(factors(number.above.checked_abs()?), 1), (factors(number.below), -1)] {
        for (prime, times) in factors {
            product.insert(Atom::Prime(prime), exponent.times(Rational::whole(sign * times))?);
        }
    }
    let sign = match (number.above < 0, exponent.below) {
        (true, 2) => {
            product.insert(Atom::Prime(-1), exponent);
            1
        }
        (true, below) if below % 2 == 0 => return None,
        (true, _) if exponent.above % 2 != 0 => -1,
        _ => 1,
    };
    settled(product, Rational::whole(sign))
}

/// The prime factors of a positive number, with their multiplicities.
fn factors(mut number: i128) -> Vec<(i128, i128)> {
    let mut found = Vec::new();
    let mut factor = 2;
    while factor <= LARGEST_FACTOR && factor * factor <= number {
        let mut times = 0;
        while number % factor == 0 {
            number /= factor;
            times += 1;
        }
        if times > 0 {
            found.push((factor, times));
        }
        factor += 1;
    }
    let root = number.isqrt();
    match number {
        1 => {}
        _ if root * root == number => found.push((root, 2)),
        _ => found.push((number, 1)),
    }
    found
}
