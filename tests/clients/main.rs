//! `offshoot serve` from outside: unchanged clients, load, hostile input and churn.

#[path = "../common/served.rs"]
mod served;
#[path = "../common/skip.rs"]
mod skip;

mod chance;
mod churn;
mod hostile;
mod hostile_bodies;
mod load;
mod prefix;
mod scripts;
