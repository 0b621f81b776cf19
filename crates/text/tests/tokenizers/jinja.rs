//! Jinja: what jinja2 3.1.6 makes of short templates, with the settings of transformers (`jinja2.json` holds each with
//! its text, or null where it is an error), what ends and what is refused.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use offshoot_text::jinja::{Environment, FaultKind, Template, Whitespace};

/// As for chat templates.
fn environment() -> Environment {
    // 29 February 2024, 12:00.
    let now = UNIX_EPOCH + Duration::from_secs(1_709_208_000);
    Environment { is_strict: false, refuses_null: false, now: Some(now), steps: Some(1 << 20) }
}

fn rendered_in(environment: &Environment, source: &str, variables: &Map<String, Value>) -> Result<String, String> {
    let whitespace = Whitespace { trims_blocks: true, strips_blocks: true, keeps_last_line_end: false };
    let template = Template::read(source, whitespace).map_err(|fault| fault.to_string())?;
    template.render(environment, variables).map_err(|fault| fault.to_string())
}

fn rendered(source: &str) -> Result<String, String> {
    rendered_in(&environment(), source, &Map::new())
}

#[test]
fn templates_give_the_text_of_jinja2() {
    let table: Value = serde_json::from_str(include_str!("jinja2.json")).unwrap();
    let variables = table["variables"].as_object().unwrap();
    let cases = table["cases"].as_array().unwrap();
    assert!(cases.len() > 700);
    let differences = || {
        let mut wrong = Vec::new();
        for case in cases {
            let source = case[0].as_str().unwrap();
            let found = rendered_in(&environment(), source, variables);
            if found.as_ref().ok().map(String::as_str) != case[1].as_str() {
                wrong.push(format!("{source}\n  jinja2 {}\n  here {found:?}", case[1]));
            }
        }
        wrong
    };
    // The stack of a helper.
    let wrong = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(16 << 20).spawn_scoped(scope, differences);
        thread.unwrap().join().unwrap()
    });
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Where Python would print an address, write random words or go on for ever, there is an error that says so.
#[test]
fn what_differs_from_jinja2_is_an_error() {
    for (source, words) in [
        ("{{ [1]|map('abs') }}", "whose text in Python is an address"),
        ("{{ 'a'.upper }}", "whose text in Python is an address"),
        ("{{ [1, 2]|random }}", "`random` is not supported"),
        ("{{ 'a'|urlize }}", "`urlize` is not supported"),
        ("{{ lipsum() }}", "`lipsum` is not supported"),
        ("{{ 'a'.encode() }}", "`encode` is not supported"),
        ("{{ 2 ** 200 }}", "more than 127 bits"),
        ("{{ '%d' % 1e39 }}", "more than 127 bits"),
        ("{{ 1e39|int }}", "more than 127 bits"),
        ("{{ 1e39|round(0, 'ceil') }}", "more than 127 bits"),
        ("{{ -1e39|filesizeformat }}", "more than 127 bits"),
        ("{{ (16 * 10 ** 37)|round(-38) }}", "more than 127 bits"),
        ("{{ range(2 ** 126, 2 ** 126 + (2 ** 126 - 1), 2 ** 126)[:] }}", "more than 127 bits"),
        ("{{ range(0 - 2 ** 126, 2 ** 126, 2 ** 125) }}", "more than 127 bits"),
        ("{{ (0 - 2 ** 126 - 2 ** 126)|abs }}", "more than 127 bits"),
        ("{{ '%*d' % (0 - 2 ** 126 - 2 ** 126, 1) }}", "a value grows too large"),
        ("{{ (1)[1:] }}", "a slice is taken of a value of the type int"),
        ("{{ (-8) ** 0.5 }}", "complex"),
        ("{% include 'a' %}", "`include` and `import` are not supported"),
        ("{% block a %}{% endblock %}", "are not supported"),
        ("{% autoescape true %}{% endautoescape %}", "`autoescape`"),
        ("{{ 1, 2 }}", "unexpected"),
        ("{{ +1 }}", "unexpected"),
        ("{{ '\\N{DASH}' }}", "`\\N{…}` is not supported"),
    ] {
        let error = rendered(source).unwrap_err();
        assert!(error.contains(words), "{source}: {error}");
    }
}

#[test]
fn errors_name_the_line() {
    assert_eq!(
        rendered("a\n{{ none.x.y }}").unwrap_err(),
        "a value of the type NoneType has no `x` (line 2 of the template)"
    );
    assert_eq!(rendered("\n\n{{ raise_exception('no tools') }}").unwrap_err(), "no tools (line 3 of the template)");
    assert_eq!(
        rendered("{% if true %}\n{{ 1|nosuch }}\n{% endif %}").unwrap_err(),
        "no filter is called `nosuch` (line 2 of the template)"
    );
    assert!(rendered("a\n{% for %}").unwrap_err().ends_with("(line 2 of the template)"));
}

/// Undefined names and nulls of a task's templates.
#[test]
fn strict_templates_refuse_what_is_undefined() {
    let strict = Environment { is_strict: true, refuses_null: true, now: None, steps: None };
    let kind = |source: &str| {
        let template = Template::read(source, Whitespace::default()).unwrap();
        template.render(&strict, json!({"n": null, "a": {}}).as_object().unwrap()).map_err(|fault| fault.kind)
    };
    let undefined = Err(FaultKind::Undefined);
    for source in [
        "{{ x }}",
        "{% for y in x %}{% endfor %}",
        "{% if x %}{% endif %}",
        "{{ x == 1 }}",
        "{{ a.b }}",
        "{{ x|upper }}",
    ] {
        assert_eq!(kind(source), undefined, "{source}");
    }
    assert_eq!(kind("{{ n }}"), Err(FaultKind::PrintsNull));
    assert_eq!(kind("{{ x is defined }}{{ x|default('d') }}{{ [n] }}\n"), Ok("Falsed[None]".to_string()));
    assert_eq!(kind("{{ strftime_now('%Y') }}"), Err(FaultKind::Other));
}

#[test]
fn the_names_that_a_template_asks_for() {
    let source = "{% set s = a.b.c %}{% for x in list if x.y %}{{ x.z }}{{ s }}{{ range(n)[i] }}{% endfor %}\
                  {% macro m(p, q=d) %}{{ p }}{{ varargs }}{% endmacro %}{{ m(e.f) }}";
    let asked = Template::read(source, Whitespace::default()).unwrap().asked();
    assert_eq!(asked.into_iter().collect::<Vec<_>>(), ["a.b.c", "d", "e.f", "i", "list", "n"]);
}

/// A value is as large as what it holds now, however often a part of it was replaced.
#[test]
fn what_was_replaced_takes_no_room() {
    let unbounded = Environment { steps: None, ..environment() };
    let source = "{% set ns = namespace(s='') %}{% for i in range(24000) %}{% set ns.s = ns.s ~ 'x' %}{% endfor %}\
                  {{ ns.s|length }}";
    assert_eq!(rendered_in(&unbounded, source, &Map::new()).as_deref(), Ok("24000"));
}

/// Whatever is too large is refused before it takes memory, also where steps are not bounded.
#[test]
fn large_values_are_refused_before_they_are_made() {
    let unbounded = Environment { steps: None, ..environment() };
    for source in [
        "{{ ([0] * 268435455)|length }}",
        "{{ ((0,) * 268435455)|length }}",
        "{{ ('a' * 100000)|wordwrap(1, true, 'b' * 1000000) }}",
        "{{ ('a' * 9000000)|list }}",
        "{{ ('a,' * 9000000).split(',') }}",
        "{{ (',' * 9000000).rsplit(',') }}",
        "{{ ('a ' * 9000000).split() }}",
        "{{ ('\n' * 9000000).splitlines() }}",
        "{{ ('\n' * 1000)|indent(1000000, blank=true) }}",
        "{{ 'a'.ljust(200000000, '世') }}",
        "{{ '{:世<200000000}'.format('a') }}",
        "{{ range(99999)|join('b' * 1000000) }}",
        "{{ ('b' * 1000000).join('a' * 1000) }}",
        "{{ [1]|slice(9000000)|list }}",
        "{{ [1]|batch(9000000, 0)|list }}",
    ] {
        let error = rendered_in(&unbounded, source, &Map::new()).expect_err(source);
        assert!(error.contains("a value grows too large: 268435456 bytes"), "{source}: {error}");
    }
    // Where steps are bounded, they are the tighter bound.
    let few = Environment { steps: Some(10_000), ..environment() };
    for source in [
        "{{ 'a' * 10000000 }}",
        "{{ [0] * 100000 }}",
        "{{ 'a'.center(10000000) }}",
        "{{ 'a'.zfill(10000000) }}",
        "{{ '%10000000d' % 1 }}",
        "{{ '{:10000000}'.format(1) }}",
        "{{ range(9999)|join('b' * 10000) }}",
        "{{ 'a\tb'.expandtabs(10000000) }}",
        "{{ 'a'|indent(10000000, true) }}",
        "{{ [[]]|tojson(indent=10000000) }}",
    ] {
        let error = rendered_in(&few, source, &Map::new()).expect_err(source);
        assert!(error.contains("more than 10000 steps"), "{source}: {error}");
    }
}

/// What reads a text from its begin to its end takes steps by the text's length, also where it gives a number.
#[test]
fn texts_that_are_read_take_steps() {
    let few = Environment { steps: Some(10_000), ..environment() };
    let rendered = |expression: &str, times: usize| {
        let source = format!(
            "{{% set x = 'a' * 64000 %}}{{% set y = 'a' * 64000 %}}{{% set l = [x, 'b'] %}}{{% set m = [y, 'b'] %}}\
             {{% for i in range({times}) %}}{{% set z = {expression} %}}{{% endfor %}}"
        );
        rendered_in(&few, &source, &Map::new())
    };
    for expression in [
        "x.count('b')",
        "'b' in x",
        "x in l and y in l",
        "x[0:1]",
        "x[63999]",
        "x == y",
        "x != y",
        "x < y",
        "l == m",
        "x|length",
        "x is lower",
        "x is eq(y)",
        "x.startswith('a', 5)",
        "x.isdigit()",
        "'b'.count(x)",
        "x|int",
        "l|sort",
        "l|unique|list",
        "l|max",
        "l.count(y)",
        "l.index(y)",
        "x is sameas(y)",
    ] {
        assert!(rendered(expression, 2).is_ok(), "{expression}");
        let error = rendered(expression, 20).expect_err(expression);
        assert!(error.contains("more than 10000 steps"), "{expression}: {error}");
    }
    for cheap in ["x == none", "l == none", "l == 'b'", "x is string", "l|length", "x is none"] {
        assert!(rendered(cheap, 100).is_ok(), "{cheap}");
    }
}

/// Without a helper process, a template ends by its own steps and levels.
#[test]
fn endless_templates_end() {
    let doubled = |what: &str| {
        format!(
            "{{% set n = namespace(s={what}) %}}{{% for a in range(60) %}}{{% set n.s = [n.s, n.s] %}}{{% endfor %}}"
        )
    };
    let deep = "1".to_string() + &"+1".repeat(100_000);
    let brackets = format!("{{{{ {}1{} }}}}", "(".repeat(3000), ")".repeat(3000));
    let cases = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".to_string(),
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".to_string(),
        "{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}".to_string(),
        "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}".to_string(),
        "{{ range(10 ** 9) }}".to_string(),
        "{{ 'x' * 10 ** 10 }}".to_string(),
        "{{ [1] * 10 ** 10 }}".to_string(),
        "{{ 'a'.replace('', 'b' * 99999999).replace('', 'b' * 99999999) }}".to_string(),
        "{{ '%999999999s' % 'x' }}{{ '%*d' % (999999999, 1) }}".to_string(),
        "{{ '{:>999999999}'.format('x') }}".to_string(),
        "{{ '{:.999999999f}'.format(1.5) }}".to_string(),
        "{{ 'x'.center(999999999) }}".to_string(),
        "{{ 'x'.zfill(999999999) }}".to_string(),
        "{{ 'a\\tb'.expandtabs(999999999) }}".to_string(),
        "{{ 'a\\nb'|indent(999999999) }}".to_string(),
        "{{ [1]|batch(999999999, 0)|list }}".to_string(),
        "{{ [1]|slice(999999999, 0)|list }}".to_string(),
        "{{ [1]|tojson(indent=999999999) }}".to_string(),
        "{{ 2 ** (10 ** 10) }}".to_string(),
        "{% set n = namespace(l=[]) %}{% for a in range(99999) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l }}"
            .to_string(),
        "{% set n = namespace() %}{% set n.n = n %}{{ n }}".to_string(),
        "{% set n = namespace(s='xxxxxxxx') %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}"
            .to_string(),
        doubled("1") + "{{ n.s }}",
        doubled("1") + "{{ n.s == n.s }}",
        "{% set n = namespace(s='x,') %}{% for a in range(60) %}{% set n.s = n.s.replace(',', n.s) %}{% endfor %}"
            .to_string(),
        format!("{{{{ {deep} }}}}"),
        brackets,
    ];
    for source in cases {
        let shown: String = source.chars().take(90).collect();
        // minijinja's parser and its tree take a stack that grows with the template.
        let end = std::thread::Builder::new().stack_size(64 << 20).spawn(move || rendered(&source)).unwrap().join();
        let error = end.unwrap().expect_err(&shown);
        let words = ["more than", "the most", "too deeply", "maximum recursion", "too large"];
        assert!(words.iter().any(|word| error.contains(word)), "{shown}: {error}");
    }
}

/// Values that nest as deep as they may, and names in a chain of namespaces, are freed on a small stack.
#[test]
fn deep_values_end_on_a_small_stack() {
    let chain = "{% set n = namespace(first=none, last=none) %}{% for a in range(50000) %}\
                 {% set m = namespace(x=n.last) %}{% set n.last = m %}{% endfor %}done";
    let nested = "{% set n = namespace(l=[]) %}{% for a in range(800) %}{% set n.l = [n.l] %}{% endfor %}\
                  {{ n.l|string|length }}{{ n.l == [1] }}{{ n.l|tojson|length }}";
    for (source, expected) in [(chain, "done"), (nested, "1602False1602")] {
        let end = std::thread::Builder::new().stack_size(4 << 20).spawn(move || rendered(source)).unwrap().join();
        assert_eq!(end.unwrap().as_deref(), Ok(expected));
    }
}
