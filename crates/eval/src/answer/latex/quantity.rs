//! Units of values: which are the same, and by which factor one is converted to another. `units` finds their tokens.

use std::collections::BTreeMap;

use crate::answer::latex::brackets::command;
use crate::answer::latex::names::{PLAIN_UNITS, SHORT_UNITS, UNITS, has};
use crate::answer::latex::tokens::Token;
use crate::answer::rational::Rational;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A factor and powers of base units: `km/h` is 5/18 of `length` and 1 over `time`.
    Known { factor: Rational, powers: BTreeMap<String, i128> },
    /// Other words, each in the singular: what is counted.
    Noun(Vec<String>),
}

impl Unit {
    /// The unit that a sign of money and the tokens behind a value name. `None`: they name none.
    pub fn read(money: Option<&Token>, tokens: &[Token]) -> Option<Unit> {
        if money.is_none() && tokens.is_empty() {
            return None;
        }
        let mut unit = Reader { factor: Rational::whole(1), powers: BTreeMap::new() };
        let is_known = unit.read(tokens).is_some();
        let has_money = unit.powers.keys().any(|base| base.ends_with(" money"));
        let money = money.filter(|_| !has_money).map(command);
        let with_money = money.map(|sign| unit.times(if sign == "pounds" { "sterling" } else { sign }, 1));
        // A sign of money tells more than a noun behind the number.
        Some(match is_known || with_money.flatten().is_some() {
            true => unit.known(),
            false => Unit::Noun(nouns(tokens)),
        })
    }

    /// The unit that is a product of powers of letters, such as `m` and `s^{-1}`. `None`: one is no unit.
    pub fn of_letters<'l>(letters: impl Iterator<Item = (&'l str, i128)>) -> Option<Unit> {
        let mut unit = Reader { factor: Rational::whole(1), powers: BTreeMap::new() };
        for (letter, power) in letters {
            has(SHORT_UNITS, letter).then(|| unit.times(letter, power))??;
        }
        Some(unit.known())
    }

    /// The number by which a value in this unit is multiplied to be one in the other; `None` if they measure different
    /// things.
    pub fn converted(&self, other: &Unit) -> Option<Rational> {
        let one = Rational::whole(1);
        match (self, other) {
            (Unit::Known { factor, powers }, Unit::Known { factor: to, powers: others }) => {
                if powers == others {
                    return factor.times(to.inverse()?);
                }
                let generic = |powers: &BTreeMap<String, i128>, others: &BTreeMap<String, i128>| {
                    let power = powers.get("unit").filter(|_| powers.len() == 1 && others.len() == 1);
                    power.is_some() && power == others.get("length")
                };
                if generic(powers, others) || generic(others, powers) {
                    return Some(one);
                }
                let kinds = [("mass", Rational::new(45_359_237, 100_000)?), ("sterling money", one)];
                kinds.into_iter().find_map(|(base, size)| match self.with_pounds(base, size) {
                    Some(unit) => unit.converted(other),
                    None => self.converted(&other.with_pounds(base, size)?),
                })
            }
            (Unit::Noun(words), Unit::Noun(others)) => {
                let (few, many) = if words.len() < others.len() { (words, others) } else { (others, words) };
                few.iter().all(|word| many.contains(word)).then_some(one)
            }
            _ => None,
        }
    }

    /// The unit with its pounds, which may be a mass or money, as `size` of the base unit. `None`: it has none.
    fn with_pounds(&self, base: &str, size: Rational) -> Option<Unit> {
        let Unit::Known { factor, powers } = self else { return None };
        let mut powers = powers.clone();
        let power = powers.remove("pound")?;
        *powers.entry(base.to_string()).or_default() += power;
        Some(Unit::Known { factor: factor.times(size.power(power)?)?, powers })
    }

    /// Whether it is this base unit itself.
    pub fn is(&self, base: &str) -> bool {
        matches!(self, Unit::Known { factor, powers }
            if *factor == Rational::whole(1) && powers.len() == 1 && powers.get(base) == Some(&1))
    }
}

fn nouns(tokens: &[Token]) -> Vec<String> {
    let word = |token: &Token| match token {
        Token::Text(word) | Token::Word(word) => Some(word.to_lowercase()),
        _ => None,
    };
    let is_noun = |word: &String| !has("of to in a an the", word);
    tokens.iter().filter_map(word).filter(is_noun).map(|word| singular(&word).to_string()).collect()
}

struct Reader {
    factor: Rational,
    powers: BTreeMap<String, i128>,
}

impl Reader {
    /// Multiplies by all the units in the tokens. `None` if there is another word.
    fn read(&mut self, tokens: &[Token]) -> Option<()> {
        let (mut side, mut size) = (1, 1);
        let mut rest = tokens;
        while let [token, behind @ ..] = rest {
            rest = behind;
            let word = match token {
                Token::Text(word) | Token::Word(word) => &word[..],
                Token::Command(name) if name == "frac" => continue,
                Token::Command(name) => name,
                Token::Sign('/') => "per",
                // The second group of a fraction.
                Token::Sign('}') if rest.first() == Some(&Token::Sign('{')) => "per",
                Token::Sign(_) => continue,
                Token::Number(_) => return None,
            };
            match word {
                "per" => side = -1,
                "square" | "sq" => size = 2,
                "cubic" | "cu" => size = 3,
                unit => {
                    let (power, behind) = power(rest);
                    rest = behind;
                    let is_sign = matches!(token, Token::Command(_));
                    let unit = if unit == "pounds" && is_sign { "sterling" } else { unit };
                    self.times(unit, side * power.unwrap_or(size))?;
                    size = 1;
                }
            }
        }
        Some(())
    }

    /// Multiplies by a power of the unit. `None` if it is unknown.
    fn times(&mut self, unit: &str, power: i128) -> Option<()> {
        let (base, above, below, dimension) = known(unit)?;
        self.factor = self.factor.times(Rational::new(above, below)?.power(power)?)?;
        match unit {
            "mph" | "kph" => *self.powers.entry("time".to_string()).or_default() -= power,
            _ => {}
        }
        *self.powers.entry(base).or_default() += power.checked_mul(dimension)?;
        Some(())
    }

    fn known(mut self) -> Unit {
        // `degrees Celsius` are no angle.
        if ["celsius", "fahrenheit"].iter().any(|base| self.powers.contains_key(*base)) {
            self.powers.remove("degree");
        }
        self.powers.retain(|_, power| *power != 0);
        Unit::Known { factor: self.factor, powers: self.powers }
    }
}

/// The power behind a unit, and the tokens behind that.
fn power(tokens: &[Token]) -> (Option<i128>, &[Token]) {
    let tokens = tokens.strip_prefix(&[Token::Sign('.')]).unwrap_or(tokens);
    let (digits, sign, rest) = match tokens {
        [Token::Sign('^'), Token::Number(digits), rest @ ..]
        | [Token::Sign('^'), Token::Sign('{'), Token::Number(digits), Token::Sign('}'), rest @ ..] => (digits, 1, rest),
        [Token::Sign('^'), Token::Sign('{'), Token::Sign('-'), Token::Number(digits), Token::Sign('}'), rest @ ..] => {
            (digits, -1, rest)
        }
        rest => return (None, rest),
    };
    (digits.parse::<i8>().ok().map(|power| sign * i128::from(power)), rest)
}

fn singular(word: &str) -> &str {
    match word {
        "feet" => "foot",
        "inches" => "inch",
        word if word.len() > 3 => word.strip_suffix('s').filter(|one| !one.ends_with('s')).unwrap_or(word),
        "hrs" | "lbs" | "yds" => &word[..2],
        word => word,
    }
}

/// The base unit of a unit, the factor as a fraction, and the dimension, which is 3 for volumes.
fn known(unit: &str) -> Option<(String, i128, i128, i128)> {
    let one = |base: &str, above, below| Some((base.to_string(), above, below, 1));
    match singular(unit) {
        "m" | "meter" | "metre" => one("length", 1, 1),
        "mm" | "millimeter" | "millimetre" => one("length", 1, 1000),
        "cm" | "centimeter" | "centimetre" => one("length", 1, 100),
        "km" | "kilometer" | "kilometre" => one("length", 1000, 1),
        "in" | "inch" => one("length", 254, 10_000),
        "ft" | "foot" => one("length", 3048, 10_000),
        "yd" | "yard" => one("length", 9144, 10_000),
        "mi" | "mile" => one("length", 1_609_344, 1000),
        "mph" => one("length", 1_609_344, 3_600_000),
        "kph" => one("length", 1000, 3600),
        "l" | "L" | "liter" | "litre" => Some(("length".to_string(), 1, 1000, 3)),
        "ml" => Some(("length".to_string(), 1, 1_000_000, 3)),
        "g" | "gram" => one("mass", 1, 1),
        "mg" => one("mass", 1, 1000),
        "kg" | "kilogram" => one("mass", 1000, 1),
        "lb" => one("mass", 45_359_237, 100_000),
        "pound" => one("pound", 1, 1),
        "s" | "sec" | "second" => one("time", 1, 1),
        "min" | "mins" | "minute" => one("time", 60, 1),
        "h" | "hr" | "hour" => one("time", 3600, 1),
        "day" => one("time", 86_400, 1),
        "week" => one("time", 604_800, 1),
        "month" => one("month", 1, 1),
        "year" => one("month", 12, 1),
        "$" | "dollar" | "usd" => one("dollar money", 1, 1),
        "cent" => one("dollar money", 1, 100),
        "euro" => one("euro money", 1, 1),
        "sterling" => one("sterling money", 1, 1),
        "yen" | "rupee" => one(&format!("{unit} money"), 1, 1),
        "%" | "percent" | "pct" | "percentage" => one("percent", 1, 1),
        "celsius" | "C" => one("celsius", 1, 1),
        "fahrenheit" | "F" => one("fahrenheit", 1, 1),
        "W" | "watt" => one("watt", 1, 1),
        "kw" => one("watt", 1000, 1),
        "J" | "joule" => one("joule", 1, 1),
        "kj" => one("joule", 1000, 1),
        "V" | "volt" => one("volt", 1, 1),
        "N" | "newton" => one("newton", 1, 1),
        "K" | "kelvin" => one("kelvin", 1, 1),
        other if has(UNITS, unit) || has(PLAIN_UNITS, unit) || has(SHORT_UNITS, unit) || has("degree", unit) => {
            one(other, 1, 1)
        }
        _ => None,
    }
}
