//! The canonical form of a mathematical answer in LaTeX: equal answers have the same text, so that they count as one
//! vote and compare as texts. `answer` finds answers in texts, `grade` decides which are right.
//!
//! The conventions are those of MATH's graders (Hendrycks et al. 2021, *Measuring Mathematical Problem Solving With the
//! MATH Dataset*, `math_equivalence.py`; Lewkowycz et al. 2022, *Solving Quantitative Reasoning Problems with Language
//! Models*, appendix on answer normalisation). Expressions are compared by exact value:
//!
//! | equal | because |
//! |---|---|
//! | `\dfrac12`, `\frac{1}{2}`, `1/2`, `.5`, `0.50` | exact rational numbers; a digit after `\frac` or `\sqrt` is a whole argument |
//! | `3\frac{1}{2}`, `3.5`; `0.\overline{3}`, `\frac13` | mixed numbers, repeating decimals |
//! | `10,000`, `10{,}000`, `10,\!000`, `10000` | groups of three digits; a list has a space after its comma, or brackets |
//! | `\sqrt{12}`, `2\sqrt3`; `\frac{1}{\sqrt2}`, `\frac{\sqrt2}{2}` | roots without square factors, denominators without square roots |
//! | `(x+1)^2`, `x^2+2x+1`; `\frac{\pi}{2}`, `0.5\pi` | sums of products of powers, expanded; `i` is the imaginary unit |
//! | `\left( 3, 4 \right)`, `(3,4)` | spacing, sizes of brackets and dollar signs are ignored |
//! | `10`, `10^\circ`, `10\%`, `\$10`, `10\text{ cm}^2`, `10 km/h` | a known unit at the end, degrees, percent and money are dropped |
//! | `5`, `5\text{ apples}` | so is a noun after an answer's only value, unless it is a time, date or number word |
//! | `5\text{ million}`, `5000000` | number words after a number multiply it |
//! | `x=5`, `AB=5`, `x \in \{5\}` and the value alone | a name before `=` or `\in` is dropped |
//! | `√2`, `x²`, `½`; `{\bf 5}` | Unicode signs are converted to LaTeX; fonts and colours are ignored |
//! | `2x+3y=6`, `4x=12-6y`; `x<5`, `5>x` | an equation's sides are subtracted, then divided by their common factor |
//! | `1,2`, `2 and 1`, `\{1,2\}` | a list has no order and is a set; intervals of a union have none |
//! | `1\pm\sqrt2`, `1+\sqrt2, 1-\sqrt2` | one `\pm` makes two elements |
//! | `\text{Evelyn}`, `evelyn` | words ignore case; answers with three adjacent letters, `no` and `IV` are words |
//!
//! Not equal: `(1,2)` and `[1,2]` or `(2,1)` (tuples and intervals have order and brackets), `10\%` and `0.1`, `2516_8`
//! and its decimal value or `2516`, `\pi` and `3.14`, `x>1` and `(1,\infty)`. Texts are never products of their
//! letters. Other answers, and those with numbers beyond 128 bits, are equal if their tokens are; identities (of
//! logarithms, trigonometry, nested roots, quotients of polynomials) are not applied.

mod brackets;
mod intervals;
mod key;
mod names;
mod numbers;
mod numeric;
mod quantity;
mod reader;
mod relation;
mod same;
mod sum;
#[cfg(test)]
mod tests;
mod tokens;
mod unicode;
mod units;
mod value;
mod written;

use brackets::{command, depth};
use names::{UNIT_SIGNS, has};
pub use same::same;
pub(crate) use tokens::group;
use tokens::{Token, tokens, without_end, written};
use value::List;

/// Maximum depth of brackets, and maximum number of tokens, of an answer that is parsed.
const DEEPEST: usize = 32;
const LONGEST: usize = 1000;

/// The canonical form of an answer: LaTeX that is its own canonical form. `None` if it is empty.
pub fn canonical(text: &str) -> Option<String> {
    let mut tokens = tokens(text);
    tokens.retain(|token| !has(UNIT_SIGNS, command(token)));
    without_end(&mut tokens);
    let key = read(&tokens).map_or_else(|| written(&tokens), |list| list.key());
    Some(key).filter(|text| !text.is_empty())
}

/// What the tokens of an answer say; `None` if they are too many or too deep, or one cannot be parsed.
fn read(tokens: &[Token]) -> Option<List> {
    (tokens.len() <= LONGEST && depth(tokens) <= DEEPEST).then(|| value::list(tokens)).flatten()
}
