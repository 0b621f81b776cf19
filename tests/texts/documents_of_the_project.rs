//! The project's own documents stay true: links lead somewhere, commands are known to the command line, the README is
//! short and quotes a recorded run, and the pictures are those that their commands draw from the recorded data. Lines
//! of documents and sources end at 120 characters.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use clap::Parser;
use offshoot::cli::Cli;
use tempfile::TempDir;

use crate::skip::skipped;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = repository().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every document for readers: beside the README's those of `docs`, `benches` and `kernels`.
fn documents() -> Vec<PathBuf> {
    files(&["md"])
}

/// The repository's files of these endings, but for what is hidden or was built.
fn files(endings: &[&str]) -> Vec<PathBuf> {
    let mut found = vec![];
    let mut folders = vec![repository().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the repository is readable") {
            let path = entry.expect("the repository is readable").path();
            let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
            let skipped =
                name.starts_with('.') || folder == repository() && ["target", "runs", "out"].contains(&&*name);
            if path.is_dir() && !skipped {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| endings.iter().any(|known| ending == *known)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Lines outside fenced blocks, and those inside of them.
fn split_fences(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut prose, mut code, mut fenced) = (vec![], vec![], false);
    for line in text.lines() {
        match line.starts_with("```") {
            true => fenced = !fenced,
            false if fenced => code.push(line),
            false => prose.push(line),
        }
    }
    (prose, code)
}

/// The targets of `[text](target)` in a line, what stands in code spans left out.
fn targets(line: &str) -> Vec<&str> {
    let mut found = vec![];
    let mut rest = line;
    while let Some(at) = rest.find("](") {
        let after = &rest[at + 2..];
        let Some(end) = after.find(')') else { break };
        found.push(&after[..end]);
        rest = &after[end..];
    }
    found
}

/// A heading's anchor as GitHub makes it: lower case, spaces as hyphens, nothing else that is no letter or digit.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
}

#[test]
fn links_of_the_documents_lead_somewhere() {
    let (mut checked, mut broken) = (0, vec![]);
    for document in documents() {
        let text = fs::read_to_string(&document).expect("a document is text");
        for target in split_fences(&text).0.into_iter().flat_map(targets) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => document.clone(),
                file => document.parent().expect("a document lies in a folder").join(file),
            };
            let has_fragment = || {
                let text = fs::read_to_string(&path).unwrap_or_default();
                let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
                headings.map(|heading| anchor(heading.trim_start_matches('#'))).any(|anchor| anchor == fragment)
            };
            if !path.exists() || !(fragment.is_empty() || has_fragment()) {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(checked > 30, "only {checked} links were found: the scan no longer reads what it should");
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

/// Paths of source files that a text names: `src/….rs`, `tests/….rs`, `crates/….rs`, `kernels/….cu`, from the
/// repository's root.
fn source_paths(text: &str) -> Vec<&str> {
    const ROOTS: [&str; 4] = ["src/", "tests/", "crates/", "kernels/"];
    let is_path = |c: char| c.is_ascii_alphanumeric() || ['_', '/', '.', '-'].contains(&c);
    let words = text.split(|c: char| !is_path(c)).map(|word| word.trim_end_matches('.'));
    let is_source = |word: &&str| [".rs", ".cu", ".cuh"].iter().any(|ending| word.ends_with(ending));
    words.filter(|word| ROOTS.iter().any(|root| word.starts_with(root))).filter(is_source).collect()
}

/// What a file says to its readers: a document all of it, a source file its lines of comments.
fn said(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("documents and sources are text");
    match path.extension().is_some_and(|ending| ending == "md") {
        true => text,
        false => text.lines().filter(|line| line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n"),
    }
}

/// What is dated (`benches/runs`, the changelog) names the files of its day.
#[test]
fn source_files_that_documents_and_comments_name_exist() {
    let dated = |path: &Path| path.starts_with(repository().join("benches")) || path.ends_with("CHANGELOG.md");
    let (mut checked, mut missing) = (0, vec![]);
    for file in files(&["md", "rs", "cu", "cuh"]).into_iter().filter(|path| !dated(path)) {
        let text = said(&file);
        for path in source_paths(&text) {
            checked += 1;
            if !repository().join(path).exists() {
                missing.push(format!("{}: {path}", file.display()));
            }
        }
    }
    assert!(checked > 30, "only {checked} paths were found: the scan no longer reads what it should");
    assert!(missing.is_empty(), "files that are not there:\n{}", missing.join("\n"));
}

#[test]
fn the_readme_is_short() {
    let readme = read("README.md");
    assert!(readme.lines().count() <= 150, "{} lines", readme.lines().count());
    for (number, line) in readme.lines().enumerate() {
        assert!(line.chars().count() <= 120, "line {}: {} characters", number + 1, line.chars().count());
    }
}

/// Ends of the names of files that are written by hand.
const WRITTEN: [&str; 13] = ["rs", "py", "pyi", "cu", "cuh", "cpp", "hpp", "js", "css", "html", "sh", "toml", "md"];

/// Whether the lines of a file are held to a length. What ran on one day stays as it was; the text about it is held.
fn is_written(path: &str) -> bool {
    let end = Path::new(path).extension().and_then(|end| end.to_str()).unwrap_or_default();
    match path.starts_with("benches/runs/") {
        true => end == "md",
        false => path.starts_with(".ci/") || WRITTEN.contains(&end),
    }
}

/// The numbers of a file's lines that are longer than `most` characters and could be broken: rows of tables, headings
/// and what a document shows as code cannot.
fn long_lines(path: &str, text: &str, most: usize) -> Vec<usize> {
    let is_document = path.ends_with(".md");
    let whole: &[&str] = if is_document { &["|", "#"] } else { &["/// |", "//! |"] };
    let (mut long, mut fenced) = (vec![], false);
    for (number, line) in text.lines().enumerate() {
        let words = line.trim_start();
        let is_fence = is_document && words.starts_with("```");
        fenced ^= is_fence;
        let is_whole = is_fence || fenced || whole.iter().any(|beginning| words.starts_with(beginning));
        if !is_whole && line.chars().count() > most {
            long.push(number + 1);
        }
    }
    long
}

#[test]
fn lines_end_at_120_characters() {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(repository()).output();
    let listed = match listed {
        Ok(listed) if listed.status.success() && !listed.stdout.is_empty() => listed.stdout,
        _ => return skipped(format_args!("git lists no files here")),
    };
    let listed = String::from_utf8(listed).expect("names are in UTF-8");
    let (mut checked, mut long) = (0, vec![]);
    for path in listed.split_terminator('\0').filter(|path| is_written(path)) {
        // Listed until its removal is staged.
        let Ok(text) = fs::read_to_string(repository().join(path)) else { continue };
        checked += 1;
        long.extend(long_lines(path, &text, 120).into_iter().map(|number| format!("{path}:{number}")));
    }
    assert!(checked > 500, "only {checked} files were found: the scan no longer reads what it should");
    assert!(long.is_empty(), "lines of more than 120 characters:\n{}", long.join("\n"));
}

#[test]
fn a_long_line_would_be_seen() {
    let text = "four\n| long |\n# long\n```\nlonger\n```\nlongest\n";
    assert_eq!(long_lines("a.md", text, 4), [7]);
    assert_eq!(long_lines("a.rs", "/// | long |\n/// ök\n// long\n", 6), [3]);
    assert!(is_written(".ci/run") && is_written("benches/runs/a/README.md") && !is_written("benches/runs/a/run.py"));
}

/// The README's output is that of the recorded run, but for the end of one line, which it leaves out (`…`).
#[test]
fn the_readme_quotes_the_recorded_run() {
    let readme = read("README.md");
    let (_, code) = split_fences(&readme);
    let recorded = read("benches/runs/2026-11-23-epyc-2core/words-vote-20.txt");
    let start = code.iter().position(|line| line.starts_with("task  ")).expect("the README shows a run's output");
    for (quoted, line) in code[start..].iter().zip(recorded.lines()) {
        match quoted.strip_suffix('…') {
            Some(beginning) => assert!(line.starts_with(beginning), "{quoted} is not {line}"),
            None => assert_eq!(*quoted, line),
        }
    }
    let last = recorded.lines().last().expect("an output has lines");
    assert!(code.contains(&last), "the README quotes the output to its end");
}

/// Words of a command as a shell splits them; a comment ends it.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (vec![], None::<String>, None);
    for c in command.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The commands of Offshoot in a document's fenced blocks; a line that ends with a backslash goes on.
fn commands(text: &str) -> Vec<Vec<String>> {
    let (_, code) = split_fences(text);
    let joined = code.join("\n").replace("\\\n", " ");
    let lines = joined.lines().map(|line| line.trim_start_matches("cargo run --release -- ")).map(words);
    let own = |words: &Vec<String>| {
        let begins = words.first().is_some_and(|first| ["offshoot", "run"].contains(&first.as_str()));
        begins && !words.iter().any(|word| word.contains("..."))
    };
    let named = lines.filter(own).map(|words| match words[0] == "offshoot" {
        true => words,
        false => ["offshoot".to_string()].into_iter().chain(words).collect(),
    });
    named.collect()
}

#[test]
fn commands_of_the_documents_are_known() {
    let mut checked = 0;
    let mut documents = vec![PathBuf::from("README.md"), "CONTRIBUTING.md".into()];
    let docs = fs::read_dir(repository().join("docs")).expect("docs is readable");
    documents.extend(docs.map(|entry| entry.expect("docs is readable").path()).filter(|path| path.is_file()));
    for document in documents {
        for command in commands(&read(&document)) {
            checked += 1;
            if let Err(error) = Cli::try_parse_from(&command) {
                panic!("{}: {}\n{error}", document.display(), command.join(" "));
            }
        }
    }
    assert!(checked > 30, "only {checked} commands were found: the scan no longer reads what it should");
    assert_eq!(words("a 'b c' --d=\"e\" # f"), ["a", "b c", "--d=e"]);
}

fn offshoot(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_offshoot"));
    command.args(arguments).current_dir(repository()).output().expect("offshoot starts")
}

/// Runs a script of `benches`; `None`: there is no Python here.
fn script(arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new("python3");
    match command.args(arguments).current_dir(repository()).env("PYTHONDONTWRITEBYTECODE", "1").output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skipped(format_args!("no python3 here to run {}", arguments[0]));
            None
        }
        output => Some(output.expect("python3 starts")),
    }
}

/// `docs/pictures/README.md` holds the command of each picture; each is drawn again, into another folder.
#[test]
fn pictures_are_those_that_their_commands_draw() {
    let folder = TempDir::new().expect("a temporary folder");
    let mut drawn = vec![];
    let text = read("docs/pictures/README.md");
    for command in split_fences(&text).1.into_iter().map(words) {
        let picture = command.last().expect("a command has words").clone();
        assert_eq!(command[command.len() - 2], "--svg", "{command:?} ends with the picture that it draws");
        let name = Path::new(&picture).file_name().expect("a picture has a name").to_owned();
        let copy = folder.path().join(&name);
        let mut arguments: Vec<&str> = command[1..].iter().map(String::as_str).collect();
        *arguments.last_mut().expect("a command has words") = copy.to_str().expect("temporary folders are in UTF-8");
        drawn.push(name);
        let output = match command[0].as_str() {
            "offshoot" => offshoot(&arguments),
            "python3" => match script(&arguments) {
                Some(output) => output,
                None => continue,
            },
            other => panic!("{other}: expected offshoot or python3, which draw pictures"),
        };
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        let (kept, new) = (read(&picture), fs::read_to_string(&copy).expect("the command wrote it"));
        assert!(kept == new, "{picture} is not what its command draws: run it again");
        assert_text_fits(&picture, &new);
    }
    for entry in fs::read_dir(repository().join("docs/pictures")).expect("pictures are readable") {
        let name = entry.expect("pictures are readable").file_name();
        let has_command = !name.to_string_lossy().ends_with(".svg") || drawn.contains(&name);
        assert!(has_command, "docs/pictures/README.md has the command that draws {}", name.display());
    }
}

/// Text of 12 px takes at most 6.6 pixels a letter on average over a line, bold and larger text more (measured with
/// DejaVu Sans, a wide font).
fn assert_text_fits(picture: &str, svg: &str) {
    let document = roxmltree::Document::parse(svg).expect("a picture is well-formed XML");
    let number = |node: roxmltree::Node, name: &str| {
        node.attribute(name).expect("it is there").parse::<f64>().expect("a number")
    };
    let width = number(document.root_element(), "width");
    for text in document.descendants().filter(|node| node.has_tag_name("text")) {
        let words = text.text().unwrap_or_default();
        let letter = match text.attribute("class") {
            Some("title") => 10.2,
            Some("bold" | "inverse") => 7.6,
            _ => 6.6,
        };
        let long = words.chars().count() as f64 * letter;
        let left = match text.attribute("text-anchor") {
            Some("end") => number(text, "x") - long,
            Some("middle") => number(text, "x") - long / 2.0,
            _ => number(text, "x"),
        };
        assert!(
            left >= 0.0 && left + long <= width,
            "{picture}: `{words}` goes from {left} to {} of {width}",
            left + long
        );
    }
}

/// Draws a chart whose one series reads `figures.jsonl`, which holds `figures`; `None`: there is no Python here.
fn a_chart(figures: &str, key: &str) -> Option<(Output, Option<String>)> {
    let folder = TempDir::new().expect("a temporary folder");
    let chart = format!(
        r#"{{"title": "<a> & b", "unit": "x", "groups": [{{"label": "one", "detail": "", "key": [{key}]}}],
            "series": [{{"name": "ours", "file": "figures.jsonl", "where": {{"build": "new"}}, "key": ["job"],
                         "value": "rate"}}]}}"#
    );
    fs::write(folder.path().join("chart.json"), chart).expect("the folder is writable");
    fs::write(folder.path().join("figures.jsonl"), figures).expect("the folder is writable");
    let path = |name: &str| folder.path().join(name).to_str().expect("temporary folders are in UTF-8").to_string();
    let output = script(&["benches/chart.py", &path("chart.json"), "--svg", &path("chart.svg")])?;
    let drawing = fs::read_to_string(path("chart.svg")).ok();
    Some((output, drawing))
}

#[test]
fn a_chart_shows_the_line_that_its_series_and_group_pick() {
    let figures = "a line of a log\n{\"build\": \"old\", \"job\": \"one\", \"rate\": 5}\n\
                   {\"build\": \"new\", \"job\": \"one\", \"rate\": 1234.4}\n";
    let Some((output, drawing)) = a_chart(figures, "\"one\"") else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let drawing = drawing.expect("it was drawn");
    let parsed = roxmltree::Document::parse(&drawing).expect("well-formed XML");
    let texts: Vec<&str> = parsed.descendants().filter(|n| n.has_tag_name("text")).filter_map(|n| n.text()).collect();
    assert!(texts.contains(&"<a> & b") && texts.contains(&"1,234"), "{texts:?}");
}

#[test]
fn a_chart_without_exactly_one_line_for_a_bar_is_refused() {
    let one = "{\"build\": \"new\", \"job\": \"one\", \"rate\": 5}\n";
    let twice = one.repeat(2);
    let negative = one.replace('5', "-5");
    for (figures, key, said) in [
        (one, "\"two\"", "found 0 for [\"two\"] of series `ours`"),
        (&twice, "\"one\"", "found 2 for [\"one\"] of series `ours`"),
        (&negative, "\"one\"", "`rate`: expected a number that is not negative, found -5"),
        ("{\"build\": \n", "\"one\"", "figures.jsonl: a line is not a JSON object"),
    ] {
        let Some((output, drawing)) = a_chart(figures, key) else { return };
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(said), "{error}");
        assert!(drawing.is_none());
    }
}

#[test]
fn curves_show_the_lines_that_have_both_fields() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("temporary folders are in UTF-8").to_string();
    let curves = r#"{"title": "<a> & b", "mark": 0.75, "x": {"field": "tokens", "label": "tokens"},
        "y": {"field": "right", "label": "right", "percent": true},
        "series": [{"name": "ours", "file": "figures.jsonl"}]}"#;
    fs::write(folder.path().join("curves.json"), curves).expect("the folder is writable");
    for (figures, said) in [
        ("{\"tokens\": 0, \"right\": 0.5}\n{\"tokens\": 9}\n{\"tokens\": 1200, \"right\": 0.875}\n", None),
        ("{\"tokens\": 0}\n", Some("expected lines with `tokens` and `right`, found none")),
    ] {
        fs::write(folder.path().join("figures.jsonl"), figures).expect("the folder is writable");
        let Some(output) = script(&["benches/curve.py", &path("curves.json"), "--svg", &path("curves.svg")]) else {
            return;
        };
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if let Some(said) = said {
            assert!(output.status.code() == Some(2) && error.contains(said), "{error}");
            continue;
        }
        assert!(output.status.success(), "{error}");
        let drawing = fs::read_to_string(path("curves.svg")).expect("it was drawn");
        let parsed = roxmltree::Document::parse(&drawing).expect("well-formed XML");
        let texts: Vec<&str> =
            parsed.descendants().filter(|n| n.has_tag_name("text")).filter_map(|n| n.text()).collect();
        assert!(["<a> & b", "ours", "88 %", "75 %", "1,000"].iter().all(|text| texts.contains(text)), "{texts:?}");
    }
}

/// The examples in the documentation of the scripts' functions.
#[test]
fn scripts_do_what_their_examples_say() {
    let Some(output) = script(&["-m", "doctest", "benches/chart.py", "benches/load.py"]) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_picture_of_a_run_wants_finished_items() {
    let folder = TempDir::new().expect("a temporary folder");
    let run = folder.path().to_str().expect("temporary folders are in UTF-8").to_string();
    let picture = folder.path().join("tree.svg");
    let draw = || offshoot(&["tree", &run, "--svg", picture.to_str().expect("temporary folders are in UTF-8")]);
    let missing = draw();
    assert!(String::from_utf8_lossy(&missing.stderr).contains("summary.json: cannot read"), "{missing:?}");
    let summary = r#"{"task": "t", "items": 0, "samples": 0, "levels": [],
                      "engine": {"kv_bytes_peak": 0, "kv_bytes_peak_unshared": 0}}"#;
    fs::write(folder.path().join("summary.json"), summary).expect("the folder is writable");
    let empty = draw();
    assert_eq!(empty.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&empty.stderr).contains("no item has finished"), "{empty:?}");
    assert!(!picture.exists());
}
