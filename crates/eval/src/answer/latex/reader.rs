//! Parses tokens to expressions by recursive descent: numbers, symbols, fractions, roots, powers, functions. `None`:
//! the tokens are not such an expression, or a number overflows. `mod` handles lists, intervals and equations.

use crate::answer::latex::brackets::{closes, command, opens, parts};
use crate::answer::latex::names::{
    ALWAYS_FUNCTIONS, FUNCTIONS, MARKS, NEVER_FUNCTIONS, VARIABLES, has, is_plain, is_symbol, is_value,
};
use crate::answer::latex::numbers::{binomial, decimal, double_factorial, factorial, is_too_large};
use crate::answer::latex::sum::Sum;
use crate::answer::latex::tokens::{Token, written};
use crate::answer::latex::units;
use crate::answer::rational::Rational;

/// Maximum depth of nested expressions, to bound the stack.
const DEEPEST: usize = 64;

pub(crate) fn sum(tokens: &[Token]) -> Option<Sum> {
    (!units::has_units_between_numbers(tokens)).then_some(())?;
    let mut reader = LatexReader { tokens: letters(tokens), at: 0, depth: 0, in_bars: false };
    let sum = reader.sum()?;
    (reader.at == reader.tokens.len()).then_some(sum)
}

/// Splits words into letters, which are multiplied; words that are commands become commands. A single text of one
/// letter is a symbol.
fn letters(tokens: &[Token]) -> Vec<Token> {
    if let [Token::Text(letter)] = tokens
        && letter.len() == 1
    {
        return vec![Token::Word(letter.clone())];
    }
    let mut found = Vec::new();
    for token in tokens {
        match token {
            Token::Word(word) if is_plain(word) => found.push(Token::Command(word.clone())),
            Token::Word(word) => found.extend(word.chars().map(|letter| Token::Word(letter.to_string()))),
            other => found.push(other.clone()),
        }
    }
    found
}

/// Whether brackets with these arguments behind a letter are those of a function, as in `f(x+1)`, `P(A)`, `x(t)`, and
/// not those of a factor, as in `x(x+1)` and `P(1+r)`.
fn is_function(letter: &str, has_index: bool, is_derivative: bool, of: &[Vec<Token>]) -> bool {
    let is_variable = |token: &Token| match token {
        Token::Word(word) => has(VARIABLES, word),
        token => is_symbol(command(token)),
    };
    let is_one = |argument: &[Token]| match argument {
        [Token::Number(_)] | [Token::Sign('-'), Token::Number(_)] => true,
        [Token::Word(other)] => other != letter,
        [Token::Command(name)] => is_symbol(name) && name != letter.trim_start_matches('\\'),
        _ => false,
    };
    let [argument] = of else { return true };
    if is_derivative || has(ALWAYS_FUNCTIONS, letter) {
        return true;
    }
    match letter {
        "g" | "h" if !has_index => is_one(argument) || argument.iter().any(is_variable) || is_number(argument),
        _ if has(NEVER_FUNCTIONS, letter) || has_index => false,
        _ => is_one(argument),
    }
}

/// Whether tokens have neither letters nor symbols.
fn is_number(tokens: &[Token]) -> bool {
    tokens.iter().all(|token| matches!(token, Token::Number(_) | Token::Sign(_)))
}

struct LatexReader {
    tokens: Vec<Token>,
    at: usize,
    /// Current depth of nested values.
    depth: usize,
    /// Whether the next bar ends an absolute value.
    in_bars: bool,
}

impl LatexReader {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn take(&mut self, sign: char) -> bool {
        let is_there = self.peek() == Some(&Token::Sign(sign));
        self.at += usize::from(is_there);
        is_there
    }

    /// Consumes signs; whether an odd number of them is minus.
    fn is_negative(&mut self) -> bool {
        let mut is_negative = false;
        while let Some(Token::Sign(sign @ ('+' | '-'))) = self.peek() {
            is_negative ^= *sign == '-';
            self.at += 1;
        }
        is_negative
    }

    fn sum(&mut self) -> Option<Sum> {
        let mut sum = Sum::default();
        loop {
            let is_negative = self.is_negative();
            let product = self.product()?;
            sum = sum.plus(&if is_negative { product.negative() } else { product })?;
            if !matches!(self.peek(), Some(Token::Sign('+' | '-'))) {
                return Some(sum);
            }
        }
    }

    fn product(&mut self) -> Option<Sum> {
        let mut product = self.factor()?;
        loop {
            if self.take('*') {
                product = product.times(&self.signed_factor()?)?;
            } else if self.take('/') {
                product = product.times(&self.signed_factor()?.power(Rational::whole(-1))?)?;
            } else if self.is_factor() {
                product = product.times(&self.factor()?)?;
            } else {
                return Some(product);
            }
        }
    }

    /// Whether a factor without a multiplication sign follows; a number directly after a number is not one.
    fn is_factor(&self) -> bool {
        match self.peek() {
            // `x2` is rather a name than a product, but `n2^n` is one.
            Some(Token::Number(_)) => match &self.tokens[self.at - 1] {
                Token::Number(_) => false,
                Token::Word(letter) => letter == "i" || self.tokens.get(self.at + 1) == Some(&Token::Sign('^')),
                _ => true,
            },
            Some(Token::Word(_) | Token::Sign('(' | '[' | '{')) => true,
            Some(Token::Sign('|')) => !self.in_bars,
            Some(Token::Command(name)) => is_value(name),
            _ => false,
        }
    }

    fn signed_factor(&mut self) -> Option<Sum> {
        let is_negative = self.is_negative();
        let factor = self.factor()?;
        Some(if is_negative { factor.negative() } else { factor })
    }

    /// A value with its powers and factorials.
    fn factor(&mut self) -> Option<Sum> {
        let mut value = self.value()?;
        loop {
            if self.take('^') {
                let exponent = self.script()?;
                value = match exponent.as_number() {
                    Some(number) if is_too_large(&value, number) => Sum::call("^", vec![value, exponent])?,
                    Some(number) => value.power(number)?,
                    None => Sum::call("^", vec![value, exponent])?,
                };
            } else if self.take('!') {
                let is_double = self.take('!');
                (self.peek() != Some(&Token::Sign('!'))).then_some(())?;
                let number = value.as_whole();
                let product = if is_double { number.and_then(double_factorial) } else { number.and_then(factorial) };
                value = product.or_else(|| Sum::call(if is_double { "!!" } else { "!" }, vec![value]))?;
            } else if matches!(self.peek(), Some(Token::Command(name)) if name == "degree") {
                self.at += 1;
                value = value.times(&Sum::named("\\pi").scaled(Rational::new(1, 180)?)?)?;
            } else {
                return Some(value);
            }
        }
    }

    fn value(&mut self) -> Option<Sum> {
        self.depth += 1;
        let value = if self.depth > DEEPEST { None } else { self.value_of(self.peek()?.clone()) };
        self.depth -= 1;
        value
    }

    fn value_of(&mut self, token: Token) -> Option<Sum> {
        self.at += 1;
        match token {
            Token::Number(digits) => self.number(&digits),
            Token::Word(letter) => self.symbol(&letter),
            Token::Sign('(') => self.closed(')'),
            Token::Sign('[') => self.closed(']'),
            Token::Sign('{') => self.closed('}'),
            Token::Sign('|') => {
                let inside = self.closed('|')?;
                match inside.as_number() {
                    Some(number) if number.above < 0 => Some(inside.negative()),
                    Some(_) => Some(inside),
                    None => Sum::call("|", vec![inside]),
                }
            }
            Token::Command(name) => self.command(&name),
            Token::Text(_) | Token::Sign(_) => None,
        }
    }

    fn closed(&mut self, closing: char) -> Option<Sum> {
        let outer = std::mem::replace(&mut self.in_bars, closing == '|');
        let sum = self.sum()?;
        self.in_bars = outer;
        self.take(closing).then_some(sum)
    }

    /// A number with its base (a subscript) or the fraction of a mixed number.
    fn number(&mut self, digits: &str) -> Option<Sum> {
        if self.peek() == Some(&Token::Sign('_')) {
            return self.indexed(digits);
        }
        let value = decimal(digits)?;
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(Sum::number(value));
        }
        if let [Token::Number(above), Token::Sign('/'), Token::Number(below), ..] = &self.tokens[self.at..] {
            let fraction = decimal(above)?.times(decimal(below)?.inverse()?)?;
            self.at += 3;
            return (fraction.floor() == 0).then_some(Sum::number(value.plus(fraction)?));
        }
        let is_fraction = matches!(self.peek(), Some(Token::Command(name)) if name == "frac");
        if is_fraction {
            self.at += 1;
            let (above, below) = (self.argument()?, self.argument()?);
            let is_proper = matches!((above.as_whole(), below.as_whole()), (Some(a), Some(b)) if 0 < a && a < b);
            let fraction = above.times(&below.power(Rational::whole(-1))?)?;
            return if is_proper { fraction.plus(&Sum::number(value)) } else { fraction.scaled(value) };
        }
        Some(Sum::number(value))
    }

    fn command(&mut self, name: &str) -> Option<Sum> {
        let half = Rational::new(1, 2)?;
        match name {
            "frac" => {
                let above = self.argument()?;
                above.times(&self.argument()?.power(Rational::whole(-1))?)
            }
            "sqrt" => {
                let degree = if self.take('[') { self.closed(']')?.as_number()?.inverse()? } else { half };
                let of = if self.take('(') { self.closed(')')? } else { self.argument()? };
                of.power(degree)
            }
            "binom" => {
                let (n, k) = (self.argument()?, self.argument()?);
                let value = n.as_whole().zip(k.as_whole()).and_then(|(n, k)| binomial(n, k));
                value.or_else(|| Sum::call("\\binom", vec![n, k]))
            }
            "lfloor" | "lceil" => self.rounded(name),
            "sum" | "prod" => {
                let mut limits = format!("\\{name}");
                for sign in ['_', '^'] {
                    limits = if self.take(sign) { format!("{limits}{sign}{{{}}}", self.verbatim()?) } else { limits };
                }
                Sum::call(limits, vec![self.product()?])
            }
            _ if has(FUNCTIONS, name) => self.function(name),
            _ if has(MARKS, name) => match self.points() {
                Some(points) => {
                    let mut ends = points.clone().into_bytes();
                    ends.sort_unstable();
                    let is_segment = name == "overline" && ends.len() == 2 && ends.iter().all(u8::is_ascii_uppercase);
                    // A segment has no direction.
                    let points = if is_segment { ends.into_iter().map(char::from).collect() } else { points };
                    Some(Sum::named(format!("\\{name}{{{points}}}")))
                }
                None => Sum::call(format!("\\{name}"), vec![self.argument()?]),
            },
            _ if name.starts_with("mathbb{") => Some(Sum::named(format!("\\{name}"))),
            _ if is_symbol(name) => self.symbol(&format!("\\{name}")),
            _ => None,
        }
    }

    /// The letters of a group of several, such as the points of `\vec{AB}` or the digits of `\overline{ab}`.
    fn points(&mut self) -> Option<String> {
        self.tokens[self.at..].first().filter(|token| **token == Token::Sign('{'))?;
        let letter = |token: &Token| if let Token::Word(letter) = token { Some(letter.clone()) } else { None };
        let letters: Vec<String> = self.tokens[self.at + 1..].iter().map_while(letter).collect();
        let is_closed = self.tokens.get(self.at + 1 + letters.len()) == Some(&Token::Sign('}'));
        (letters.len() > 1 && is_closed).then(|| self.at += letters.len() + 2)?;
        Some(letters.concat())
    }

    /// A letter or a symbol's command, which was read, with its index and primes; applied to the arguments in brackets
    /// behind it if it is a function.
    fn symbol(&mut self, letter: &str) -> Option<Sum> {
        let mut name = letter.to_owned();
        if self.peek() == Some(&Token::Sign('_')) {
            name = self.index(letter)?;
        }
        let has_index = name != letter;
        let unprimed = name.len();
        while self.take('\'') {
            name.push('\'');
        }
        let is_derivative = name.len() > unprimed;
        if let Some(order) = self.order(letter, has_index || is_derivative) {
            name.push_str(&order);
            return match self.arguments() {
                Some(of) => Sum::call(name, self.applied(of)?),
                None => Some(Sum::named(name)),
            };
        }
        match self.arguments().filter(|of| is_function(letter, has_index, is_derivative, of)) {
            Some(of) => Sum::call(name, self.applied(of)?),
            None if name == "i" => Some(Sum::imaginary()),
            None => Some(Sum::named(name)),
        }
    }

    /// The order of a derivative (`^{(3)}`), or the power of a function whose arguments follow (`f^2(x)`, `f^{-1}(x)`),
    /// as it is written.
    fn order(&mut self, letter: &str, is_plain: bool) -> Option<String> {
        let is_one = |token: &Token| matches!(token, Token::Number(_) | Token::Word(_));
        let (length, is_derivative) = match &self.tokens[self.at..] {
            [Token::Sign('^'), Token::Sign('{'), Token::Sign('('), order, Token::Sign(')'), Token::Sign('}'), ..] => {
                (6, is_one(order) && !["e", "i"].contains(&letter))
            }
            [Token::Sign('^'), Token::Sign('{'), Token::Sign('-'), power, Token::Sign('}'), Token::Sign('('), ..] => {
                (5, is_one(power) && has("f g h F G H", letter))
            }
            [Token::Sign('^'), Token::Sign('{'), power, Token::Sign('}'), Token::Sign('('), ..] => {
                (4, is_one(power) && has("f g h", letter))
            }
            [Token::Sign('^'), power, Token::Sign('('), ..] => (2, is_one(power) && has("f g h", letter)),
            _ => return None,
        };
        (is_derivative && !is_plain).then_some(())?;
        let text = written(&self.tokens[self.at..self.at + length]);
        self.at += length;
        Some(if length == 2 { format!("^{{{}}}", &text[1..]) } else { text })
    }

    /// The tokens of the arguments in round brackets that follow, which are not consumed.
    fn arguments(&self) -> Option<Vec<Vec<Token>>> {
        let behind = &self.tokens[self.at..];
        behind.first().filter(|token| **token == Token::Sign('('))?;
        let mut depth = 0_usize;
        let end = behind.iter().position(|token| {
            depth = if opens(token) { depth + 1 } else { depth - usize::from(closes(token)) };
            depth == 0
        })?;
        (behind[end] == Token::Sign(')')).then_some(())?;
        let inside = parts(&behind[1..end], &|token| *token == Token::Sign(','));
        Some(inside.into_iter().map(<[Token]>::to_vec).collect())
    }

    /// Consumes the arguments, and reads them.
    fn applied(&mut self, of: Vec<Vec<Token>>) -> Option<Vec<Sum>> {
        let outer = std::mem::take(&mut self.in_bars);
        let mut read = Vec::new();
        for argument in &of {
            self.at += 1;
            let end = self.at + argument.len();
            read.push(self.sum().filter(|_| self.at == end)?);
        }
        self.at += 1;
        self.in_bars = outer;
        Some(read)
    }

    /// A number rounded down (`lfloor`) or up (`lceil`).
    fn rounded(&mut self, name: &str) -> Option<Sum> {
        let outer = std::mem::take(&mut self.in_bars);
        let inside = self.sum()?;
        self.in_bars = outer;
        let end = if name == "lfloor" { "rfloor" } else { "rceil" };
        matches!(self.peek(), Some(Token::Command(name)) if name == end).then(|| self.at += 1)?;
        Some(match (inside.as_number(), name) {
            (Some(number), "lfloor") => Sum::number(Rational::whole(number.floor())),
            (Some(number), _) => Sum::number(Rational::whole(number.negative().floor().checked_neg()?)),
            (None, _) => Sum::call(format!("\\{name}"), vec![inside])?,
        })
    }

    /// A function with its base and power, which precede its argument.
    fn function(&mut self, name: &str) -> Option<Sum> {
        let base = if self.take('_') { Some(self.script()?) } else { None };
        (base.is_none() || name == "log").then_some(())?;
        let power = if self.take('^') { Some(self.script()?.as_whole()?) } else { None };
        let argument = match self.peek()? {
            Token::Sign('(' | '{' | '[' | '|') => self.value()?,
            _ => self.bare_argument()?,
        };
        let (name, power) = match power {
            Some(-1) if ["sin", "cos", "tan"].contains(&name) => (format!("\\arc{name}"), 1),
            power => (format!("\\{name}"), power.unwrap_or(1)),
        };
        let call = match base {
            Some(base) => Sum::call("\\log_", vec![argument, base])?,
            None => Sum::call(name, vec![argument])?,
        };
        call.power(Rational::whole(power))
    }

    /// An argument without brackets: adjacent factors up to the next function.
    fn bare_argument(&mut self) -> Option<Sum> {
        let mut argument = self.signed_factor()?;
        while self.is_factor() && !matches!(self.peek(), Some(Token::Command(name)) if has(FUNCTIONS, name)) {
            argument = argument.times(&self.factor()?)?;
        }
        Some(argument)
    }

    /// The argument of a fraction or root: a group, or one digit, letter or command. A letter is no function here.
    fn argument(&mut self) -> Option<Sum> {
        match self.peek()?.clone() {
            Token::Number(digits) if digits.len() > 1 => {
                let (first, rest) = digits.split_at_checked(1)?;
                digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
                self.tokens[self.at] = Token::Number(rest.to_string());
                Some(Sum::number(decimal(first)?))
            }
            Token::Number(digits) => {
                self.at += 1;
                Some(Sum::number(decimal(&digits)?))
            }
            Token::Word(letter) => {
                self.at += 1;
                match self.peek() {
                    Some(Token::Sign('_')) => self.indexed(&letter),
                    _ if letter == "i" => Some(Sum::imaginary()),
                    _ => Some(Sum::named(letter)),
                }
            }
            Token::Sign('{') | Token::Command(_) => self.value(),
            _ => None,
        }
    }

    /// The exponent after `^`: a group, or a number, letter or command with its sign.
    fn script(&mut self) -> Option<Sum> {
        let is_negative = self.is_negative();
        let value = match self.peek()?.clone() {
            Token::Number(digits) => {
                self.at += 1;
                Sum::number(decimal(&digits)?)
            }
            _ => self.argument()?,
        };
        Some(if is_negative { value.negative() } else { value })
    }

    fn indexed(&mut self, name: &str) -> Option<Sum> {
        self.index(name).map(Sum::named)
    }

    /// The name with its index after `_`: a group or one token, unchanged.
    fn index(&mut self, name: &str) -> Option<String> {
        self.take('_').then_some(())?;
        Some(format!("{name}_{{{}}}", self.verbatim()?))
    }

    /// The text of the index or limit that follows: a group without brackets or scripts, or one token.
    fn verbatim(&mut self) -> Option<String> {
        let start = self.at + usize::from(self.peek() == Some(&Token::Sign('{')));
        let length = match start == self.at {
            true => 1,
            false => self.tokens[start..].iter().position(|token| *token == Token::Sign('}'))?,
        };
        let inside = self.tokens.get(start..start + length).filter(|inside| !inside.is_empty())?;
        let is_plain = |token: &Token| !opens(token) && !closes(token) && !matches!(token, Token::Sign('^' | '_'));
        inside.iter().all(is_plain).then_some(())?;
        let text = written(inside);
        self.at = start + length + usize::from(start != self.at);
        Some(text)
    }
}
