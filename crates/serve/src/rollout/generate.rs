//! `/inference/v1/generate`: samples from token ids to token ids. A body becomes a job like that of a completion.

use std::sync::Arc;
use std::time::Instant;

use axum::response::Response;
use axum::routing::MethodRouter;

use offshoot_engine::{KeptForm, Records};
use offshoot_openai::protocol::{ExpertIds, Refusal, TokenAnswer};

use super::update::rollout;
use crate::counted::{CountedCall, answering};
use crate::dispatch::JobForm;
use crate::generate::{all_candidates, fitted, head, names, submit, written};
use crate::leases::Beyond;
use crate::server::Server;

/// The beginning of ids of answers.
const ID_PREFIX: &str = "gen-";

/// The path's handler; its answers have experts as these numbers.
pub fn generating(experts: ExpertIds) -> MethodRouter<Arc<Server>> {
    answering(move |call| answer(call, experts))
}

async fn answer(call: CountedCall, experts: ExpertIds) -> Result<Response, Refusal> {
    let CountedCall { server, client, counted, headers, body } = call;
    let arrived = Instant::now();
    server.dispatcher.check_alive()?;
    server.admission.check(&server.engine)?;
    let body = server.receive(&headers, body).await?;
    let read = move |server: &Server| {
        let reader = server.reader();
        let mut request = reader.read_tokens(&body.parse()?)?;
        if rollout(server).sampling_masks {
            let records = &mut request.params.records;
            let Records { entropy, confidence, .. } = *records;
            *records = Records { entropy, confidence, ..KeptForm::Ids.records() };
        }
        fitted(server, reader.encode_tokens(request)?)
    };
    let request = server.work(read).await?;
    let head = head(&server, ID_PREFIX);
    let (request, form) = server.compile_form(client, request, arrived).await?;
    let request = Arc::new(request);
    let form = JobForm::alone(form);
    let ticket = submit(&server, client, &request, form, names(&head, &headers, &request), arrived, Beyond::Refused)?;
    let (candidates, branches, shown) = all_candidates(ticket, &request).await?;
    let write = move |server: &Server| {
        // It has one prompt.
        let answer = candidates.first().map(|one| TokenAnswer::new(&request, one, &head, &server.tokenizer, experts));
        Ok(serde_json::to_vec(&answer).expect("keys are strings"))
    };
    let answer = written(&server, shown, write).await?;
    branches.into_iter().for_each(|branch| drop(branch.into_id()));
    counted.answered();
    Ok(answer)
}
