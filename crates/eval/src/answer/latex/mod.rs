//! What a mathematical answer in LaTeX says. [`canonical`] gives the key by which votes are counted: a text that is the
//! same for equal answers. [`same()`] compares two and decides which are right. `answer` finds answers in texts.
//!
//! The conventions are those of MATH's graders (Hendrycks et al. 2021, *Measuring Mathematical Problem Solving With the
//! MATH Dataset*, `math_equivalence.py`; Lewkowycz et al. 2022, *Solving Quantitative Reasoning Problems with Language
//! Models*, appendix on answer normalisation). Expressions are compared by exact value. One vote are:
//!
//! | texts | because |
//! |---|---|
//! | `\dfrac12`, `\frac{1}{2}`, `1/2`, `.5`, `0.50` | exact rational numbers; a digit after `\frac` or `\sqrt` is a whole argument |
//! | `3\frac{1}{2}`, `3.5`; `0.\overline{3}`, `\frac13` | mixed numbers, repeating decimals |
//! | `10,000`, `10{,}000`, `10\,000`, `10 000`, `1e4` | groups of three digits; a list has a space after its comma |
//! | `\sqrt{12}`, `2\sqrt3`; `\frac{1}{\sqrt2}`, `\frac{\sqrt2}{2}` | roots without square factors, denominators without square roots |
//! | `(x+1)^2`, `x^2+2x+1`; `\frac{\pi}{2}`, `0.5\pi` | sums of products of powers, expanded; `i` is the imaginary unit |
//! | `\left( 3, 4 \right)`, `(3,4)` | spacing, sizes of brackets and dollar signs are ignored |
//! | `10`, `10^\circ`, `10\%`, `\$10`, `10\text{ cm}^2`, `10 km/h` | a known unit at the end, degrees, percent and money are dropped |
//! | `5`, `5\text{ apples}` | so is a noun after an answer's only value, unless it is a time, date or number word |
//! | `5\text{ million}`, `5000000` | number words after a number multiply it |
//! | `x=5`, `5=x`, `AB=5`, `x \in \{5\}` and the value alone | a name before `=` or `\in` is dropped |
//! | `x=2+3=5`, `5`; `x=\frac13\approx0.3`, `\frac13` | a chain ends with the value, before approximations |
//! | `√2`, `x²`, `½`; `{\bf 5}` | Unicode signs are converted to LaTeX; fonts and colours are ignored |
//! | `2x+3y=6`, `4x=12-6y`; `x<5`, `5>x` | an equation's sides are subtracted, then divided by their common factor |
//! | `1,2`, `2 and 1`, `\{1,2\}` | a list has no order and is a set; intervals of a union have none |
//! | `1\pm\sqrt2`, `1+\sqrt2, 1-\sqrt2` | one `\pm` makes two elements |
//! | `\text{Evelyn}`, `evelyn` | words ignore case; answers with three adjacent letters, `no` and `IV` are words |
//!
//! A vote has no units and names, since most samples leave them out. Right is only what has the reference's value and
//! its unit and name, where both have one:
//!
//! | same | not the same |
//! |---|---|
//! | `5\text{ cm}` as `5` and `0.05\text{ m}`, `30^\circ` as `\frac{\pi}{6}` | `5\text{ m}`, `5\%`, `5^\circ` |
//! | `x=5` as `5` and `x-5=0`, `y=2x` as `y-2x=0` | `y=5` |
//! | `a=4,b=5` as `4,5` and `(4,5)`, `x_1=4,x_2=5` as `5,4` | `5,4`, `a=5,b=4` |
//! | `\{1,1,2\}` as `\{1,2\}`, tuples of a list in any number | `1,1,2` and `1,2` |
//! | `x>3` as `(3,\infty)`, `x\ne3` as `\mathbb{R}\setminus\{3\}`, `[1,2]\cup[2,3]` as `[1,3]` | `y>3`, `x\ge3` |
//! | `\sin 30^\circ` as `\frac12`, `\log_2 8` as `3`, `\tan^2y+1` as `\sec^2y` | `\sin 30`, `\sqrt{x^2}` and `x` |
//! | `4:6` as `2:3` | times such as `2:30` and `1:15`, dates such as `2020-05-06` |
//! | `\{\emptyset\}` as `\{\{\}\}`, `\{\}` as `\emptyset` | `\{\emptyset\}` and `\emptyset` |
//! | `f(x+1)` as `f(1+x)`, `x(x+1)` as `x^2+x` | `f(2)` and `2f`, `P(A)` and `PA`, `\vec{AB}` and `\vec{BA}` |
//! | `1 km` as `1000 m`, `\text{(B) }5` as `5` and as `B` | `\text{(A) }5`, `5\text{ MW}` and `5\text{ mW}` |
//! | `1,22` as `1.22`, `\sqrt2` as `1.414213562` (ten digits at least) | `1,22` as `\frac{122}{100}`, `1.414` |
//!
//! `numeric` decides identities at fixed points; what it cannot tell is not the same. Never equal are `10 acts` and
//! `10 cats`, `AB` and `BA`, `x=y=3` and `3`, `0\cdot\infty` and `0`, `(1,000)` and `(1,0)`, nor are `(1,2)` and
//! `[1,2]` or `(2,1)` (tuples and intervals have order and brackets), `10\%` and `0.1`, `2516_8` and its decimal value
//! or `2516`, `\pi` and `3.14`. Texts are never products of their letters. Answers that cannot be parsed, and those
//! with numbers beyond 128 bits, are equal if their tokens are.

mod brackets;
mod derivatives;
mod intervals;
mod key;
mod names;
mod numbers;
mod numeric;
mod order;
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

/// The canonical form of an answer, without units and names: LaTeX that is its own canonical form. `None` if it is
/// empty.
pub fn canonical(text: &str) -> Option<String> {
    let tokens = tokens(text);
    let mut bare = tokens.clone();
    bare.retain(|token| !has(UNIT_SIGNS, command(token)));
    without_end(&mut bare);
    if bare.is_empty() {
        return None;
    }
    Some(read(&bare).map_or_else(|| written(&tokens), |list| list.key()))
}

/// What the tokens of an answer say; `None` if they are too many or too deep, or one cannot be parsed.
fn read(tokens: &[Token]) -> Option<List> {
    (tokens.len() <= LONGEST && depth(tokens) <= DEEPEST).then(|| value::list(tokens)).flatten()
}
