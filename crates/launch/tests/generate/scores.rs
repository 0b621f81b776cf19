//! Scores through a `Generator`: prompts that are scored and sampled, and the choices behind one context, cost what
//! their distinct tokens cost and are those of each text alone.

use std::collections::HashMap;

use offshoot_core::ids::TokenId;
use offshoot_engine::{EngineConfig, Event, Extend, Finish, Hear, Priority};
use offshoot_kv::PromptTree;
use offshoot_launch::{BeginOptions, ChoicesRequest, Generator, PromptRequest, Release};

use crate::bench::{Mode, finish, in_turn, key, length, params, prompt, roomy};

/// A text scored by an engine of its own, all but the first token.
fn alone(tokens: &[TokenId]) -> Finish {
    let engine = in_turn().engine(roomy());
    let root = engine.root(tokens[..1].to_vec()).unwrap();
    finish(&engine, Extend::given(root, tokens[1..].to_vec(), Some(1)))
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn finishes(generator: &mut Generator) -> HashMap<(usize, usize), Finish> {
    let mut finishes = HashMap::new();
    while let Some(event) = generator.next() {
        let Event::Finished { id: sample, finish } = event else { panic!("{event:?}") };
        finishes.insert((sample.prompt, sample.sample), finish);
    }
    finishes
}

/// Where a step has fewer rows than the prompts, and where it has more rows than logits.
fn samples_of_a_scored_prompt_compute_it_once(mode: Mode) {
    for step_rows in [100, 1000] {
        let engine = mode.engine(EngineConfig { step_rows, max_branches: 32, ..roomy() });
        let mut generator = Generator::new(engine.clone(), Hear::Finishes, Release::EachSample);
        let prompts: Vec<Vec<TokenId>> = (1..5).map(|salt| prompt(salt, 150)).collect();
        let (params, stop) = (params(), length(1));
        for (number, tokens) in prompts.iter().enumerate() {
            let (n, uniforms, priority) = (1 + number % 3, key("item", 0), Priority::default());
            let request =
                PromptRequest { tokens, n, prompt_logprobs: Some(1), params: &params, stop: &stop, uniforms, priority };
            generator.begin(number, &request).unwrap();
        }
        let finishes = finishes(&mut generator);
        for (number, tokens) in prompts.iter().enumerate() {
            let scored = &finishes[&(number, 1 + number % 3)];
            assert_eq!(bits(scored.logprobs()), bits(alone(tokens).logprobs()));
        }
        let metrics = engine.metrics().unwrap();
        assert_eq!((metrics.prompt_tokens_computed, metrics.rows), (600, 600), "steps of {step_rows} rows");
        assert_eq!(metrics.scores_reused, 0);
    }
}

fn choices_of<'a>(context: &'a [TokenId], continuations: &'a [Vec<TokenId>]) -> ChoicesRequest<'a> {
    ChoicesRequest { context, continuations, tops: 1, priority: Priority::default() }
}

fn choices_of_one_request_cost_what_single_requests_cost(mode: Mode) {
    let shots = prompt(0, 90);
    let choices: Vec<Vec<TokenId>> = (0..4).map(|letter| prompt(1000 + letter, 3)).collect();
    let engine = mode.engine(roomy());
    let mut generator = Generator::new(engine.clone(), Hear::Finishes, Release::EachSample);
    for question in 0..3 {
        let context = [&shots[..], &prompt(1 + question, 20)].concat();
        generator.begin_choices(question as usize, &choices_of(&context, &choices), BeginOptions::default()).unwrap();
    }
    assert!(generator.begin_choices(9, &choices_of(&shots, &[]), BeginOptions::default()).is_err());
    let finishes = finishes(&mut generator);
    let text = |question: u64, choice: &Vec<TokenId>| [&shots[..], &prompt(1 + question, 20), choice].concat();
    let texts: Vec<_> = (0..3).flat_map(|question| choices.iter().map(move |choice| text(question, choice))).collect();
    for (at, text) in texts.iter().enumerate() {
        let (found, expected) = (&finishes[&(at / 4, at % 4)], alone(text));
        assert_eq!(found.tokens, choices[at % 4]);
        assert_eq!(bits(found.logprobs()), bits(&expected.logprobs()[109..]));
        assert_eq!(found.records.tops().len(), 3);
        assert!(
            found.records.tops().iter().zip(&expected.records.tops()[109..]).all(|(found, expected)| found == expected)
        );
    }
    // Nobody reads what the last token of a scored text computes.
    let needed: Vec<&[TokenId]> = texts.iter().map(|text| &text[..text.len() - 1]).collect();
    assert_eq!(engine.metrics().unwrap().rows, PromptTree::new(&needed[..]).distinct_tokens());
}

in_modes! {
    in_turn, run_ahead:
    samples_of_a_scored_prompt_compute_it_once,
    choices_of_one_request_cost_what_single_requests_cost,
}
