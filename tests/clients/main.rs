//! `offshoot serve` from outside: unchanged clients, load, hostile input and churn.

#[path = "../common/full.rs"]
mod full;
#[path = "../common/served.rs"]
mod served;
#[path = "../common/skip.rs"]
mod skip;

mod churn;
mod damage;
mod hostile;
mod hostile_bodies;
mod load;
mod prefix;
mod scripts;
