//! The request of a line: what its call asks, in the engine's terms, and where its answer goes.

use std::ops::{Deref, DerefMut};

use super::input::Call;
use crate::openai::protocol::{Reader, Refusal, Request};

pub struct LineRequest {
    /// Of its line.
    pub line: usize,
    pub custom_id: String,
    request: Request,
}

impl LineRequest {
    pub fn read(reader: &Reader, line: usize, call: &Call) -> Result<LineRequest, Refusal> {
        let request = reader.read(call.endpoint, &call.body)?;
        Ok(LineRequest { line, custom_id: call.custom_id.clone(), request })
    }
}

impl Deref for LineRequest {
    type Target = Request;

    fn deref(&self) -> &Request {
        &self.request
    }
}

impl DerefMut for LineRequest {
    fn deref_mut(&mut self) -> &mut Request {
        &mut self.request
    }
}
