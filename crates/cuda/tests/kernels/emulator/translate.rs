//! A kernel's source as C++ that `cuda.hpp` understands: shared variables are asked for by name, and every function
//! that wraps an instruction calls the emulator's function of its name.

use std::fmt::Write;
use std::sync::LazyLock;

use regex::Regex;

pub fn pattern(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a sound pattern")
}

/// The C++ of a kernel's source or header.
pub fn translated(source: &str) -> String {
    static TYPED: LazyLock<Regex> = LazyLock::new(|| pattern(r"extern __shared__ (float|double) (\w+)\[\];"));
    static DYNAMIC: LazyLock<Regex> = LazyLock::new(|| pattern(r"extern __shared__ [^;]*\b(\w+)\[\];"));
    static ARRAY: LazyLock<Regex> = LazyLock::new(|| pattern(r"__shared__ (\w+) (\w+)\[([^\]]+)\];"));
    static SINGLE: LazyLock<Regex> = LazyLock::new(|| pattern(r"__shared__ (\w+) (\w+);"));
    let source = without_instructions(source);
    let source = TYPED.replace_all(&source, "$1* $2 = reinterpret_cast<$1*>(emulated::dynamic_shared());");
    let source = DYNAMIC.replace_all(&source, "unsigned char* $1 = emulated::dynamic_shared();");
    let source = ARRAY.replace_all(&source, r#"auto& $2 = emulated::shared_variable<$1[$3]>("$2");"#);
    SINGLE.replace_all(&source, r#"auto& $2 = emulated::shared_variable<$1>("$2");"#).into_owned()
}

/// Every function whose body holds an instruction calls the emulator's function of that name instead.
fn without_instructions(source: &str) -> String {
    let mut translated = String::new();
    let (mut depth, mut head, mut open) = (0, 0, 0);
    let mut skip = 0;
    let bytes = source.as_bytes();
    for at in 0..bytes.len() {
        if at < skip {
            continue;
        }
        match bytes[at] {
            b'"' => skip = end_of_string(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'/') => skip = end_of_line(bytes, at),
            b'#' if depth == 0 => {
                skip = end_of_line(bytes, at);
                translated.push_str(&source[head..skip]);
                head = skip;
            }
            b'{' => {
                if depth == 0 {
                    open = at;
                }
                depth += 1;
            }
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    let (signature, body) = (&source[head..open], &source[open..=at]);
                    translated.push_str(signature);
                    match body.contains("asm") && !signature.contains("struct ") {
                        true => translated.push_str(&call(signature)),
                        false => translated.push_str(body),
                    }
                    head = at + 1;
                }
            }
            b';' if depth == 0 => {
                translated.push_str(&source[head..=at]);
                head = at + 1;
            }
            _ => {}
        }
    }
    translated.push_str(&source[head..]);
    translated
}

fn end_of_string(bytes: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while bytes[end] != b'"' {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    end + 1
}

/// Behind the line's end, and those of lines that it goes on in.
fn end_of_line(bytes: &[u8], at: usize) -> usize {
    let mut end = at;
    while end < bytes.len() && (bytes[end] != b'\n' || bytes[end - 1] == b'\\') {
        end += 1;
    }
    end
}

/// The body that calls the emulator's function with the arguments of `signature`.
fn call(signature: &str) -> String {
    static NAME: LazyLock<Regex> = LazyLock::new(|| pattern(r"(\w+)(<[\w, ]+>)?\("));
    static TEMPLATE: LazyLock<Regex> = LazyLock::new(|| pattern(r"template <((?:class|int|unsigned) \w+)>"));
    static WORD: LazyLock<Regex> = LazyLock::new(|| pattern(r"\w+"));
    // Comments before the function are no part of it.
    let code: Vec<&str> = signature.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let name = NAME.captures(&code).unwrap_or_else(|| panic!("no function: {signature}"));
    let (mut call, list) =
        (format!("{{ return emulated::{}", &name[1]), &code[name.get(0).expect("all of it").end()..]);
    match (name.get(2), TEMPLATE.captures(&code)) {
        (Some(of), _) => call.push_str(of.as_str()),
        (None, Some(parameter)) => {
            let parameter = WORD.find_iter(&parameter[1]).last().expect("a name").as_str().to_owned();
            write!(call, "<{parameter}>").expect("writing to a string cannot fail");
        }
        (None, None) => {}
    }
    let list = list.trim_end().strip_suffix(')').expect("a list of parameters");
    let names = list.split(',').filter(|parameter| !parameter.trim().is_empty()).map(|parameter| {
        let declared = parameter.split('[').next().expect("the part before it");
        WORD.find_iter(declared).last().expect("a name").as_str()
    });
    write!(call, "({}); }}", names.collect::<Vec<_>>().join(", ")).expect("writing to a string cannot fail");
    call
}
