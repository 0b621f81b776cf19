//! Python candidates from the outside: other people's solutions are accepted, odd but honest programs are judged as a
//! reference harness judges them, and nothing under tests/forgers gets a verdict that it has not earned.
#![cfg(target_os = "linux")]

use crate::busy::Busy;
use crate::judging;
use crate::sandbox_setup as sandbox;
use crate::shared;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use offshoot_core::error::Error;
use offshoot_core::json::RawJson;
use offshoot_eval::benchmark;
use offshoot_judge::problem::{Assembly, CallSuite, CallTest, Limits, Problem, ReferenceSuite, ScriptSuite, TestSuite};
use offshoot_judge::sandbox::Sandbox;
use offshoot_judge::{Judge, Judgement, Language, Verdict};
use serde_json::{Value, json};

use judging::can_judge;
use sandbox::setup;
use shared::shared;

/// One judge for all tests; none where Python or the sandbox is missing.
fn judge() -> Option<&'static Judge> {
    static JUDGE: OnceLock<Judge> = OnceLock::new();
    can_judge().then(|| JUDGE.get_or_init(another))
}

/// The same, and one that starts an interpreter for each candidate, if the first forks them.
fn judges() -> Vec<&'static Judge> {
    static STARTING: OnceLock<Judge> = OnceLock::new();
    let Some(judge) = judge() else { return Vec::new() };
    match judge.starts_python_for() {
        Ok(None) => vec![judge, STARTING.get_or_init(|| another().without_forks())],
        _ => vec![judge],
    }
}

fn another() -> Judge {
    Judge::over(Sandbox::set_up(&setup(true)).expect("the doctor found one"))
}

fn problem(suite: TestSuite) -> Problem {
    let limits = Limits {
        cpu: Duration::from_secs(2),
        wall: Duration::from_secs(5),
        memory_bytes: 512 << 20,
        output_bytes: 1 << 20,
        processes: 16,
    };
    Problem { id: "test".into(), assembly: Assembly::Whole, suite, limits }
}

fn script(code: &str) -> Problem {
    problem(TestSuite::Script(ScriptSuite { helpers: String::new(), code: code.into(), entry: None }))
}

fn calls(function: &str, tests: &[(Value, Value)]) -> Problem {
    let list = |value: &Value| RawJson::from(value).list().expect("a list in the test's own data");
    let tests =
        tests.iter().map(|(arguments, expected)| CallTest { arguments: arguments.into(), expected: list(expected) });
    problem(TestSuite::Calls(CallSuite { function: function.into(), tests: tests.collect() }))
}

fn judged(judge: &Judge, problem: &Problem, program: &str) -> Judgement {
    judge.judge(problem, &Language::Python, program).expect("the judge itself works")
}

/// Judges all on two threads; what each gave, in order.
fn all(judge: &Judge, jobs: &[(Problem, String)]) -> Vec<Judgement> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let ix = next.fetch_add(1, Ordering::Relaxed);
                    let Some((problem, program)) = jobs.get(ix) else { break };
                    let judgement = judged(judge, problem, program);
                    done.lock().unwrap().push((ix, judgement));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(ix, _)| *ix);
    done.into_iter().map(|(_, judgement)| judgement).collect()
}

/// The problems of a file with the first program that its records call right.
fn with_references(path: &Path, cpu: Duration) -> Vec<(Problem, String)> {
    let entries = benchmark::read(path, None).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let problem = entry.problem.unwrap().unwrap();
            let program = benchmark::references(None, &entry.id, &entry.fields).unwrap().remove(0);
            let limits = problem.limits.within(cpu);
            (Problem { assembly: Assembly::Whole, limits, ..problem }, program)
        })
        .collect()
}

/// The file's own solutions are accepted, but for those of these problems, which end so.
fn assert_accepted(path: &str, count: usize, but: &[(&str, Verdict, &str)]) {
    let (Some(judge), Some(path)) = (judge(), shared(path)) else { return };
    let jobs = with_references(&path, Duration::from_secs(30));
    assert_eq!(jobs.len(), count);
    let judgements = all(judge, &jobs);
    let rejected = jobs.iter().zip(&judgements).filter(|(_, judgement)| !judgement.accepted());
    let rejected: Vec<_> = rejected
        .map(|((problem, _), judgement)| {
            (problem.id.as_str(), judgement.verdict, judgement.message.as_deref().unwrap_or_default())
        })
        .collect();
    assert_eq!(rejected, but);
}

#[test]
fn human_evals_own_solutions_are_accepted() {
    assert_accepted("data/humaneval/HumanEval.jsonl.gz", 164, &[]);
}

/// Tasks 367 and 927 fail as shipped, as in the harnesses: their tests name trees that only `test_setup_code` builds,
/// which is not run.
#[test]
fn mbpps_own_solutions_are_accepted_but_for_two() {
    let lacks = "NameError: name 'root' is not defined (test line 1)";
    let but = ["367", "927"].map(|id| (id, Verdict::RuntimeError, lacks));
    assert_accepted("data/mbpp/mbpp.jsonl", 974, &but);
}

#[test]
fn no_forger_is_accepted() {
    let Some(judge) = judge() else { return };
    let check = "def check(candidate):\n    \
        assert candidate(2, 3) == 5\n    \
        assert abs(candidate(0.25, 0.5) - 0.75) < 1e-9\n    \
        assert isinstance(candidate(1, 1), int) and candidate(1, 1) in (2, 2.0)\n    \
        values = [1, 2]\n    \
        assert all(candidate(value, 1) == value + 1 for value in values) and len(values) == 2\n\
        check(add)";
    let reference = ReferenceSuite {
        program: "def add(a, b):\n    return a + b\n".into(),
        entry: "add".into(),
        base: vec![RawJson::from(&json!([2, 3]))],
        plus: vec![RawJson::from(&json!([0.25, 0.5]))],
        atol: 0.0,
        mbpp: None,
    };
    let short = |problem: Problem| Problem { limits: problem.limits.within(Duration::from_secs(2)), ..problem };
    let problems = [
        script(check),
        problem(TestSuite::Script(ScriptSuite {
            helpers: String::new(),
            code: check.into(),
            entry: Some("add".into()),
        })),
        calls("add", &[(json!([2, 3]), json!([5])), (json!([0.25, 0.5]), json!([0.75]))]),
        problem(TestSuite::Reference(reference)),
    ]
    .map(short);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/forgers");
    let mut jobs = Vec::new();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        for problem in &problems {
            names.push(path.file_name().unwrap().to_string_lossy().into_owned());
            jobs.push((problem.clone(), std::fs::read_to_string(&path).unwrap()));
        }
    }
    assert!(jobs.len() >= 12 * problems.len(), "{} jobs", jobs.len());
    for (name, judgement) in names.iter().zip(all(judge, &jobs)) {
        assert!(!judgement.accepted() && judgement.message.is_some(), "{name}: {judgement:?}");
        if name == "collides_hashes.py" {
            assert_eq!(judgement.verdict, Verdict::TimeLimit, "{judgement:?}");
        }
    }
    for problem in &problems {
        let honest = judged(judge, problem, "def add(a, b):\n    return a + b\n");
        assert!(honest.accepted(), "after the forgers: {honest:?}");
    }
}

/// (what it is, program, tests, verdict)
const ODD: &[(&str, &str, &str, Verdict)] = &[
    (
        "generator",
        "def f(n):\n    for i in range(n): yield i",
        "assert list(f(3)) == [0, 1, 2] and sum(f(4)) == 6",
        Verdict::Accepted,
    ),
    ("generator is no list", "def f(n):\n    yield n", "assert f(3) == [3]", Verdict::WrongAnswer),
    (
        "class with state",
        "class Box:\n    def __init__(self): self.items = []\n    \
         def put(self, x): self.items.append(x); return self\n    def __len__(self): return len(self.items)",
        "b = Box()\nassert b.put(1).put([2]) is b\nassert len(b) == 2 and b.items == [1, [2]] and Box() != b",
        Verdict::Accepted,
    ),
    (
        "deep recursion",
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)",
        "assert f(20000) == 20000",
        Verdict::Accepted,
    ),
    ("too deep recursion", "def f(n): return f(n + 1)", "f(0)", Verdict::RuntimeError),
    ("big integers", "def f(n): return -3 ** n", "assert f(5000) == -3 ** 5000", Verdict::Accepted),
    (
        "not a number",
        "def f(): return float('nan'), float('-inf'), -0.0",
        "import math\na, b, c = f()\nassert math.isnan(a) and b < -1e308 and math.copysign(1, c) == -1",
        Verdict::Accepted,
    ),
    (
        "sets and keys of all kinds",
        "def f(): return {(1, 2): {3, 4}, frozenset({5}): {('a', b'b')}, None: 1j, True: ...}",
        "assert f() == {(1, 2): {3, 4}, frozenset({5}): {('a', b'b')}, None: 1j, True: ...}",
        Verdict::Accepted,
    ),
    (
        "the library's types",
        "from collections import *\nfrom decimal import Decimal\nfrom fractions import Fraction\nimport datetime\n\
         P = namedtuple('P', 'x y')\n\
         def f(): return [Counter('aab'), OrderedDict(a=1), defaultdict(list, {1: [2]}), deque([1, 2]), \
         Decimal('1.5'), Fraction(1, 3), P(1, 2), range(3), {1: 2}.keys(), datetime.date(2020, 1, 2)]",
        "from collections import deque\nfrom decimal import Decimal\nfrom fractions import Fraction\nimport datetime\n\
         assert f() == [{'a': 2, 'b': 1}, {'a': 1}, {1: [2]}, deque([1, 2]), 1.5, Fraction(1, 3), (1, 2), range(3), \
         {1}, datetime.date(2020, 1, 2)]",
        Verdict::Accepted,
    ),
    (
        "many prints",
        "def f():\n    for i in range(20000): print(i, end=' ')\n    return 1",
        "assert f() == 1",
        Verdict::Accepted,
    ),
    ("endless prints", "def f():\n    while True: print('x' * 1000)", "f()", Verdict::OutputLimit),
    ("an answer beyond all bounds", "def f(): return 'x' * (2 << 20)", "f()", Verdict::OutputLimit),
    ("own assert that fails", "def f(): return 1\nassert f() == 2", "assert f() == 1", Verdict::RuntimeError),
    ("input at top level", "n = input()\ndef f(): return 1", "assert f() == 1", Verdict::RuntimeError),
    ("input read in a call", "import sys\ndef f(): return sys.stdin.read()", "assert f() == ''", Verdict::RuntimeError),
    (
        "threads",
        "import threading\ndef f():\n    found = []\n    \
         ts = [threading.Thread(target=found.append, args=(i,)) for i in range(4)]\n    \
         [t.start() for t in ts]; [t.join() for t in ts]\n    return sorted(found)",
        "assert f() == [0, 1, 2, 3]",
        Verdict::Accepted,
    ),
    (
        "sorted in place",
        "def f(xs): xs.sort()",
        "xs = [3, 1, 2]\nassert f(xs) is None and xs == [1, 2, 3]",
        Verdict::Accepted,
    ),
    (
        "an expected exception",
        "class E(ValueError): pass\ndef f(): raise E('no')",
        "try:\n    f()\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'no'",
        Verdict::Accepted,
    ),
    ("an unexpected exception", "def f(): raise KeyError('a')", "f()", Verdict::RuntimeError),
    ("own assertion in a call", "def f(): assert False", "f()", Verdict::RuntimeError),
    (
        "functions of the tests",
        "def f(g, xs): return [g(x) for x in xs]",
        "assert f(lambda x: x + 1, [1, 2]) == [2, 3] and f(len, ['ab']) == [2]",
        Verdict::Accepted,
    ),
    ("functions of the candidate", "def f(n): return lambda x: x + n", "assert f(2)(3) == 5", Verdict::Accepted),
    ("a function by a builtin's name", "def sum(a, b): return a - b", "assert sum(3, 1) == 2", Verdict::Accepted),
    (
        "a module of the candidate's",
        "import sys\ndef f(t): return sys.getsizeof(t)",
        "assert f((1, 2)) == sys.getsizeof((1, 2))",
        Verdict::Accepted,
    ),
    (
        "a module of the candidate's own",
        "class sys: getsizeof = lambda t: 1\ndef f(t): return 1",
        "assert f((1, 2)) == sys.getsizeof((1, 2))",
        Verdict::WrongAnswer,
    ),
    (
        "an end of the tests' iteration",
        "def f(x): raise StopIteration",
        "assert all(map(lambda x: f(x) == x, [1, 2]))",
        Verdict::RuntimeError,
    ),
    (
        "main guard",
        "def f(): return __name__\nif __name__ == '__main__': raise SystemExit(1)",
        "assert f() == 'builtins'",
        Verdict::Accepted,
    ),
    ("no such name", "def g(): pass", "assert f() == 1", Verdict::RuntimeError),
    ("no Python", "def f(:", "f()", Verdict::CompileError),
    ("no text for Python", "def f(): return '\0'", "f()", Verdict::CompileError),
    ("continued line at the end", "def f(): return 1 \\", "assert f() == 1", Verdict::Accepted),
    ("endless loop", "def f():\n    while True: pass", "f()", Verdict::TimeLimit),
    ("endless loop at top level", "while True: pass", "f()", Verdict::TimeLimit),
    ("memory", "def f(): return len([0] * (1 << 30))", "f()", Verdict::MemoryLimit),
    ("wrong", "def f(): return 1", "assert f() == 2, 'one is not two'", Verdict::WrongAnswer),
    (
        "equal to itself alone",
        "class A: pass\na = A()\ndef f(): return a",
        "assert f() is f() and f() == f() and f() in [f()]",
        Verdict::Accepted,
    ),
    ("a nested value that holds itself", "x = []\nx.append(x)\ndef f(): return x", "f()", Verdict::RuntimeError),
];

#[test]
fn odd_programs_are_judged_as_in_one_process() {
    let jobs: Vec<_> = ODD.iter().map(|(_, program, tests, _)| (script(tests), program.to_string())).collect();
    for judge in judges() {
        for ((name, _, _, verdict), judgement) in ODD.iter().zip(all(judge, &jobs)) {
            assert_eq!(judgement.verdict, *verdict, "{name}: {judgement:?}");
            assert_eq!(judgement.tests.len(), 1, "{name}: {judgement:?}");
        }
    }
}

/// What a candidate can see of its process: statements, and an expression that shows nothing of one process alone.
const SEEN: &[(&str, &str)] = &[
    ("import sys", "[sys.argv, sys.path, sys.flags[:], sys.version, sys.executable, sys.prefix, sys.base_prefix]"),
    ("import sys", "[sys.getrecursionlimit(), sys.getswitchinterval(), sys.dont_write_bytecode, sys.maxsize]"),
    (
        "import sys",
        "[sys.getfilesystemencoding(), sys.getdefaultencoding(), sys.stdout.isatty(), sys.stdin.readable()]",
    ),
    ("import os", "sorted((name, value) for name, value in os.environ.items() if name not in ('HOME', 'TMPDIR'))"),
    ("import os", "[os.environ['HOME'] == os.environ['TMPDIR'] == os.getcwd(), os.listdir('.')]"),
    ("import os", "[os.popen('echo $LANG $OMP_NUM_THREADS; test \"$HOME\" = \"$PWD\" && env | wc -l').read()]"),
    ("import os", "[os.path.exists(f'/proc/self/fd/{n}') for n in range(3, 12)]"),
    ("import os", "[os.getuid() == os.geteuid() == os.stat('.').st_uid, os.getgroups(), os.getpid() > 1, os.nice(0)]"),
    (
        "import os",
        "[os.umask(0o22), os.access('/etc/passwd', os.R_OK), os.access('/', os.W_OK), os.access('.', os.W_OK)]",
    ),
    (
        "import signal",
        "[str(signal.getsignal(n)) for n in range(1, 32) if n != signal.SIGINT] + [signal.getitimer(2)[1]]",
    ),
    ("import signal", "[signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(0, [])]"),
    ("import resource as r", "[r.getrlimit(getattr(r, name)) for name in dir(r) if name.startswith('RLIMIT_')]"),
    ("import threading as t", "[t.current_thread() is t.main_thread(), t.active_count()]"),
    ("import locale", "[locale.getpreferredencoding(), locale.setlocale(locale.LC_ALL), locale.getlocale()]"),
    ("import gc", "[gc.isenabled(), gc.get_threshold(), gc.garbage]"),
    ("import warnings", "[repr(warnings.filters)]"),
    ("import __main__", "sorted(__main__.__dict__)"),
    ("import open_nothing", "0"),
    ("import typing, re, random", "[typing.__file__, re.__file__, random.__file__]"),
    (
        "import subprocess as s, sys",
        "s.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True, text=True).stdout",
    ),
    ("import ctypes", "[ctypes.CDLL(None).getenv is not None, ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)]"),
    ("from multiprocessing import Process", "[Process(target=print).start()]"),
];

#[test]
fn a_forked_interpreter_is_like_a_started_one() {
    let judges = judges();
    if judges.len() < 2 {
        return crate::skip::skipped("interpreters are not forked here");
    }
    let mut differing = Vec::new();
    for (statements, seen) in SEEN {
        let program = format!("{statements}\ndef f(): return repr({seen})\n");
        let told = judges.iter().map(|judge| {
            let judgement = judged(judge, &script("raise AssertionError(f())"), &program);
            (judgement.verdict, judgement.message)
        });
        let told: Vec<_> = told.collect();
        let is_seen = *statements == "import open_nothing" || told[0].0 == Verdict::WrongAnswer;
        if told[0] != told[1] || !is_seen {
            differing.push(format!("{statements}: {seen}: {told:#?}"));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

/// Forks share what their interpreter had, but no randomness.
#[test]
fn forked_interpreters_have_numbers_of_their_own() {
    let Some(judge) = judge() else { return };
    let program = "import random\ndef f(): return random.getrandbits(64)\n";
    let told = || judged(judge, &script("raise AssertionError(f())"), program).message;
    let (first, second) = (told(), told());
    assert!(first.as_ref().is_some_and(|first| first.bytes().any(|byte| byte.is_ascii_digit())), "{first:?}");
    assert_ne!(first, second);
}

/// (what it is, helpers, tests, words of the reason)
const FAULTS: &[(&str, &str, &str, &str)] = &[
    ("a module that is missing", "", "import no_such_module\nassert f() == 1", "ModuleNotFoundError: No module named"),
    (
        "a name that a module lacks",
        "",
        "from math import no_such_name\nassert f() == 1",
        "ImportError: cannot import name",
    ),
    ("helpers without their module", "import no_such_module", "assert f() == 1", "ModuleNotFoundError"),
    ("no Python", "", "assert f( == 1", "SyntaxError"),
    ("helpers that are no Python", "def g(:", "assert f() == 1", "SyntaxError"),
    ("set-up that fails", "", "data = {}['no']\nassert f() == 1", "KeyError: 'no' (test line 1)"),
    ("a wrong assertion on itself", "", "assert 1 == 2\nassert f() == 1", "AssertionError"),
    ("an exit", "", "raise SystemExit\nassert f() == 1", "SystemExit"),
    (
        "an import within the check",
        "",
        "def check(g):\n    assert g() == 1\n    import no_such_module\ncheck(f)",
        "ModuleNotFoundError: No module named 'no_such_module' (test line 3)",
    ),
    (
        "an import within a helper",
        "def near(a, b):\n    import no_such_module\n    return a == b",
        "assert near(f(), 1)",
        "ModuleNotFoundError",
    ),
    ("a process that dies", "", "import os\nos._exit(3)\nassert f() == 1", "their process has died"),
];

/// Tests that fail by themselves are no verdict on anybody, whether a candidate is right, wrong or no program at all.
#[test]
fn tests_that_cannot_run_are_unjudgeable() {
    let Some(judge) = judge() else { return };
    for (name, helpers, code, why) in FAULTS {
        let (helpers, code) = (helpers.to_string(), code.to_string());
        let problem = problem(TestSuite::Script(ScriptSuite { helpers, code, entry: None }));
        for program in ["def f(): return 1", "def f(): return 2", "def f(:", "raise SystemExit"] {
            if *name == "an import within the check" && program != "def f(): return 1" {
                continue;
            }
            if *name == "an import within a helper" && !program.contains("return") {
                continue;
            }
            match judge.judge(&problem, &Language::Python, program) {
                Err(Error::Unjudgeable { why: said }) => assert!(said.contains(why), "{name}, {program}: {said}"),
                other => panic!("{name}, {program}: {other:?}"),
            }
        }
    }
}

/// Programs that would rather have no verdict than a wrong one.
#[test]
fn no_candidate_makes_a_problem_unjudgeable() {
    let Some(judge) = judge() else { return };
    let tests = "import math\n\ndef check(g):\n    import json\n    assert g(2) == 3\n    \
                 assert math.isclose(g(0.5), 1.5)\n\ncheck(f)";
    let lacks = "raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')";
    let programs = [
        format!("def f(x): {lacks}"),
        "def f(x): raise ImportError(\"cannot import name 'f' from 'math'\")".to_string(),
        "def f(x): import no_such_module".to_string(),
        "import no_such_module".to_string(),
        lacks.to_string(),
        "f = 3".to_string(),
        "class f: pass".to_string(),
        "math = json = None\ndef f(x): return math".to_string(),
        "def f(x): return f".to_string(),
        "def f(x): return 'x' * 900000 if x == 2 else [0] * 100000".to_string(),
        "import os\ndef f(x): os.write(3, b'\\x02\\0\\0\\0Fx')".to_string(),
        "import os\nos.write(3, b'\\x02\\0\\0\\0Fx')\ndef f(x): return x + 1".to_string(),
        "import os\nos._exit(0)".to_string(),
        "import os\ndef f(x): os._exit(0)".to_string(),
        String::new(),
    ];
    let jobs: Vec<_> = programs.iter().map(|program| (script(tests), program.clone())).collect();
    for ((_, program), judgement) in jobs.iter().zip(all(judge, &jobs)) {
        assert!(!judgement.accepted(), "{program}: {judgement:?}");
    }
    // A callback's own import failure comes back through the candidate.
    let callback = script("def g(x):\n    raise ImportError(\"cannot import name 'a'\")\nassert f(g) == 1");
    assert!(!judged(judge, &callback, "def f(g): return g(1)").accepted());
}

fn verdicts(judgement: &Judgement) -> Vec<Verdict> {
    judgement.tests.iter().map(|test| test.verdict).collect()
}

#[test]
fn only_time_in_which_a_candidate_is_waited_for_counts() {
    let short = |suite: Problem| {
        let (cpu, wall) = (Duration::from_millis(200), Duration::from_millis(1400));
        let limits = Limits { cpu, wall, ..suite.limits };
        Problem { limits, ..suite }
    };
    let slow_tests = short(script(
        "import time\nfor n in range(2):\n    time.sleep(0.6)\n    assert f(n) == n\n    time.sleep(0.6)",
    ));
    let asleep = "import time\ndef f(n):\n    time.sleep(100)\n    return n";
    // It stops between two calls, so that nobody reads the second, which is longer than what a stream holds.
    let deaf = "import os, signal, threading, time\ndef f(text):\n    if text == '':\n        \
        threading.Thread(target=lambda: (time.sleep(0.1), os.kill(os.getpid(), signal.SIGSTOP))).start()\n    \
        return len(text)";
    let long = short(script("import time\nassert f('') == 0\ntime.sleep(0.5)\nassert f('x' * (8 << 20)) == 8 << 20"));
    let cases = [
        (&slow_tests, "def f(n): return n", Verdict::Accepted),
        (&slow_tests, asleep, Verdict::TimeLimit),
        (&long, deaf, Verdict::TimeLimit),
    ];
    // All at once: they sleep.
    std::thread::scope(|scope| {
        for (judge, (problem, program, verdict)) in
            judges().into_iter().flat_map(|judge| cases.map(|case| (judge, case)))
        {
            scope.spawn(move || assert_eq!(judged(judge, problem, program).verdict, verdict, "{program}"));
        }
    });
}

/// What a candidate waits for a core is not charged to it, whatever else runs, and what it sleeps is.
#[test]
fn verdicts_do_not_depend_on_the_machines_load() {
    let tight = |suite: Problem| Problem { limits: suite.limits.within(Duration::from_millis(600)), ..suite };
    let once = tight(script("assert f(3) == 3"));
    let often = tight(script("for n in range(300):\n    assert f(n) == n"));
    let naps = "import time\ndef f(n):\n    time.sleep(0.01)\n    return n";
    let cases = [
        (&once, "import time\ndef f(n):\n    while time.process_time() < 0.5: pass\n    return n", Verdict::Accepted),
        (&once, "import time\ndef f(n):\n    time.sleep(0.3)\n    return n", Verdict::Accepted),
        (&once, "import time\ndef f(n):\n    time.sleep(2)\n    return n", Verdict::TimeLimit),
        (&once, "def f(n):\n    while True: pass", Verdict::TimeLimit),
        (&often, "def f(n): return n", Verdict::Accepted),
        (&often, naps, Verdict::TimeLimit),
    ];
    for judge in judges() {
        let _busy = Busy::start();
        for (problem, program, verdict) in cases {
            let judgement = judged(judge, problem, program);
            assert_eq!(judgement.verdict, verdict, "{program}: {judgement:?}");
        }
    }
}

/// Replies that take minutes to read or to compare: each ends with its candidate's limit, and is its candidate's.
#[test]
fn a_reply_takes_no_longer_than_its_candidate_may() {
    let Some(judge) = judge() else { return };
    let colliding = "n = 35_000\nparts = [(2**61 - 1) * ix for ix in range(1, n + 1)]\n";
    let sent = |reply: &str| {
        format!(
            "import __main__, sys\n{colliding}TAG = Ellipsis\nwire = sys._getframe(1).f_globals\n\
             def f(x): return x\nhonest = wire['pack']\n\
             wire['pack'] = lambda value, opaque: honest(value, opaque) if value != 3 else {reply}\n"
        )
    };
    let replies = [
        "(TAG, 'set', parts)",
        "(TAG, 'frozenset', parts)",
        "(TAG, 'dict', [(part, 0) for part in parts])",
        "(TAG, 'made', 'dict_keys', (parts,))",
        "(TAG, 'library', 'collections', 'Counter', (parts,))",
        "[(TAG, 'library', 'fractions', 'Fraction', (3 ** 600_000, 7 ** 300_000))]",
    ];
    let short = |suite: Problem| Problem { limits: suite.limits.within(Duration::from_millis(500)), ..suite };
    let problems = [short(script("assert f(3) == 3")), short(calls("f", &[(json!([3]), json!([3]))]))];
    let jobs: Vec<_> =
        problems.iter().flat_map(|problem| replies.map(|reply| (problem.clone(), sent(reply)))).collect();
    for ((_, program), judgement) in jobs.iter().zip(all(judge, &jobs)) {
        let said = judgement.message.as_deref().unwrap_or_default();
        assert!(
            judgement.verdict == Verdict::TimeLimit && said.contains("read and compared"),
            "{program}: {judgement:?}"
        );
    }
    let judgement = judged(judge, &problems[0], "def f(x): return x");
    assert!(judgement.accepted(), "after the slow ones: {judgement:?}");
}

#[test]
fn calls_are_compared_as_data() {
    let Some(judge) = judge() else { return };
    let solution = "class Solution:\n    def f(self, x, y): return (x / y, [x])";
    let tests = [
        (json!([1, 3]), json!([[0.333_333_3, [1]]])),
        (json!([6, 3]), json!([[2, [6]]])),
        (json!([6, 3]), json!([null, [2.0, [6]]])),
    ];
    let judgement = judged(judge, &calls("f", &tests), solution);
    assert_eq!(verdicts(&judgement), [Verdict::Accepted; 3], "{judgement:?}");
    let wrong = judged(judge, &calls("f", &[(json!([1, 3]), json!([[0.3, [1]]])), tests[0].clone()]), solution);
    assert_eq!(verdicts(&wrong), [Verdict::WrongAnswer], "the first failure ends it: {wrong:?}");
    let keys = calls("f", &[(json!([{"1": 2}]), json!([{"2": 1}]))]);
    assert!(judged(judge, &keys, "def f(d): return {v: k for k, v in d.items()}").accepted());
}

/// However a candidate spends it: waiting in each test, in a test that waits again and again, or by replies that are
/// slow to read.
#[test]
fn no_candidate_has_more_than_its_real_time() {
    if judge().is_none() {
        return;
    }
    let waits = "import time\ndef f(x):\n    time.sleep(0.2)\n    return x";
    let slow = include_str!("../forgers/collides_hashes.py");
    let tests: Vec<_> = (0..40).map(|x| (json!([x]), json!([x]))).collect();
    let streams = |program: &str| {
        let tests: Vec<_> = (0..40).map(|x| (x.to_string(), x.to_string())).collect();
        let tests = tests.iter().map(|(input, output)| (input.as_str(), output.as_str()));
        (Problem::streams("waits", tests), program.to_string())
    };
    let jobs = [
        (calls("f", &tests), waits.to_string()),
        (calls("add", &tests), slow.to_string()),
        (script("for x in range(40): assert f(x) == x"), waits.to_string()),
        (reference("def f(x): return x", "f", (0..40).map(|x| json!([x])).collect(), None), waits.to_string()),
        streams("import time\ntime.sleep(0.2)\nprint(input())"),
        streams("import time\ntime.sleep(10)\nprint(input())"),
    ];
    let time = Duration::from_millis(700);
    for judge in [another().within(time), another().with_all_tests().within(time), another().within(Duration::ZERO)] {
        for ((problem, program), judgement) in jobs.iter().zip(all(&judge, &jobs)) {
            let said = judgement.message.as_deref().unwrap_or_default();
            assert_eq!(judgement.verdict, Verdict::TimeLimit, "{}, {program}: {judgement:?}", problem.id);
            assert!(said.contains("s of real time, whatever its clock says"), "{program}: {judgement:?}");
            let (last, before) = judgement.tests.split_last().expect("one has failed");
            assert!(last.verdict == Verdict::TimeLimit && judgement.tests.len() <= 40, "{judgement:?}");
            assert!(before.iter().all(|test| test.verdict == Verdict::Accepted), "{judgement:?}");
        }
    }
}

#[test]
fn every_test_is_run_where_all_are_asked_for() {
    if judge().is_none() {
        return;
    }
    let judge = another().with_all_tests();
    let program = "import os\ndef f(x):\n    if x == 1: raise ValueError('one')\n    if x == 2: os._exit(0)\n    \
                   while x == 3: pass\n    return x";
    let tests: Vec<_> = (0..6).map(|x| (json!([x]), json!([if x == 5 { 0 } else { x }]))).collect();
    let mut problem = calls("f", &tests);
    problem.limits.cpu = Duration::from_secs(1);
    let judgement = judged(&judge, &problem, program);
    let expected = [
        Verdict::Accepted,
        Verdict::RuntimeError,
        Verdict::RuntimeError,
        Verdict::TimeLimit,
        Verdict::Accepted,
        Verdict::WrongAnswer,
    ];
    assert_eq!(verdicts(&judgement), expected, "{judgement:?}");
    assert_eq!(judgement.verdict, Verdict::RuntimeError);
}

#[test]
fn a_candidate_may_use_locks_and_pools() {
    let Some(judge) = judge() else { return };
    if !judge.sandbox().in_force().to_string().contains("a /dev/shm of its own") {
        crate::skip::skipped("no namespaces here");
        return;
    }
    let pool = "from multiprocessing import Lock, Pool\ndef g(x): return abs(x)\n\
                def f(xs):\n    with Lock(), Pool(2) as pool:\n        \
                return sum(pool.map(g, xs)) + sum(pool.map(abs, xs))";
    let executor = "from concurrent.futures import ProcessPoolExecutor\ndef g(x): return 2 * abs(x)\n\
                    def f(xs):\n    with ProcessPoolExecutor(2) as pool:\n        return sum(pool.map(g, xs))";
    let manager = "from multiprocessing import Manager, Process, Queue\nfrom threading import Thread\n\
                   def f(xs):\n    queue = Queue()\n    with Manager() as manager:\n        \
                   shared = manager.dict()\n        \
                   workers = [kind(target=lambda ix=ix, x=x: queue.put(shared.update({ix: 2 * abs(x)}))) \
                   for ix, x in enumerate(xs) for kind in (Process, Thread)]\n        \
                   for worker in workers: worker.start(); queue.get(); worker.join()\n        \
                   return sum(shared.values())";
    let asynchronous = "import asyncio, socket\nasync def g(x): await asyncio.sleep(0); return 2 * abs(x)\n\
                        async def whole(xs): return await asyncio.gather(*map(g, xs))\n\
                        def f(xs):\n    one, other = socket.socketpair(); one.send(b'x'); other.recv(1)\n    \
                        return sum(asyncio.run(whole(xs)))";
    let [spawned, from_a_server] = ["spawn", "forkserver"].map(|way| {
        format!(
            "import multiprocessing\nmultiprocessing.set_start_method('{way}')\nfrom concurrent.futures import \
             ProcessPoolExecutor\ndef f(xs):\n    with multiprocessing.Pool(2) as pool, ProcessPoolExecutor(2) as \
             other:\n        return sum(pool.map(abs, xs)) + sum(other.map(abs, xs))"
        )
    });
    for program in [pool, executor, manager, asynchronous, &spawned, &from_a_server] {
        let judgement = judged(judge, &calls("f", &[(json!([[-1, 2, -3]]), json!([12]))]), program);
        assert!(judgement.accepted(), "{judgement:?}");
    }
}

fn reference(program: &str, entry: &str, inputs: Vec<Value>, mbpp: Option<u32>) -> Problem {
    let (program, entry) = (program.to_string(), entry.to_string());
    let base = inputs.iter().map(RawJson::from).collect();
    let mut problem =
        problem(TestSuite::Reference(ReferenceSuite { program, entry, base, plus: Vec::new(), atol: 0.0, mbpp }));
    // Its users hold results against results, some of 14 million numbers, on whatever machine: time is not what they
    // ask for.
    problem.limits.cpu = Duration::from_secs(60);
    problem
}

#[test]
fn results_are_held_against_the_reference() {
    let Some(judge) = judge() else { return };
    let mean =
        reference("def f(xs): return sum(xs) / len(xs)", "f", vec![json!([[1, 2]]), json!([[0.1, 0.2, 0.3]])], None);
    assert!(
        judged(judge, &mean, "def f(xs):\n    xs.sort()\n    return sum(x / len(xs) for x in xs) + 1e-9").accepted()
    );
    assert_eq!(judged(judge, &mean, "def f(xs): return 1.5").verdict, Verdict::WrongAnswer);
    let exact = reference("def f(x): return x", "f", vec![json!([[1, [2]]])], None);
    assert_eq!(judged(judge, &exact, "def f(x): return tuple(x)").verdict, Verdict::WrongAnswer);
    // MBPP's task 2: lists stand for tuples, and results are compared as sets.
    let shared = "def similar_elements(a, b): return tuple(set(a) & set(b))";
    let similar = reference(shared, "similar_elements", vec![json!([[3, 4, 5], [5, 4]])], Some(2));
    let program = "def similar_elements(a, b):\n    assert type(a) is tuple\n    return [5, 4, 4]";
    assert!(judged(judge, &similar, program).accepted());
    // Several times the output limit.
    let long = reference("def f(n): return [('x', i) for i in range(n)]", "f", vec![json!([100_000])], None);
    assert!(judged(judge, &long, "def f(n): return list(zip('x' * n, range(n)))").accepted());
    let other = "def f(n): return list(zip('x' * n, range(1, n + 1)))";
    assert_eq!(judged(judge, &long, other).verdict, Verdict::WrongAnswer);
    for longer in ["def f(n): return ['x' * 100] * n", "def f(n): return [('x', i) for i in range(n - 1)]"] {
        assert_eq!(judged(judge, &long, longer).verdict, Verdict::WrongAnswer, "{longer}");
    }
    let deep = "def f(n): return [[('x', i) for i in range(n)] * 9]";
    assert_eq!(judged(judge, &long, deep).verdict, Verdict::OutputLimit);
    let tuple = "def f(n): return tuple(('x', i) for i in range(n))";
    assert_eq!(judged(judge, &long, tuple).verdict, Verdict::WrongAnswer);
    // Too long to be kept: compared as it comes.
    let rows = reference("def f(n): return [tuple(range(20))] * n", "f", vec![json!([700_000])], None);
    let same = "def f(n):\n    row = tuple(range(20))\n    return [row for _ in range(n)]";
    assert!(judged(judge, &rows, same).accepted());
    let last = "def f(n): return [tuple(range(20))] * (n - 1) + [tuple(range(19)) + (0,)]";
    assert_eq!(judged(judge, &rows, last).verdict, Verdict::WrongAnswer);
    let near = reference("def f(n): return [i / 7 for i in range(n)]", "f", vec![json!([100_000])], None);
    assert!(judged(judge, &near, "def f(n): return [i / 7 + 1e-9 for i in range(n)]").accepted());
    assert_eq!(judged(judge, &near, "def f(n): return [i / 7 + 1e-3 for i in range(n)]").verdict, Verdict::WrongAnswer);
    let squares = calls("f", &[(json!([70_000]), json!([(0..70_000).collect::<Vec<_>>()]))]);
    assert!(judged(judge, &squares, "def f(n): return list(range(n))").accepted());
    let broken = reference("def f(x): return 1 / 0", "f", vec![json!([1])], None);
    let error = judge.judge(&broken, &Language::Python, "def f(x): return x").unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let said = error.to_string();
    assert!(said.contains("its reference fails on `base_input.0`, [1]: ZeroDivisionError"), "{said}");
}
