//! The name in a request's path: of a model, a branch, a file or a batch. Whether there is such a thing is left to the
//! handlers; what is no text names nothing.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use crate::openai::protocol::Refusal;

pub struct InPath(pub String);

impl<S: Send + Sync> FromRequestParts<S> for InPath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<InPath, Refusal> {
        let name = Path::<String>::from_request_parts(parts, state).await;
        // What cannot be a name is not repeated.
        name.map(|Path(name)| InPath(name)).map_err(|_| Refusal::not_found("there is no such path: it is not UTF-8"))
    }
}
