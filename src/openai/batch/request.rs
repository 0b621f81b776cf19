//! The request of one input line: the call in the engine's terms, and where its answer goes.

use std::ops::{Deref, DerefMut};

use super::input::Call;
use crate::openai::protocol::{ProtocolRequest, Refusal, RequestReader};

pub struct LineRequest {
    /// Index of its line.
    pub line: usize,
    pub custom_id: String,
    request: ProtocolRequest,
}

impl LineRequest {
    pub fn read(reader: &RequestReader, line: usize, call: &Call) -> Result<LineRequest, Refusal> {
        let request = reader.read(call.endpoint, &call.body)?;
        Ok(LineRequest { line, custom_id: call.custom_id.clone(), request })
    }
}

impl Deref for LineRequest {
    type Target = ProtocolRequest;

    fn deref(&self) -> &ProtocolRequest {
        &self.request
    }
}

impl DerefMut for LineRequest {
    fn deref_mut(&mut self) -> &mut ProtocolRequest {
        &mut self.request
    }
}
