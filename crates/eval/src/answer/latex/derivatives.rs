//! Derivatives in Leibniz's notation, which are no quotients whose `d` can be cancelled: `\frac{dy}{dx}`, `dy/dx`,
//! `\frac{d^2y}{dx^2}`. They are rewritten as symbols of their own before the text is split into tokens.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// A text with its derivatives as symbols: `D_{yx}`, with the order in front if it has one.
pub(crate) fn with_symbols(text: &str) -> Cow<'_, str> {
    let is_candidate = text.contains("frac") || text.contains("/d") || text.contains("/\\mathrm");
    if !is_candidate {
        return Cow::Borrowed(text);
    }
    let symbol = |captures: &Captures<'_>| {
        let part = |name: &str| captures.name(name).map_or("", |part| part.as_str());
        format!("{}D_{{{}{}{}}}{}", part("before"), part("order"), part("of"), part("by"), part("behind"))
    };
    let (fraction, slash) = &*PATTERNS;
    match fraction.replace_all(text, symbol) {
        Cow::Borrowed(text) => slash.replace_all(text, symbol),
        Cow::Owned(text) => Cow::Owned(slash.replace_all(&text, symbol).into_owned()),
    }
}

/// The patterns of `\frac{dy}{dx}` and `dy/dx`.
static PATTERNS: LazyLock<(Regex, Regex)> = LazyLock::new(|| {
    let d = r"(?:d|\\mathrm\s*\{\s*d\s*\}|\\mathrm\s+d|\\partial)\s*";
    let order = r"(?:\^\s*\{?\s*(?P<order>[0-9n])\s*\}?\s*)?";
    let again = r"(?:\^\s*\{?\s*[0-9n]\s*\}?\s*)?";
    let (of, by) = (r"(?P<of>[a-zA-Z]?)\s*", r"(?P<by>[a-zA-Z])\s*");
    let fraction = format!(r"\\[dtc]?frac\s*\{{\s*{d}{order}{of}\}}\s*\{{\s*{d}{by}{again}\}}");
    let slash = format!(r"(?P<before>^|[^a-zA-Z\\]){d}{order}{of}/\s*{d}{by}{again}(?P<behind>$|[^a-zA-Z])");
    let pattern = |text: String| Regex::new(&text).expect("the pattern is one");
    (pattern(fraction), pattern(slash))
});
