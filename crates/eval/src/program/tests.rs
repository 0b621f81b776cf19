//! Which program a text holds: the ways in which models write one, and the texts that stay as they are.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::benchmark;

const PROMPT: &str = "import math\n\ndef half(x):\n    \"\"\"Half of it.\"\"\"\n";

fn human_eval(prompt: &str) -> Problem {
    let test = "def check(candidate):\n    assert candidate(4) == 2\n";
    of(json!({"prompt": prompt, "entry_point": "half", "test": test}))
}

fn of(fields: Value) -> Problem {
    benchmark::problem(None, "f/0", fields.as_object().expect("an object")).expect("a problem")
}

fn sums() -> Problem {
    Problem::streams("sum", [("1 2", "3")])
}

/// The program in a text that a model wrote.
fn found(problem: &Problem, text: &str) -> String {
    program(problem, CandidateText::Completion(text.to_owned()))
}

fn program(problem: &Problem, text: CandidateText) -> String {
    candidate(problem, &Language::Python, &text, ExtractMode::Auto).program(problem, &Language::Python)
}

const RIGHT: &str = "def half(x):\n    return x / 2\n";
const DRAFT: &str = "def half(x):\n    # This is only a draft, which is longer than what follows it.\n    return 0\n";

#[test]
fn each_way_to_write_a_program_gives_the_same() {
    let problem = human_eval(PROMPT);
    let fenced = format!("```python\n{RIGHT}```\n");
    let draft = format!("```python\n{DRAFT}```\n");
    let indented = |text: &str, by: &str| -> String { text.lines().map(|line| format!("{by}{line}\n")).collect() };
    let texts = [
        fenced.clone(),
        format!("```py\n{RIGHT}```"),
        format!("```\n{RIGHT}```"),
        format!("``` Python title=\"half.py\"\n{RIGHT}```"),
        format!("```{{.python .numbered}}\n{RIGHT}```"),
        format!("~~~python\n{RIGHT}~~~\n"),
        format!("``````python\n{RIGHT}``````\n"),
        format!("~~~~\n{RIGHT}~~~~~~  \nDone."),
        format!("Sure\n```python\n{RIGHT}"),
        format!("Sure\n```python\n{}```", RIGHT.trim_end()),
        format!("Here it is:\n\n{RIGHT}"),
        format!("Here's the code:\n\n{RIGHT}\nThis halves the number.\n"),
        format!("Solution\n\n{RIGHT}"),
        format!("**Solution**\n\n{RIGHT}"),
        format!("<answer>\n{RIGHT}</answer>\n"),
        // Reasoning.
        format!("<think>\n{draft}</think>\n{fenced}"),
        format!("<thinking>\n{draft}</thinking>\n{fenced}"),
        format!("so\n{draft}</think>\n{fenced}"),
        format!("so\n{draft}</think>\nThe code:\n\n{RIGHT}"),
        format!("<think>a</think>\n<think>\n{draft}</think>\n{fenced}"),
        // Several blocks.
        format!("{draft}Better:\n{fenced}"),
        format!("{draft}Better:\n{fenced}Run it:\n```bash\npython half.py with many options and more of them\n```\n"),
        format!("{fenced}For example:\n```python\nprint(half(1), half(2), half(3), half(4), half(5))\n```\n"),
        format!("```python\n{DRAFT}``````python\n{RIGHT}```"),
        format!("{fenced}Or also:\n```python\n{DRAFT}"),
        format!("Input:\n```\n1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19\n```\n{fenced}"),
        // Lists, quotations, blocks in blocks.
        format!("1. Do\n\n{}", indented(&fenced, "   ")),
        format!("- Do\n{}", indented(&fenced, "\t")),
        format!("- ```python\n{}", indented(&format!("{RIGHT}```"), "  ")),
        format!("   10) ~~~\n{}", indented(&format!("{RIGHT}~~~"), "       ")),
        indented(&fenced, "> "),
        format!("````markdown\n# Half\n{fenced}````\n"),
        format!("```markdown\n{fenced}```\n"),
        format!("```python\n{fenced}"),
        format!("```python\n{RIGHT}    ```\nDone, I think.\n"),
        format!("```python {{.numberLines startFrom=\"1\"}}\n{RIGHT}```\n"),
        format!("```py3\n{RIGHT}```\n"),
        format!("```Python 3\n{RIGHT}```\n"),
        format!("```{{.python .numberLines}}\n{RIGHT}```\n"),
        format!("\t```python\n{}\t```\n", indented(RIGHT, "\t")),
        indented(&format!("It is:\n\n{fenced}"), "> "),
        "```python\n>>> def half(x):\n...     return x / 2\n...\n```\n".to_owned(),
        // Indented blocks.
        format!("Here it is:\n\n{}", indented(RIGHT, "    ")),
        format!("Here it is:\n\n{}\nIt halves it.\n", indented(RIGHT, "    ")),
        format!("Here it is:\n\n{}\nIt halves it.\n", indented(RIGHT, "\t")),
        format!("First:\n\n{}\nBetter:\n\n{}", indented(DRAFT, "    "), indented(RIGHT, "    ")),
        format!("Here it is:\n\n{}\nUse:\n\n    print(half(1), half(2), half(3))\n", indented(RIGHT, "    ")),
        // Other marks.
        format!("[BEGIN]\n{RIGHT}[DONE]\n"),
        format!("{RIGHT}[DONE]\nYou are an expert.\n[BEGIN]\n"),
        format!("Sure.\n[PYTHON]\n{RIGHT}[/PYTHON]\n[TESTS]\nassert half(4) == 2\n[/TESTS]\n"),
        format!("[PYTHON]\n{fenced}[/PYTHON]\n"),
        format!("It is this.\n<code>\n{RIGHT}</code>\nDone.\n"),
        format!("<pre><code>{RIGHT}</code></pre>\n"),
        format!("<code>half</code> works as follows:\n\n{RIGHT}"),
        format!("<code>half(4)</code>\n\nis 2 with this:\n\n{RIGHT}"),
        format!("<code>half</code> is here:\n<code>\n{RIGHT}</code>\n"),
        format!("[BEGIN]\n{RIGHT}[DONE] That is it.\n"),
        format!("It is\n[BEGIN]\n{RIGHT}[DONE]\n"),
        format!("<code>\n{DRAFT}</code> then <code>\n{RIGHT}</code>"),
        format!("[PYTHON]\n{DRAFT}[/PYTHON]\n[PYTHON]\n{RIGHT}[/PYTHON]\n"),
        // Special tokens that end a turn.
        format!("```python\n{RIGHT}```<|im_end|>"),
        format!("```python\n{RIGHT}```<|im_end|>\n<|im_start|>user\nAnd now a text.<|im_end|>\n"),
        format!("Sure\n```python\n{RIGHT}```</s>\n"),
        format!("{RIGHT}\nNote: it's right.\n"),
        // A block without a body is no program.
        format!("{fenced}Its head is:\n```python\ndef half(x: float) -> float:\n```\n"),
        format!("{fenced}Its head is:\n```python\ndef half(x): ...\n```\n"),
        format!(
            "{fenced}Its head is:\n```python\ndef half(x):\n    \"\"\"Half of it.\"\"\"\n    # Code.\n    pass\n```\n"
        ),
        format!("python\n{RIGHT}"),
        format!("python\nCopy code\n{RIGHT}"),
        format!("I put it between `<code>` and `</code>`.\n<code>\n{RIGHT}</code>\n"),
        // Prose behind the code.
        format!("{RIGHT}\nExplanation: it halves the number.\n"),
        format!("{RIGHT}\nThis halves it. It is what was asked for.\n\n1. It takes x.\n2. It divides it.\n"),
        format!("{RIGHT}\n**Explanation**\nIt halves the number, as was asked.\n"),
        // The prompt has opened the fence.
        format!("{RIGHT}```\nThis halves the number, as it was asked for.\n"),
        format!("{RIGHT}\nFor example:\n```python\nprint(half(1))\n```\n"),
    ];
    for text in texts {
        let lines = |program: &str| -> Vec<String> {
            program.lines().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
        };
        let expected = lines(&format!("{PROMPT}{RIGHT}"));
        assert_eq!(lines(&found(&problem, &text)), expected, "{text}");
        assert_eq!(lines(&program(&problem, CandidateText::Program(text.clone()))), expected, "{text}");
        let windows = text.replace('\n', "\r\n");
        assert_eq!(lines(&found(&problem, &windows)), expected, "{windows:?}");
        let completion = candidate(&problem, &Language::Python, &CandidateText::Completion(text), ExtractMode::Fence);
        assert!(matches!(&completion, CandidateText::Program(_)) || completion.as_str().is_empty(), "{completion:?}");
    }
}

#[test]
fn a_body_continues_the_prompt() {
    let body = "    return x / 2\n";
    for text in [
        body.to_owned(),
        format!("```python\n{body}```"),
        format!("<think>x</think>\n```python\n{body}```"),
        format!("<think>x</think>{body}"),
        format!("The body is:\n{body}\nAs you see.\n"),
        format!("1. Do\n   ~~~\n   {body}   ~~~\n"),
    ] {
        let expected = format!("{PROMPT}{body}");
        assert_eq!(found(&human_eval(PROMPT), &text).trim_end(), expected.trim_end(), "{text}");
        assert_eq!(program(&human_eval(PROMPT), CandidateText::Program(text.clone())).trim_end(), expected.trim_end());
    }
    for behind in ["```\nThis halves it.\n", "```\nUse:\n```python\nhalf(4)\n```\n", "[DONE]\nNext\n", "</code>\n"] {
        assert_eq!(found(&human_eval(PROMPT), &format!("{body}{behind}")), format!("{PROMPT}{body}"), "{behind}");
    }
    for text in
        [format!("```python\n{}```", body.trim_start()), format!("It is:\n```\ny = x\n{}```", body.trim_start())]
    {
        let expected = format!("{PROMPT}{}{body}", if text.contains("y = x") { "    y = x\n" } else { "" });
        assert_eq!(found(&human_eval(PROMPT), &text), expected, "{text}");
    }
    assert_eq!(
        found(&human_eval(PROMPT), &format!("{body}<|endoftext|>")).trim_end(),
        format!("{PROMPT}{body}").trim_end()
    );
    let cut = PROMPT.trim_end();
    assert_eq!(found(&human_eval(cut), &format!("```\n{body}```")), format!("{cut}\n{body}"));
}

#[test]
fn a_mark_in_a_program_does_not_end_it() {
    let program = "def half(x):\n    # [DONE]\n    text = \"\"\"\n[DONE]\n\"\"\"\n    return \"[DONE]\"\n";
    for text in [format!("[BEGIN]\n{program}[DONE]\n"), format!("Sure.\n[BEGIN]\n{program}[DONE]\n")] {
        assert_eq!(found(&human_eval(PROMPT), &text), format!("{PROMPT}\n{program}"), "{text}");
    }
    for line in ["print(input())", "print('<code>', '</code>')"] {
        assert_eq!(found(&sums(), &format!("This is it:\n<code>{line}</code>\n")), line);
    }
}

#[test]
fn a_fence_ends_a_body_that_begins_within_a_string_of_the_prompt() {
    let prompt = "def half(x):\n    \"\"\"Half of";
    let body = " it.\n    \"\"\"\n    return x / 2\n";
    for behind in ["```\n", "```\nThis halves it.\n", "[DONE]\n"] {
        assert_eq!(found(&human_eval(prompt), &format!("{body}{behind}")), format!("{prompt}{body}"), "{behind}");
    }
}

#[test]
fn what_continues_a_prompt_stays_as_it_is() {
    let within = "def half(x):\n    \"\"\"Half of";
    let cases = [
        (PROMPT, "    return x / 2\n\n```\nThis halves it.\n```\n"),
        (PROMPT, "\n\n    return x / 2\n\nThis halves it.\n\ndef main():\n    pass\n"),
        (PROMPT, "\treturn x / 2 # </think>\n"),
        (PROMPT, "\ndef half(x):\n    return x / 2\n\n\nhalves = True\n"),
        (PROMPT, "\ndef half(x):\n    \"\"\"As in\n\n```\nhalf(4)\n```\n    \"\"\"\n    return x / 2\n"),
        (PROMPT, "x = '</think>'\n"),
        (PROMPT, ""),
        (PROMPT, "of the number.\n    It is even.\n    \"\"\"\n    return x / 2\n"),
        (PROMPT, ":\n    half(4) = 2\n    \"\"\"\n    return x / 2\n"),
        ("def half(x):\n    return ", "x / 2\n\ndef other(x):\n    return x\n"),
        (within, " the number.\n    \"\"\"\n    return x / 2\n\n\ndef other(x):\n    return x\n"),
    ];
    for (prompt, text) in cases {
        assert_eq!(found(&human_eval(prompt), text), format!("{prompt}{text}"), "{text}");
    }
    let ended = format!("{RIGHT}<|eot_id|></s>");
    assert_eq!(found(&human_eval(PROMPT), &ended), found(&human_eval(PROMPT), RIGHT));
    assert_eq!(program(&human_eval(PROMPT), CandidateText::Program(ended)), RIGHT);
    let open = "def half(x):\n";
    assert_eq!(found(&human_eval(open), RIGHT), format!("def half(x):\n    pass\n\n{RIGHT}"));
}

#[test]
fn a_whole_program_is_what_its_field_says() {
    let problem = human_eval(PROMPT);
    for text in [
        RIGHT.to_owned(),
        format!("\n\n# Halves.\n{RIGHT}"),
        "def half(x):\n    \"\"\"\n```\n1\n```\n    \"\"\"\n    return x / 2\n".to_owned(),
        "print 'two'\n".to_owned(),
        format!("\"\"\"Halves it, as\nit was asked.\n\"\"\"\n{RIGHT}"),
    ] {
        assert_eq!(program(&problem, CandidateText::Program(text.clone())), text);
    }
}

#[test]
fn an_unfinished_reasoning_holds_no_program() {
    for text in [format!("<think>\n```python\n{RIGHT}```\n"), format!("<thinking>{RIGHT}"), String::new()] {
        assert_eq!(found(&human_eval(PROMPT), &text), PROMPT, "{text}");
        assert_eq!(program(&human_eval(PROMPT), CandidateText::Program(text.clone())), PROMPT, "{text}");
        assert_eq!(found(&sums(), &text), "", "{text}");
    }
}

#[test]
fn where_no_function_is_named_the_longest_block_counts() {
    let cases = [
        ("```\na = 1\n```\n```py\nbb = 1\n```\n", "bb = 1\n"),
        ("```\na = 1\n```\n```py\nb = 1\n```\n", "b = 1\n"),
        ("```py\nx = 1\nprint(x)\n```\nand\n```\nls\n```\n", "x = 1\nprint(x)\n"),
        ("```py\nprint(1)\n```\nIt prints:\n```text\n1111111111111111111\n```\n", "print(1)\n"),
        ("```\na = 1\n", "a = 1\n"),
        ("```\na = 1\n```\n```", "a = 1\n"),
        ("```java\nint a;\n```", "int a;\n"),
        ("n = 1\nprint(n)\n```\nIt prints one.\n", "n = 1\nprint(n)\n"),
        ("Here it is:\n\nn = 1\nprint(n)\n", "n = 1\nprint(n)\n"),
        ("n = 1\nprint(n)\n", "n = 1\nprint(n)\n"),
        ("no `code` here", "no `code` here"),
    ];
    for (text, expected) in cases {
        assert_eq!(found(&sums(), text), expected, "{text}");
    }
    let mbpp = of(json!({"task_id": 2, "text": "", "code": "", "test_list": ["assert half(4) == 2"]}));
    assert_eq!(found(&mbpp, &format!("```py\n{DRAFT}```\n```py\n{RIGHT}```\n```py\nlonger = 1\n```\n")), RIGHT);
}

#[test]
fn other_languages_have_their_blocks() {
    let text = "Run it:\n```bash\ng++ -O2 -std=c++17 -o main main.cpp\n```\n~~~cpp\nint main() {}\n~~~\n";
    for (language, expected) in [
        (Language::Cpp, "int main() {}\n"),
        (
            Language::Command(serde_json::from_str(r#"{"file": "a.rs", "run": ["a"]}"#).expect("JSON")),
            "int main() {}\n",
        ),
    ] {
        let text = CandidateText::Completion(text.to_owned());
        assert_eq!(candidate(&sums(), &language, &text, ExtractMode::Auto).program(&sums(), &language), expected);
    }
}

#[test]
fn modes_decide_what_is_looked_for() {
    let (problem, python) = (human_eval(PROMPT), &Language::Python);
    let fenced = format!("```\n{RIGHT}```\n");
    let at = |mode, text: &str| candidate(&problem, python, &CandidateText::Completion(text.to_owned()), mode);
    assert_eq!(at(ExtractMode::None, &format!("<think>a</think>{fenced}")), CandidateText::Completion(fenced.clone()));
    assert_eq!(at(ExtractMode::Fence, RIGHT), CandidateText::Completion(String::new()));
    let raw = format!("    return 0\n{fenced}");
    assert_eq!(at(ExtractMode::Auto, &raw), CandidateText::Completion(raw.clone()));
    assert!(matches!(at(ExtractMode::Fence, &raw), CandidateText::Program(program) if program.ends_with(RIGHT)));
}

#[test]
fn prose_is_what_no_program_can_have() {
    for line in [
        "Here is the code:",
        "Sure!",
        "I'll write it",
        "Solution:",
        "Okay.",
        "Step 1",
        "1. Sort",
        "2) sort them",
        "---",
        "**Answer**",
        "<code>",
        "What is it?",
        "以下是代码：",
        "The 2nd one",
        "> quoted",
        "Don't",
        "print the result",
        "match the words",
        "| a | b |",
        "Solution",
        "Now f(x) returns it",
    ] {
        assert!(is_prose(line), "{line}");
    }
    for line in [
        "x = 5",
        "def f(x):",
        "# The code",
        "return x",
        "match x:",
        "case A(b):",
        "type X = int",
        "print \"a\"",
        "@cache",
        "x if y else z",
        "not x in y",
        "f'{x!r} is'",
        "print(f'{d['a b']} c')",
        "\u{feff}import sys",
        "rb'a b'",
        "\"\"\"The text",
        "...",
        "}, {",
        ")",
        "else:",
        "lambda x: x",
        "a = 'it is', \"it\" 'is'",
        "for 名 in x:",
        "x != y",
        "\"a b\" \\",
        "async def f():",
        "return\"a b\"",
        "x: int = 5",
        "d = {",
        "0x1F + 1_000j",
        "try:",
        "None",
    ] {
        assert!(!is_prose(line), "{line}");
    }
}

/// The time that hostile texts take grows with their length alone.
#[test]
fn many_fences_are_read_once() {
    for line in ["```python\n", "```\n", "````md\n", "> ```\n", "```\n'''\n", "- ~~~a\n", "``````a\n", "x```\n"] {
        let blocks = blocks(&line.repeat(20_000));
        assert!(blocks.len() <= 20_000, "{line}");
    }
}

/// Code that begins a text is cut at nothing that a program may have.
#[test]
fn a_program_alone_is_never_cut() {
    for text in [
        "a,b=map(int,input().split())\nprint(1if a>b else 0)\n",
        "x=[0\n|1]\ny=(3\n% 2)\nprint(x,y)\n",
        "print 'two'\nprint `2`\n",
        "n = 5\nprint([i for i in range(n)if i%2or i>3])\n",
        "x = b'abc'\ny = '''\nThis is what it says.\n'''\nprint(x)\n",
        "import sys\n\"\"\"\n<code>\nx\n</code>\n\"\"\"\nprint(1)\n",
        "match = 5\nmatch match:\n    case _:\n        print(1)\n",
        "type X = int\nprint(1)\n",
    ] {
        assert_eq!(found(&sums(), text), text, "{text}");
        assert_eq!(program(&sums(), CandidateText::Program(text.to_owned())), text, "{text}");
    }
    let code = "n = 1\nprint(n)\n";
    for prose in [
        "Explanation: it prints one.\n",
        "Explanation:\n\n- n is one\n",
        "**Explanation**\nn is one\n",
        "This prints one.\n",
        "Here's how it works: n is printed.\n",
        "I've printed it.\n",
        "The time complexity is O(1).\n",
    ] {
        assert_eq!(found(&sums(), &format!("{code}\n{prose}")), format!("{code}\n"), "{prose}");
    }
}

/// A block that ends amiss ends where the next begins, however many there are.
#[test]
fn many_ends_amiss_are_read_once() {
    for (block, code) in [
        ("```a\nx```\n", "x"),
        ("~~~a\nx\n        ~~~\n", "x\n"),
        ("> ```a\n> x```\n", "x"),
        ("```a\nx```\n~~~a\nx~~~\n", "x"),
        ("````a\nx````\n", "x"),
    ] {
        let times = 200_000 / block.lines().count();
        let blocks = blocks(&block.repeat(times));
        let per_repeat = if block.contains("~~~a\nx~~~") { 2 } else { 1 };
        assert_eq!(blocks.len(), times * per_repeat, "{block}");
        assert!(blocks.iter().all(|block| block.code == code && block.is_closed), "{block}: {:?}", blocks[0]);
    }
}

#[test]
fn a_session_is_what_was_typed() {
    let session = "```python\n>>> n = 4\n>>> for i in range(n):\n...     print(i)\n...\n0\n1\n```\n";
    let typed = "n = 4\nfor i in range(n):\n    print(i)\n\n";
    assert_eq!(found(&sums(), session), typed);
    // A program counts before a session, which shows how it is used.
    assert_eq!(found(&sums(), &format!("{session}```python\nn = 1\n```\n")), "n = 1\n");
    let used =
        "```python\n>>> half(4)\n2.0\n>>> half(8) # which is rather longer than the function itself is\n4.0\n```\n";
    assert!(found(&human_eval(PROMPT), &format!("```python\n{RIGHT}```\n{used}")).ends_with(RIGHT));
}

/// No line of the project's own Python is taken for prose.
#[test]
fn programs_hold_no_prose() {
    let root = Path::new(offshoot_fixtures::REPOSITORY);
    let folders = ["python/offshoot", "python/tests", "tests/clients", "tests/forgers", "tests/hostile", "examples"];
    let mut programs = 0;
    for file in folders.iter().flat_map(|folder| fs::read_dir(root.join(folder)).expect("it is there")) {
        let path = file.expect("readable").path();
        if path.extension().is_some_and(|extension| extension == "py") {
            let text = fs::read_to_string(&path).expect("text");
            assert!(first_statement(&text).is_none_or(|line| !is_prose(line)), "{}", path.display());
            assert_eq!(unfenced(&text, false).unwrap_or(&text), text, "{}", path.display());
            programs += 1;
        }
    }
    assert!(programs > 20, "{programs}");
}
