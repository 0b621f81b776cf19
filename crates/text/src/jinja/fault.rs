//! Why a template is not compiled or rendered.

use super::value::Undefined;

/// A template's error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// What is wrong, in one line of the template's own words where it raised the error.
    pub message: String,
    /// The line of the template, from 1.
    pub line: Option<u32>,
}

/// What a caller may want to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An undefined value is used.
    Undefined,
    /// A null is printed where the environment refuses that.
    PrintsNull,
    Other,
}

/// A result whose error is small to pass on.
pub type Result<T> = std::result::Result<T, Box<Fault>>;

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "{} (line {line} of the template)", self.message),
            None => f.write_str(&self.message),
        }
    }
}

pub fn fault(kind: FaultKind, message: impl Into<String>) -> Box<Fault> {
    Box::new(Fault { kind, message: message.into(), line: None })
}

pub fn fail<T>(message: impl Into<String>) -> Result<T> {
    Err(fault(FaultKind::Other, message))
}

/// An undefined value is used.
pub fn undefined<T>(why: &Undefined) -> Result<T> {
    Err(fault(FaultKind::Undefined, why.message()))
}

/// Adds the line to an error that has none.
pub fn at_line<T>(result: Result<T>, line: u32) -> Result<T> {
    result.map_err(|mut fault| {
        fault.line.get_or_insert(line);
        fault
    })
}
