//! Lists of LaTeX commands and units that occur in answers. The sibling modules interpret them.

/// Whether a space-separated list of names contains `name`.
pub(crate) fn has(names: &str, name: &str) -> bool {
    names.split(' ').any(|known| known == name)
}

/// Commands that only change spacing or size; they are dropped.
pub(crate) const IGNORED: &str = "\
    ! , ; : > ( ) [ ] / quad qquad left right big Big bigg Bigg bigl bigr Bigl Bigr displaystyle \
    textstyle limits boxed fbox enspace bf it rm sf tt boldsymbol bm underline";
/// Signs of units, which are commands of this name here; the key that votes compare drops them.
pub(crate) const UNIT_SIGNS: &str = "degree % $ cent euro pounds yen rupee celsius fahrenheit";
/// The signs of money, which may precede the number.
pub(crate) const MONEY: &str = "$ euro pounds yen rupee";
pub(crate) const TEXTS: &str = "text textbf textit textrm textnormal mbox hbox";
/// Alphabets: a letter in one stays a letter, a word is a text.
pub(crate) const ALPHABETS: &str = "mathrm mathbf mathit mathsf mathbb mathcal";
pub(crate) const MATRICES: &str = "pmatrix bmatrix matrix smallmatrix array";

/// Functions of one argument. Their values are not computed: they are equal if their arguments are.
pub(crate) const FUNCTIONS: &str = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp";
/// Accents over the argument in braces.
pub(crate) const MARKS: &str = "overline vec hat tilde";
pub(crate) const SYMBOLS: &str = "\
    alpha beta gamma delta epsilon varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau \
    phi varphi chi psi omega Gamma Delta Theta Lambda Pi Sigma Phi Psi Omega infty emptyset ell dots";
/// Words that are commands even without a backslash.
pub(crate) const PLAIN: &str = "sqrt pi infty sin cos tan log ln theta";
/// Words of two letters that are not products of symbols, in lower case.
pub(crate) const SHORT_WORDS: &str = "no ii iv vi ix";
/// Words that only announce the answer behind them, in lower case.
pub(crate) const LEADS: &str = "\
    answer answers final the is are so thus therefore hence number value result solution solutions total we get have";
/// Letters and commands that are functions wherever brackets follow them.
pub(crate) const ALWAYS_FUNCTIONS: &str = "f \\zeta \\Gamma";
/// Letters and commands that brackets multiply, whatever is in them.
pub(crate) const NEVER_FUNCTIONS: &str = "e i \\pi \\infty \\emptyset \\dots";
/// Letters that are arguments rather than factors: `g(x+1)` is a value of `g`, `g(h-r)` a product.
pub(crate) const VARIABLES: &str = "x y z t u v w n";
/// Units, inside and outside `\text`.
pub(crate) const UNITS: &str = "\
    degree degrees percent pct percentage dollar dollars cent cents euro euros unit units cm mm km kg ft \
    mph kph inch inches foot \
    feet yard yards mile miles meter meters metre metres centimeter centimeters centimetre centimetres kilometer \
    kilometers kilometre kilometres millimeter millimeters gallon gallons pound pounds ounce ounces ton tons gram \
    grams kilogram kilograms liter liters litre litres second seconds minute minutes hour hours day days week weeks \
    month months year years radian radians acre acres watt watts volt volts joule joules newton newtons hr hrs min \
    mins sec secs lb lbs oz";
/// Words of units that are dropped and may precede another unit: `square inches`.
pub(crate) const PLAIN_UNITS: &str = "square sq cubic celsius fahrenheit kelvin usd";
/// Units inside `\text`; outside it they are products of letters.
pub(crate) const SHORT_UNITS: &str = "in m s g h l L J N V W K C F A mg ml mi yd yds ms hz kw kj mol rpm";
/// Texts after a value that change its meaning and are kept.
pub(crate) const KEPT_WORDS: &str = "\
    am pm hundred thousand million billion trillion dozen half halves third thirds quarter quarters fourth fourths \
    fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths hundredth hundredths zero one \
    two three four five six seven eight nine ten eleven twelve twenty january february march april may june july \
    august september october november december monday tuesday wednesday thursday friday saturday sunday north south \
    east west left right up down above below under over before after ago early late clockwise counterclockwise \
    forward backward forwards backwards positive negative more less fewer greater than most least not none never no \
    is are was even odd increase decrease gain loss profit higher lower taller shorter older younger longer if for \
    when where unless except mod modulo base remainder times plus minus divided infinity undefined true false and or \
    tens hundreds thousands millions billions trillions dozens score squared cubed factorial doubled tripled halved \
    repeating recurring repeated periodic binary octal decimal hexadecimal incorrect wrong off ahead behind slow fast \
    inclusive exclusive excluded excluding root power inverse reciprocal but half double twice";
/// Words of `KEPT_WORDS` that are also texts outside `\text`.
pub(crate) const DATE_WORDS: &str = "\
    january february march april june july august september october november december";

/// The factor of a number word after a number.
pub(crate) fn magnitude(word: &str) -> Option<&'static str> {
    Some(match word {
        "hundred" => "100",
        "thousand" => "1000",
        "million" | "millions" => "1000000",
        "billion" | "billions" => "1000000000",
        "trillion" | "trillions" => "1000000000000",
        _ => return None,
    })
}

/// The word for a unit whose symbol is that of another one but for a capital letter: `MW` and `mW`, `MB` and `Mb`.
pub(crate) fn large_unit(symbol: &str) -> Option<&'static str> {
    Some(match symbol {
        "MW" => "megawatts",
        "MWh" => "megawatthours",
        "MHz" => "megahertz",
        "MJ" => "megajoules",
        "MV" => "megavolts",
        "MN" => "meganewtons",
        "MPa" => "megapascals",
        "MeV" => "megaelectronvolts",
        "ML" => "megaliters",
        "Mg" => "megagrams",
        "Mm" => "megameters",
        "kB" | "KB" => "kilobytes",
        "MB" => "megabytes",
        "GB" => "gigabytes",
        "TB" => "terabytes",
        "kb" | "Kb" => "kilobits",
        "Mb" => "megabits",
        "Gb" => "gigabits",
        "Tb" => "terabits",
        _ => return None,
    })
}

/// The direction that a letter after degrees stands for.
pub(crate) fn compass(letter: &str) -> Option<&'static str> {
    Some(match letter {
        "N" => "north",
        "S" => "south",
        "E" => "east",
        "W" => "west",
        _ => return None,
    })
}

/// The canonical name of a command with synonyms.
pub(crate) fn one_name(name: &str) -> &str {
    match name {
        "dfrac" | "tfrac" | "cfrac" => "frac",
        "dbinom" | "tbinom" => "binom",
        "leq" | "leqslant" => "le",
        "geq" | "geqslant" => "ge",
        "neq" => "ne",
        "lbrace" => "{",
        "rbrace" => "}",
        "varnothing" => "emptyset",
        "textcent" => "cent",
        "approxeq" | "simeq" | "thickapprox" => "approx",
        "overrightarrow" => "vec",
        "bar" => "overline",
        "widehat" => "hat",
        "widetilde" => "tilde",
        "backslash" | "smallsetminus" => "setminus",
        "ldots" | "cdots" => "dots",
        other => other,
    }
}

pub(crate) fn is_symbol(command: &str) -> bool {
    has(SYMBOLS, command)
}

/// Whether a word without a backslash is a command.
pub(crate) fn is_plain(word: &str) -> bool {
    has(PLAIN, word)
}

/// Whether a command begins a value.
pub(crate) fn is_value(name: &str) -> bool {
    has("frac sqrt binom lfloor lceil sum prod", name)
        || name.starts_with("mathbb{")
        || has(FUNCTIONS, name)
        || has(MARKS, name)
        || is_symbol(name)
}
