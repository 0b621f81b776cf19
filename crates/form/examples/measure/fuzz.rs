//! Mutated forms: how long each takes to be compiled or refused, and how much memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use offshoot_form::{Form, FormCompiler};

use crate::memory::{live, peak, reset_peak};
use crate::mutate::{Dice, mutated};

pub fn run(compiler: &FormCompiler, forms: usize) {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let (mut worst, mut most) = ((Duration::ZERO, String::new()), (0, String::new()));
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    let mut over = 0;
    for _ in 0..forms {
        let schema = mutated(&mut dice);
        let text = schema.to_string();
        let shown: String = text.chars().take(300).collect();
        reset_peak();
        let before = live();
        let start = Instant::now();
        let outcome = compiler.compile(&Arc::new(Form::Json(schema)));
        let taken = start.elapsed();
        let bytes = peak() - before;
        over += usize::from(taken > Duration::from_secs(1));
        if taken > worst.0 {
            worst = (taken, format!("{shown} => {:?}", outcome.as_ref().err().map(ToString::to_string)));
        }
        if bytes > most.0 {
            most = (bytes, shown);
        }
        let outcome = match outcome {
            Ok(_) => "compiled".to_string(),
            Err(error) => error.to_string().split("found").nth(1).unwrap_or("?").chars().take(40).collect(),
        };
        *outcomes.entry(outcome).or_default() += 1;
    }
    println!("slowest: {} ms, {}", worst.0.as_millis(), worst.1);
    println!("most memory here: {} MB, {}", most.0 >> 20, most.1);
    println!("beyond a second: {over} of {forms}");
    for (outcome, count) in outcomes {
        println!("{count:6} {outcome}");
    }
}
