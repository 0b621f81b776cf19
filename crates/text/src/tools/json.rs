//! Finds the ends of JSON values in texts that come in pieces. It counts brackets and quotation marks and nothing else:
//! whether a value is valid JSON is left to its reader.

/// Finds the end of an object or list, of which it is given every sign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BracketScanner {
    /// Brackets that are open.
    depth: usize,
    in_string: bool,
    /// Whether the sign before was a backslash in a string.
    is_escaped: bool,
}

/// Where a value ends in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Behind this many bytes.
    At(usize),
    /// Not in this text.
    Beyond,
}

impl BracketScanner {
    /// A scanner within so many open brackets.
    pub fn within(depth: usize) -> Self {
        BracketScanner { depth, ..BracketScanner::default() }
    }

    /// Whether the next sign stands in a string.
    pub fn is_in_string(&self) -> bool {
        self.in_string
    }

    /// Takes the next byte; true: with it all brackets are closed.
    pub fn take(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.in_string => self.is_escaped = true,
            b'"' => self.in_string = !self.in_string,
            b'{' | b'[' if !self.in_string => self.depth += 1,
            b'}' | b']' if !self.in_string => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }

    /// Takes a text up to the byte with which all brackets are closed.
    pub fn push(&mut self, text: &str) -> End {
        match text.bytes().position(|byte| self.take(byte)) {
            Some(at) => End::At(at + 1),
            None => End::Beyond,
        }
    }
}

/// Where the string ends with which `text` begins.
pub(super) fn string_end(text: &str) -> End {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return End::At(at + 1),
            _ => {}
        }
    }
    End::Beyond
}

/// Where the value ends with which `text` begins: a string, an object, a list or a word up to a comma, a bracket or
/// white space.
pub(super) fn value_end(text: &str) -> End {
    match text.as_bytes().first() {
        Some(b'"') => string_end(text),
        Some(b'{' | b'[') => BracketScanner::default().push(text),
        _ => match text.find(|c: char| c.is_ascii_whitespace() || matches!(c, ',' | '}' | ']')) {
            Some(at) => End::At(at),
            None => End::Beyond,
        },
    }
}
