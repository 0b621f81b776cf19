//! Scripted engines whose answers follow from the branch's tokens and uniforms alone, and a log of who answered what.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::replicas;
use offshoot_engine::{
    Continuation, EngineFacts, EngineHandle, Extend, PrefixCosts, SamplingParams, ScriptedCall, ScriptedReply, Stop,
    UniformKey,
};

/// One answered extend.
#[derive(Clone, Debug)]
pub struct Answered {
    pub replica: usize,
    pub branch: BranchId,
    /// The branch's tokens before it.
    pub tokens: Vec<TokenId>,
}

pub type Log = Arc<Mutex<Vec<Answered>>>;

/// How engines are made.
#[derive(Clone, Debug, Default)]
pub struct Engines {
    pub max_branches: Vec<usize>,
    /// For some of them, the number of extends after which they end with a panic.
    pub ends: Vec<Option<usize>>,
    /// How long each extend takes to begin.
    pub pause: Duration,
    /// Where copying prefixes pays, the router asks for them; scripted engines have none to lend.
    pub costs: PrefixCosts,
}

/// A text of 0 to 11 letters.
fn text(call: &ScriptedCall<'_>) -> String {
    let Continuation::Sampled { uniforms, .. } = call.continuation else { return String::new() };
    let length = (uniforms.0 ^ call.tokens.len() as u64) % 12;
    let letter = |at: u64| char::from(b'a' + ((uniforms.0 >> (at * 5)) % 26) as u8);
    (0..length).map(letter).collect()
}

impl Engines {
    pub fn equal(replicas: usize, max_branches: usize) -> Self {
        Engines { max_branches: vec![max_branches; replicas], ends: vec![None; replicas], ..Engines::default() }
    }

    /// One handle for all of them, and what they will have answered.
    pub fn start(&self) -> (EngineHandle, Log) {
        let log = Log::default();
        let engines = self.max_branches.iter().zip(&self.ends).enumerate().map(|(replica, (&max_branches, &ends))| {
            let log = log.clone();
            let (mut answered, pause, prefix_costs) = (0, self.pause, self.costs);
            let facts =
                |facts| EngineFacts { max_branches, device: format!("scripted:{replica}"), prefix_costs, ..facts };
            EngineHandle::scripted_with(facts, move |call: &ScriptedCall<'_>| {
                assert!(ends != Some(answered), "replica {replica} is pulled out");
                answered += 1;
                std::thread::sleep(pause);
                let (branch, tokens) = (call.branch, call.tokens.to_vec());
                log.lock().expect("nothing panics with it").push(Answered { replica, branch, tokens });
                ScriptedReply::text(&text(call))
            })
        });
        let handle = replicas::join(engines.collect()).expect("scripted engines are alike");
        (handle, log)
    }
}

pub fn sampled(branch: BranchId, key: u64) -> Extend {
    Extend::sampled(branch, &SamplingParams::default(), &Stop::max_tokens(12), UniformKey(key))
}
