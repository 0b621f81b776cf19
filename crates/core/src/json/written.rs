//! Values of this program's own types as JSON. That one is none is a fault of the program: the error says what it was.

use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result};

/// `of` on one line. `what` it is, with an article.
pub fn text(what: &str, of: &(impl Serialize + ?Sized)) -> Result<String> {
    serde_json::to_string(of).map_err(fault(what))
}

/// `of` indented, on several lines.
pub fn pretty(what: &str, of: &(impl Serialize + ?Sized)) -> Result<String> {
    serde_json::to_string_pretty(of).map_err(fault(what))
}

/// `of` as a value.
pub fn value(what: &str, of: &(impl Serialize + ?Sized)) -> Result<Value> {
    serde_json::to_value(of).map_err(fault(what))
}

fn fault(what: &str) -> impl FnOnce(serde_json::Error) -> Error {
    move |error| Error::Internal(format!("{what} is not JSON: {error}"))
}
