//! Trees and searches whose texts have a form, on a scripted engine: which extends are told of it, and which are not.

use std::sync::{Arc, Mutex};

use offshoot_core::ids::{NodeId, TokenId};
use offshoot_core::{Error, Result};
use offshoot_engine::scripted::{text_of, tokens_of};
use offshoot_engine::{Continuation, EngineHandle, FinishReason, ForkKind, SamplingParams, ScriptedReply, Stop};
use offshoot_form::{Form, FormBegin, SampleForm};
use offshoot_search::settings::{
    Aggregate, Decide, EntropyBranching, Mcts, MctsDecide, MctsSelect, RolloutScoring, StepSearch, StepSettings, TreePo,
};
use offshoot_search::steps::Stepper;
use offshoot_search::tree::{NodeState, Prompt, SamplingTree};
use offshoot_search::tree_of_thought::{
    AnswerSettings, Appraisal, Evaluate, Generate, SamplingOverrides, Texts, ThoughtSearch, ThoughtSelect,
    ThoughtTraversal, ValueBy,
};
use offshoot_search::{
    Assessment, Assessor, Outcome, Scorer, SearchJob, dvts, entropy_branching, mcts, step_beam, tree_of_thought,
    tree_po,
};
use offshoot_text::reasoning::ContentStart;

use crate::job;
use job::Order;

/// What extends were told: the text that they went on behind, and the pattern of their form.
type Seen = Arc<Mutex<Vec<(String, Option<String>)>>>;

fn pattern(pattern: &str) -> SampleForm {
    Form::Regex(pattern.to_owned()).into()
}

fn named(form: &Option<SampleForm>) -> Option<String> {
    form.as_ref().map(|form| match &*form.form {
        Form::Regex(pattern) => pattern.clone(),
        other => panic!("{other:?}"),
    })
}

/// An engine that notes every extend that samples, and answers by `reply` of the text so far.
fn noting(reply: impl Fn(&str, &Stop) -> ScriptedReply + Send + 'static) -> (EngineHandle, Seen) {
    let seen = Seen::default();
    let noted = seen.clone();
    let engine = EngineHandle::scripted(move |call| match call.continuation {
        Continuation::Given { tokens, .. } => ScriptedReply::scores(vec![-0.5; tokens.len()]),
        Continuation::Sampled { params, stop, .. } => {
            noted.lock().expect("no panic before").push((call.text(), named(&params.form)));
            reply(&call.text(), stop)
        }
    });
    (engine, seen)
}

fn extend(tree: &mut SamplingTree, nodes: &[NodeId], how: &SamplingParams) {
    tree.extend(nodes, how, &Stop::default()).expect("the script answers");
}

#[test]
fn a_form_that_a_fork_begins_is_that_of_all_below_it() {
    let (engine, seen) = noting(|_, _| ScriptedReply::text("x").reason(FinishReason::Length));
    let mut tree = job::tree_on(engine, "Q:");
    let any = SamplingParams::default();
    let formed = tree.fork_in_form(tree.root(), 2, Some(pattern("a+"))).expect("open");
    extend(&mut tree, &formed, &any);
    let below = tree.fork(formed[0], 1).expect("open");
    let free = tree.fork_in_form(formed[0], 1, None).expect("open");
    let beside = tree.fork(tree.root(), 1).expect("open");
    let about = Prompt { text: "A?".to_owned(), tokens: tokens_of("A?") };
    let question = tree.ask(ForkKind::Value, formed[0], about).expect("a prompt");
    let replies = tree.fork_as(ForkKind::Value, question, 1).expect("open");
    let own = SamplingParams::default().form(pattern("b+"));
    for (nodes, how) in
        [(&formed, &any), (&below, &any), (&below, &own), (&free, &any), (&beside, &any), (&replies, &any)]
    {
        extend(&mut tree, &nodes[..1], how);
    }
    let seen: Vec<Option<String>> =
        seen.lock().expect("the script did not panic").drain(..).map(|(_, form)| form).collect();
    let expected = [Some("a+"), Some("a+"), Some("a+"), Some("a+"), Some("b+"), None, None, None];
    assert_eq!(seen, expected.map(|form| form.map(str::to_owned)));
    assert_eq!(tree.form(below[0]), Some(&pattern("a+")), "parameters change no node's form");
    assert_eq!((tree.form(free[0]), tree.form(question), tree.form(tree.root())), (None, None, None));
    let runs: Vec<Option<String>> = tree.node(below[0]).runs.iter().map(|run| named(&run.form)).collect();
    assert_eq!(runs, [Some("a+".to_owned()), Some("b+".to_owned())], "each run says what it was sampled under");
}

#[test]
fn a_split_node_keeps_its_form() {
    let (engine, seen) = noting(|_, _| ScriptedReply::text("aaaa").reason(FinishReason::Length));
    let mut tree = job::tree_on(engine, "Q:");
    let node = tree.fork_in_form(tree.root(), 1, Some(pattern("a+"))).expect("open")[0];
    extend(&mut tree, &[node], &SamplingParams::default());
    let rest = tree.split(node, 2, 2).expect("it has no children");
    let beside = tree.fork(node, 1).expect("open")[0];
    extend(&mut tree, &[rest, beside], &SamplingParams::default());
    let forms: Vec<Option<String>> =
        [node, rest].iter().flat_map(|&node| tree.node(node).runs.iter().map(|run| named(&run.form))).collect();
    assert_eq!(forms, vec![Some("a+".to_owned()); 3]);
    let told = seen.lock().expect("the script did not panic");
    assert_eq!(told.iter().map(|(_, form)| form.as_deref()).collect::<Vec<_>>(), [Some("a+"); 3]);
}

/// Asks about paths; the words of its replies are `good` and `bad`.
struct Thoughts;

impl Texts for Thoughts {
    type Question = &'static str;

    fn ask(&self, question: &&'static str, thoughts: &[String]) -> Result<Prompt> {
        let text = format!("{question}{}", thoughts.concat());
        Ok(Prompt { tokens: tokens_of(&text), text })
    }

    fn appraise(&self, question: &&'static str, thoughts: &[String]) -> Result<Appraisal> {
        self.ask(question, thoughts).map(Appraisal::Ask)
    }

    fn ask_about_answer(&self, question: &&'static str, _: &[String], answer: &str) -> Result<Prompt> {
        self.ask(question, &[answer.to_owned()])
    }

    fn ask_for_choice(&self, question: &&'static str, _: &[&[String]]) -> Result<Prompt> {
        self.ask(question, &[])
    }

    fn thought(&self, text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn ends(&self, _: &str) -> bool {
        false
    }

    fn state(&self, _: &[String]) -> Result<Option<String>> {
        Ok(None)
    }

    fn continuation(&self, text: &str) -> Result<Vec<TokenId>> {
        Ok(tokens_of(text))
    }
}

/// Steps of a letter and a line end, three of them; whole texts elsewhere.
fn steps(text: &str, stop: &Stop) -> ScriptedReply {
    if text.contains('?') {
        return ScriptedReply::text("good");
    }
    match stop.strings.iter().any(|at| at == "\n") && text.matches('\n').count() < 2 {
        true => ScriptedReply::text("a\n").reason(FinishReason::StopString("\n".to_owned())),
        false => ScriptedReply::text("z"),
    }
}

fn search(engine: EngineHandle, run: impl FnOnce(&mut SamplingTree, &mut SearchJob<'_>) -> Result<Outcome>) -> Outcome {
    let begin = FormBegin::BehindReasoning { open: None, close: "</t>".to_owned() };
    let form = SampleForm { begin, ..pattern("a+") };
    let order = Order { params: SamplingParams::default().form(form), ..Order::default() };
    let mut record = |_: &_| Ok(());
    let mut job = order.job(Assessor::new(|_: &str| Assessment::graded(Some("a".to_owned()), None)), &mut record);
    let mut tree = job::tree_on(engine, "Q:");
    let outcome = run(&mut tree, &mut job).expect("nothing fails");
    let open = tree.nodes().filter(|&node| node != tree.root() && tree.node(node).state() == NodeState::Open);
    assert_eq!(open.count(), 0, "every lease is given back");
    outcome
}

/// Whether each extend in a form went on behind the prompt or a thought, and each other one behind a question.
fn only_questions_are_free(seen: &Seen) -> usize {
    let seen = seen.lock().expect("the script did not panic");
    assert!(!seen.is_empty());
    for (text, form) in seen.iter() {
        assert_eq!(form.as_deref(), (!text.contains('?')).then_some("a+"), "{text:?}");
    }
    seen.iter().filter(|(text, _)| text.contains('?')).count()
}

#[test]
fn every_step_of_a_stepwise_search_is_in_the_form() {
    let decode = |_: &[TokenId], tokens: &[TokenId]| text_of(tokens);
    let settings = StepSettings::delimited("\n", 5);
    let beams = StepSearch {
        samples: 4,
        expansions: 2,
        steps: settings.clone(),
        lookahead: 0,
        aggregate: Aggregate::Last,
        by: Decide::Best,
    };
    let simulations = Mcts {
        samples: 4,
        tokens: None,
        expansions: 2,
        parallel: 2,
        steps: settings.clone(),
        scoring: RolloutScoring::Agreement,
        select: MctsSelect::Uct,
        exploration: 1.4,
        widening: None,
        by: MctsDecide::Visits,
    };
    type Run<'r> = &'r dyn Fn(&mut SamplingTree, &mut Stepper<'_>, &mut SearchJob<'_>) -> Result<Outcome>;
    let searches: [Run<'_>; 3] = [
        &|tree, stepper, job| step_beam(tree, tree.root(), &beams, stepper, job),
        &|tree, stepper, job| dvts(tree, tree.root(), &beams, stepper, job),
        &|tree, stepper, job| mcts(tree, tree.root(), &simulations, stepper, job),
    ];
    for run in searches {
        let (engine, seen) = noting(steps);
        search(engine, |tree, job| run(tree, &mut Stepper::new(&settings, &decode, Scorer::MeanLogprob), job));
        assert_eq!(only_questions_are_free(&seen), 0);
        let seen = seen.lock().expect("the script did not panic");
        assert!(seen.iter().any(|(text, _)| text == "Q:a\na\n"), "a later step goes on in it: {seen:?}");
    }
}

#[test]
fn segments_and_forks_at_entropy_are_in_the_form() {
    let decode = |_: &[TokenId], tokens: &[TokenId]| text_of(tokens);
    for branching in [false, true] {
        let (engine, seen) = noting(|_, stop| match stop.max_tokens < 4 {
            true => ScriptedReply::text("aa").reason(FinishReason::Length),
            false => ScriptedReply::text("aaaa"),
        });
        search(engine, |tree, job| match branching {
            true => {
                let how = EntropyBranching { paths: 2, forks: 1, branches: 2 };
                entropy_branching(tree, tree.root(), &how, &decode, job)
            }
            false => {
                let how = TreePo { samples: 4, segment: 2, branches: 2, tokens: 40 };
                tree_po(tree, tree.root(), &how, &decode, job)
            }
        });
        only_questions_are_free(&seen);
    }
}

#[test]
fn thoughts_and_answers_are_in_the_form_and_replies_are_not() {
    let overrides = || SamplingOverrides { stop: Some(vec!["\n".to_owned()]), ..SamplingOverrides::default() };
    let how = |generate, evaluate| ThoughtSearch {
        steps: 2,
        breadth: 2,
        generate,
        evaluate,
        select: ThoughtSelect::Greedy,
        search: ThoughtTraversal::Bfs,
        answer: Some(AnswerSettings { best: None, drawing: SamplingOverrides::default() }),
    };
    let value = || Evaluate::Value {
        question: "good?",
        last: Some("right?"),
        words: vec![("good".to_owned(), 1.0), ("bad".to_owned(), 0.0)],
        by: ValueBy::Samples { samples: 2, drawing: SamplingOverrides::default() },
    };
    let vote = || Evaluate::Vote {
        question: "which?",
        samples: 2,
        choice: regex::Regex::new("[0-9]+").expect("a pattern"),
        drawing: SamplingOverrides::default(),
    };
    let propose = || Generate::Propose { question: "next?", lists: 2, drawing: SamplingOverrides::default() };
    let ways = [
        (how(Generate::Sample { thoughts: 2, drawing: overrides() }, value()), "Q:a\n"),
        (how(Generate::Sample { thoughts: 2, drawing: overrides() }, vote()), "Q:a\n"),
        (how(propose(), value()), "Q:good\ngood\n"),
    ];
    for (how, on) in ways {
        let (engine, seen) = noting(steps);
        search(engine, |tree, job| tree_of_thought(tree, &how, &Thoughts, None, job));
        assert!(only_questions_are_free(&seen) > 0);
        let seen = seen.lock().expect("the script did not panic");
        assert!(seen.iter().any(|(text, _)| text == on), "{seen:?}");
    }
}

#[test]
fn a_dead_end_ends_a_solution() {
    let (engine, _) = noting(|text, _| match text {
        "Q:" => ScriptedReply::text("a\n").reason(FinishReason::StopString("\n".to_owned())),
        _ => ScriptedReply::text("b").reason(FinishReason::DeadEnd),
    });
    let decode = |_: &[TokenId], tokens: &[TokenId]| text_of(tokens);
    let settings = StepSettings::delimited("\n", 9);
    let how = StepSearch {
        samples: 2,
        expansions: 2,
        steps: settings.clone(),
        lookahead: 0,
        aggregate: Aggregate::Last,
        by: Decide::Best,
    };
    let outcome = search(engine, |tree, job| {
        step_beam(tree, tree.root(), &how, &mut Stepper::new(&settings, &decode, Scorer::MeanLogprob), job)
    });
    let ends: Vec<_> = outcome.samples.iter().map(|sample| (sample.text.as_str(), &sample.finish)).collect();
    assert!(!ends.is_empty() && ends.iter().all(|end| *end == ("a\nb", &FinishReason::DeadEnd)), "{ends:?}");
}

#[test]
fn a_closed_node_begins_no_form() {
    let (engine, _) = noting(|_, _| ScriptedReply::text("x"));
    let mut tree = job::tree_on(engine, "Q:");
    let node = tree.fork(tree.root(), 1).expect("open")[0];
    tree.close(node);
    let error = tree.fork_in_form(node, 1, Some(pattern("a"))).expect_err("it is closed");
    assert!(matches!(error, Error::Value { .. }), "{error}");
}

#[test]
fn a_form_begins_behind_the_reasoning_that_a_prompt_or_a_thought_has_opened() {
    let engine = |reply: &'static str| noting(move |_, _| ScriptedReply::text(reply).reason(FinishReason::Length)).0;
    let behind = ContentStart::BehindReasoning { open: None, close: "</think>" };
    let cases = [
        ("Q:<think>\n", "So", behind, behind),
        ("Q:<think>\n", "So</think>{", behind, ContentStart::AtOnce),
        ("Q:", "{", ContentStart::AtOnce, ContentStart::AtOnce),
        ("Q:", "<think>So", ContentStart::AtOnce, behind),
    ];
    for (prompt, reply, first, then) in cases {
        let mut tree = job::tree_on(engine(reply), prompt);
        let node = tree.fork(tree.root(), 1).expect("open")[0];
        assert_eq!(tree.content_start(node), first, "{prompt}");
        extend(&mut tree, &[node], &SamplingParams::default());
        assert_eq!(tree.content_start(node), then, "{prompt}{reply}");
    }
}
