//! The name in a request's path: of a model, a branch, a file or a batch. Whether there is such a thing is left to the
//! handlers; what is no text names nothing.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use offshoot_openai::protocol::Refusal;

use super::reply::Refused;

pub struct InPath(pub String);

impl<S: Send + Sync> FromRequestParts<S> for InPath {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<InPath, Refused> {
        let name = Path::<String>::from_request_parts(parts, state).await;
        // What cannot be a name is not repeated.
        let not_text = |_| Refused(Refusal::not_found("there is no such path: it is not UTF-8"));
        name.map(|Path(name)| InPath(name)).map_err(not_text)
    }
}
