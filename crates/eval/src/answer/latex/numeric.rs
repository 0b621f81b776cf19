//! Decides whether expressions are equal whose normal forms are not: evaluates their difference, in complex numbers
//! of 64 bits, at fixed points. `sum` decides the others exactly. What cannot be told with certainty (values too large,
//! too small, or lost in rounding) counts as unequal.

use std::f64::consts::{E, LN_10, PI};
use std::ops::{Add, Mul};

use crate::answer::latex::names::has;
use crate::answer::latex::sum::{Atom, Sum};
use crate::answer::latex::written;
use crate::answer::rational::Rational;

/// Number of points, and how many of them must tell.
const POINTS: usize = 16;
const FEWEST: usize = 4;
/// The points whose symbols are between 0.3 and 2.3 in size, and the factors of those at the others.
const NEAR: usize = 8;
const FAR: [f64; 8] = [4.0, 4.0, 20.0, 20.0, 300.0, 300.0, 1e5, 1e5];
/// Terms that cancel to less than this part of the largest one are zero; to more than `LOST`, they are a number.
const ZERO: f64 = 1e-13;
const LOST: f64 = 1e-6;
/// Terms that are less than this part of the largest one would be lost in its rounding.
const UNSEEN: f64 = 1e-9;
/// The least and greatest magnitudes, other than 0, of what a function is applied to.
const SMALL: f64 = 1e-4;
const LARGE: f64 = 1e6;
/// The functions that are evaluated; others are symbols, equal if they are written alike.
const EVALUATED: &str = "\\sin \\cos \\tan \\cot \\sec \\csc \\arcsin \\arccos \\arctan \\exp \\sinh \\cosh \\tanh \
    \\ln \\lg \\log \\log_ | ^ \\lfloor \\lceil";
/// Digits from which on a decimal fraction is the rounded value of an expression.
const ROUNDED_DIGITS: usize = 10;

/// Whether two expressions have the same value, wherever both have one.
pub(crate) fn same(one: &Sum, other: &Sum) -> bool {
    if one == other {
        return true;
    }
    let Some(difference) = one.clone().plus(&other.clone().negative()) else { return false };
    is_zero(&difference) || is_rounded(one, other) || is_rounded(other, one)
}

fn is_zero(sum: &Sum) -> bool {
    if sum.is_zero() || !sum.terms.keys().any(|product| product.iter().any(|(atom, at)| is_open(atom, *at))) {
        return sum.is_zero();
    }
    let values: Vec<Complex> = (0..POINTS).filter_map(|point| value(sum, point)).collect();
    values.len() >= FEWEST && values.iter().all(|value| value.size() == 0.0)
}

/// Whether an atom has other forms that are not equal in memory.
fn is_open(atom: &Atom, exponent: Rational) -> bool {
    match atom {
        Atom::Prime(_) => false,
        Atom::Named(name) => name == "e" || !exponent.is_whole(),
        Atom::Call(..) | Atom::Group(_) => true,
    }
}

/// The value of an expression without symbols, if it is real.
pub(crate) fn constant(sum: &Sum) -> Option<f64> {
    let is_constant = (1..POINTS).all(|point| value(sum, point) == value(sum, 0));
    value(sum, 0).filter(|value| is_constant && value.im.abs() <= ZERO * value.size()).map(|value| value.re)
}

/// Whether the first is a decimal fraction of many digits to which the second can be rounded.
fn is_rounded(decimal: &Sum, exact: &Sum) -> bool {
    let Some(decimal) = decimal.as_number().filter(|number| !number.is_whole()) else { return false };
    let mut rest = decimal.below;
    let mut places = 0;
    while rest % 10 == 0 || rest % 2 == 0 || rest % 5 == 0 {
        rest /= if rest % 10 == 0 {
            10
        } else if rest % 2 == 0 {
            2
        } else {
            5
        };
        places += 1;
    }
    let scale = 10_f64.powi(places);
    let number = decimal.above as f64 / decimal.below as f64;
    let digits = format!("{:.0}", (number * scale).abs()).len();
    let is_decimal = |sum: &Sum| sum.as_number().is_some_and(|number| is_finite_decimal(number.below));
    rest == 1
        && digits >= ROUNDED_DIGITS
        && !is_decimal(exact)
        && constant(exact).is_some_and(|exact| (exact - number).abs() <= (1.0 / scale).max(4.0 * f64::EPSILON * exact))
}

fn is_finite_decimal(mut below: i128) -> bool {
    for factor in [2, 5] {
        while below % factor == 0 {
            below /= factor;
        }
    }
    below == 1
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Complex {
    re: f64,
    im: f64,
}

impl Add for Complex {
    type Output = Complex;

    fn add(self, other: Complex) -> Complex {
        Complex { re: self.re + other.re, im: self.im + other.im }
    }
}

impl Mul for Complex {
    type Output = Complex;

    fn mul(self, other: Complex) -> Complex {
        Complex { re: self.re * other.re - self.im * other.im, im: self.re * other.im + self.im * other.re }
    }
}

impl Complex {
    fn real(re: f64) -> Complex {
        Complex { re, im: 0.0 }
    }

    fn times(self, by: f64) -> Complex {
        Complex { re: self.re * by, im: self.im * by }
    }

    fn size(self) -> f64 {
        self.re.hypot(self.im)
    }

    fn exp(self) -> Complex {
        let size = self.re.exp();
        Complex { re: size * self.im.cos(), im: size * self.im.sin() }
    }

    fn ln(self) -> Option<Complex> {
        (self.size() > 0.0).then(|| Complex { re: self.size().ln(), im: self.im.atan2(self.re) })
    }

    fn sin(self) -> Complex {
        Complex { re: self.re.sin() * self.im.cosh(), im: self.re.cos() * self.im.sinh() }
    }

    fn cos(self) -> Complex {
        Complex { re: self.re.cos() * self.im.cosh(), im: -self.re.sin() * self.im.sinh() }
    }

    fn inverse(self) -> Option<Complex> {
        let square = self.re * self.re + self.im * self.im;
        (square > 0.0).then(|| Complex { re: self.re / square, im: -self.im / square })
    }

    fn power(self, exponent: Complex) -> Option<Complex> {
        if self.size() == 0.0 {
            return (exponent.re > 0.0 && exponent.im == 0.0).then_some(self);
        }
        if self.im == 0.0 && exponent.im == 0.0 && (self.re > 0.0 || exponent.re.fract() == 0.0) {
            return Some(Complex::real(self.re.powf(exponent.re)));
        }
        Some((self.ln()? * exponent).exp())
    }

    /// Its real part, if it has no other.
    fn as_real(self) -> Option<f64> {
        (self.im.abs() <= ZERO * self.size()).then_some(self.re)
    }

    /// The value itself, if rounding neither made it meaningless nor can do so; rounding errors around 0 become 0.
    fn moderate(self) -> Option<Complex> {
        self.size().is_finite().then_some(())?;
        let clean = |part: f64| if part.abs() <= ZERO * self.size().max(SMALL) { 0.0 } else { part };
        let value = Complex { re: clean(self.re), im: clean(self.im) };
        let size = value.size();
        (size == 0.0 || (SMALL..=LARGE).contains(&size)).then_some(value)
    }
}

fn float(number: Rational) -> f64 {
    number.above as f64 / number.below as f64
}

/// The value at one of the points; `None` if there is none, or none that is certain.
fn value(sum: &Sum, point: usize) -> Option<Complex> {
    let mut total = Complex::real(0.0);
    let (mut most, mut least) = (0.0_f64, f64::INFINITY);
    for (product, coefficient) in &sum.terms {
        let mut term = Complex::real(float(*coefficient));
        for (atom, exponent) in product {
            term = term * atom_value(atom, *exponent, point)?;
        }
        let size = term.size();
        (size.is_finite() && (size == 0.0 || size.is_normal())).then_some(())?;
        most = most.max(size);
        least = if size > 0.0 { least.min(size) } else { least };
        total = total + term;
    }
    match total.size() {
        _ if most == 0.0 => Some(Complex::real(0.0)),
        _ if least < UNSEEN * most => None,
        size if size <= ZERO * most => Some(Complex::real(0.0)),
        size if size < LOST * most => None,
        _ => Some(total),
    }
}

fn atom_value(atom: &Atom, exponent: Rational, point: usize) -> Option<Complex> {
    let exponent = Complex::real(float(exponent));
    match atom {
        Atom::Prime(-1) => Some(Complex { re: 0.0, im: PI * exponent.re }.exp()),
        Atom::Prime(prime) => Complex::real(*prime as f64).power(exponent),
        Atom::Named(name) => symbol(name, point)?.power(exponent),
        Atom::Call(name, of) => match call(name, of, point)? {
            Some(value) => value.moderate()?.power(exponent),
            None => symbol(&written::call(name, of), point)?.power(exponent),
        },
        Atom::Group(sum) => value(sum, point)?.moderate()?.power(exponent),
    }
}

/// The value of a symbol: those of the first points are positive, those of the next negative, the others mixed.
fn symbol(name: &str, point: usize) -> Option<Complex> {
    match name {
        "\\pi" => return Some(Complex::real(PI)),
        "e" => return Some(Complex::real(E)),
        "\\infty" | "\\emptyset" | "\\dots" => return None,
        _ => {}
    }
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325 ^ point as u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (seed ^ (seed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let size = 0.3 + 2.0 * (mixed >> 11) as f64 / (1_u64 << 53) as f64;
    let is_negative = match point {
        0 | 1 => false,
        2 | 3 => true,
        _ => mixed & 1 == 1,
    };
    // Far from 0 `|x-3|` is not `3-x`, and `\arccos(\cos x)` not `|x|`.
    let size = size * FAR.get(point.wrapping_sub(NEAR)).copied().unwrap_or(1.0);
    Some(Complex::real(if is_negative { -size } else { size }))
}

/// Whether sums have other symbols than constants.
fn has_symbols(sums: &[Sum]) -> bool {
    let is_symbolic = |atom: &Atom| match atom {
        Atom::Prime(_) => false,
        Atom::Named(name) => name != "\\pi" && name != "e",
        Atom::Call(_, of) => has_symbols(of),
        Atom::Group(of) => has_symbols(std::slice::from_ref(of)),
    };
    sums.iter().any(|sum| sum.terms.keys().any(|product| product.keys().any(is_symbolic)))
}

/// The value of a function. The outer `None`: it has none here; the inner: the function is not evaluated.
fn call(name: &str, of: &[Sum], point: usize) -> Option<Option<Complex>> {
    // What symbols are rounded to is known between whole numbers only, as the points are.
    let is_rounded = matches!(name, "\\lfloor" | "\\lceil") && has_symbols(of);
    if !has(EVALUATED, name) || is_rounded {
        return Some(None);
    }
    // Each argument is evaluated once, as functions may be nested.
    let of = of.iter().map(|of| value(of, point)?.moderate()).collect::<Option<Vec<Complex>>>()?;
    let (x, y) = (*of.first()?, of.get(1).copied());
    let in_range = || x.as_real().filter(|x| x.abs() <= 1.0);
    let inverse = |value: Complex| value.moderate()?.inverse();
    let log = |x: Complex| x.moderate()?.ln();
    let (grown, shrunk) = (x.exp().times(0.5), x.times(-1.0).exp().times(0.5));
    Some(Some(match name {
        "\\sin" => x.sin(),
        "\\cos" => x.cos(),
        "\\tan" => x.sin() * inverse(x.cos())?,
        "\\cot" => x.cos() * inverse(x.sin())?,
        "\\sec" => inverse(x.cos())?,
        "\\csc" => inverse(x.sin())?,
        "\\arcsin" => Complex::real(in_range()?.asin()),
        "\\arccos" => Complex::real(in_range()?.acos()),
        "\\arctan" => Complex::real(x.as_real()?.atan()),
        "\\exp" => x.exp(),
        "\\sinh" => grown + shrunk.times(-1.0),
        "\\cosh" => grown + shrunk,
        // Beyond it is too near to 1.
        "\\tanh" => Complex::real(x.as_real().filter(|x| x.abs() <= 10.0)?.tanh()),
        "\\ln" => log(x)?,
        "\\lg" => log(x)?.times(1.0 / LN_10),
        // Without a base it may be either: what holds must hold for both.
        "\\log" => log(x)?.times(if point.is_multiple_of(2) { 1.0 } else { 1.0 / LN_10 }),
        "\\log_" => log(x)? * inverse(log(y?)?)?,
        "|" => Complex::real(x.size()),
        "^" => x.power(y?)?,
        _ => {
            let value = x.as_real()?;
            ((value - value.round()).abs() > LOST).then_some(())?;
            Complex::real(if name == "\\lfloor" { value.floor() } else { value.ceil() })
        }
    }))
}
