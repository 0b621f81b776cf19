//! `offshoot serve` as its clients meet it: the built binary with the bundled demo model, over HTTP.

#[path = "../common/latent.rs"]
mod latent;
#[path = "../common/lora.rs"]
mod lora;
#[path = "../common/signals.rs"]
mod signals;
#[path = "../common/skip.rs"]
mod skip;

mod adapters;
mod branches;
mod browser;
mod ends;
mod files;
mod forms;
mod judge;
mod latents;
mod page;
mod pauses;
mod pooling;
mod prime_rl;
mod protocol;
mod records;
mod responses;
mod rollout;
mod same;
mod served;
mod skyrl;
mod tools;
mod trainer;
mod verbs;
