//! The names of LaTeX's commands, as far as answers use them, and of units. What they mean is left to the modules beside this one.

/// Whether a list of names, as they are kept here, has this one.
pub(super) fn has(names: &str, name: &str) -> bool {
    names.split(' ').any(|known| known == name)
}

/// Commands that only space, size or set off what follows.
pub(super) const SILENT: &str = "\
    ! , ; : > ( ) [ ] $ % / quad qquad left right big Big bigg Bigg bigl bigr Bigl Bigr displaystyle \
    textstyle limits degree boxed fbox enspace";
pub(super) const TEXTS: &str = "text textbf textit textrm textnormal mbox hbox";
/// Alphabets: a letter in one stays a letter, a word is a text.
pub(super) const ALPHABETS: &str = "mathrm mathbf mathit mathsf mathbb mathcal";
pub(super) const MATRICES: &str = "pmatrix bmatrix matrix smallmatrix array";

/// Of one argument; their values are not computed, so that they equal only what has an equal argument.
pub(super) const FUNCTIONS: &str = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp";
/// Marks over what stands in braces behind them.
pub(super) const MARKS: &str = "overline vec hat bar overrightarrow widehat tilde";
pub(super) const SYMBOLS: &str = "\
    alpha beta gamma delta epsilon varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau \
    phi varphi chi psi omega Gamma Delta Theta Lambda Pi Sigma Phi Psi Omega infty emptyset ell dots";
/// Words that are commands even where the backslash was forgotten.
pub(super) const PLAIN: &str = "sqrt pi infty sin cos tan log ln theta";
/// Units that stand behind a number without `\text`.
pub(super) const UNITS: &str = "\
    degree degrees percent dollar dollars cent cents unit units square sq cubic cm mm km kg ft mph inch \
    inches foot feet yard yards mile miles meter meters centimeters kilometers gallons pounds second \
    seconds minute minutes hour hours days years";

/// The name, among those of commands that mean the same, which the modules beside this one know.
pub(super) fn one_name(name: &str) -> &str {
    match name {
        "dfrac" | "tfrac" | "cfrac" => "frac",
        "dbinom" | "tbinom" => "binom",
        "leq" | "leqslant" => "le",
        "geq" | "geqslant" => "ge",
        "neq" => "ne",
        "lbrace" => "{",
        "rbrace" => "}",
        "varnothing" => "emptyset",
        other => other,
    }
}

pub(super) fn is_symbol(command: &str) -> bool {
    has(SYMBOLS, command)
}

/// Whether a word stands for a command.
pub(super) fn is_plain(word: &str) -> bool {
    has(PLAIN, word)
}

/// Whether a command begins a value.
pub(super) fn is_value(name: &str) -> bool {
    has("frac sqrt binom", name) || has(FUNCTIONS, name) || has(MARKS, name) || is_symbol(name)
}
