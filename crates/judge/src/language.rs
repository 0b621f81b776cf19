//! The language of a candidate program. Data only: the judge finds and runs interpreters and compilers.
#![warn(missing_docs)]

use std::path::PathBuf;

use serde::Deserialize;

use offshoot_core::error::{Error, Result};

/// The language of a candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Language {
    /// Python 3.
    #[default]
    Python,
    /// C++17.
    Cpp,
    /// Any other, by its commands.
    Command(Commands),
}

/// A language defined by commands: the program's text is written to `file`, `compile` (if any) is run once, `run` for
/// each test, all in the same folder. The first word of a command is a program on the search path or a path in the
/// folder.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commands {
    /// The name of the file that the program is written to.
    pub file: String,
    /// Compiles it; `None`: there is nothing to compile.
    #[serde(default)]
    pub compile: Option<Vec<String>>,
    /// Runs it.
    pub run: Vec<String>,
    /// Absolute paths of files and folders that these commands need in addition to the system's programs and libraries.
    #[serde(default)]
    pub readable: Vec<PathBuf>,
}

/// Languages of usual toolchains: a name, the commands, and a program that adds the two numbers of a line.
pub const EXAMPLES: [(&str, &str, &str); 6] = [
    (
        "C",
        r#"{"file": "main.c", "compile": ["gcc", "-O2", "-o", "main", "main.c"], "run": ["./main"]}"#,
        "#include <stdio.h>\nint main() { int a, b; scanf(\"%d %d\", &a, &b); printf(\"%d\\n\", a + b); }\n",
    ),
    (
        "C by clang",
        r#"{"file": "main.c", "compile": ["clang", "-O2", "-o", "main", "main.c"], "run": ["./main"]}"#,
        "#include <stdio.h>\nint main() { int a, b; scanf(\"%d %d\", &a, &b); printf(\"%d\\n\", a + b); }\n",
    ),
    (
        "Rust",
        r#"{"file": "main.rs", "compile": ["rustc", "main.rs"], "run": ["./main"]}"#,
        "fn main() {\n    let mut line = String::new();\n    std::io::stdin().read_line(&mut line).unwrap();\n    \
         println!(\"{}\", line.split_whitespace().map(|x| x.parse::<i32>().unwrap()).sum::<i32>());\n}\n",
    ),
    (
        "Java",
        r#"{"file": "Main.java", "compile": ["javac", "Main.java"], "run": ["java", "Main"]}"#,
        "import java.util.Scanner;\nclass Main {\n    public static void main(String[] arguments) {\n        \
         Scanner in = new Scanner(System.in);\n        System.out.println(in.nextInt() + in.nextInt());\n    }\n}\n",
    ),
    (
        "Go",
        r#"{"file": "main.go", "compile": ["go", "build", "main.go"], "run": ["./main"]}"#,
        "package main\n\nimport \"fmt\"\n\n\
         func main() {\n\tvar a, b int\n\tfmt.Scan(&a, &b)\n\tfmt.Println(a + b)\n}\n",
    ),
    (
        "JavaScript",
        r#"{"file": "main.js", "run": ["node", "main.js"]}"#,
        "const numbers = require('fs').readFileSync(0, 'utf8').trim().split(' ').map(Number);\n\
         console.log(numbers[0] + numbers[1]);\n",
    ),
];

const EXPECTED: &str =
    "python, cpp, or {\"file\": NAME, \"compile\": [WORD, ...], \"run\": [WORD, ...], \"readable\": [PATH, ...]}";

impl Language {
    /// Parses a language's name, or its commands as JSON; `what` names the option or field for an error.
    pub fn parse(what: &str, text: &str) -> Result<Language> {
        let wrong = |found: String| Error::value(what, EXPECTED, found);
        match text {
            "python" | "python3" => Ok(Language::Python),
            "cpp" | "c++" => Ok(Language::Cpp),
            json if json.trim_start().starts_with('{') => {
                let commands: Commands = serde_json::from_str(json).map_err(|error| wrong(error.to_string()))?;
                commands.check().map_err(wrong)?;
                Ok(Language::Command(commands))
            }
            other => Err(wrong(other.to_string())),
        }
    }
}

impl Commands {
    fn check(&self) -> Result<(), String> {
        let plain = !matches!(self.file.as_str(), "" | "." | "..") && !self.file.contains(['/', '\0']);
        let words = |command: &[String]| !command.is_empty() && command.iter().all(|word| !word.contains('\0'));
        match () {
            () if !plain => Err(format!("the file name \"{}\"", self.file)),
            () if !words(&self.run) => Err("no word in `run`".to_string()),
            () if self.compile.as_ref().is_some_and(|command| !words(command)) => {
                Err("no word in `compile`".to_string())
            }
            () if self.readable.iter().any(|path| path.is_relative()) => {
                Err("a relative path in `readable`".to_string())
            }
            () => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_by_name_and_by_commands() {
        assert_eq!(Language::parse("language", "python").unwrap(), Language::Python);
        assert_eq!(Language::parse("language", "cpp").unwrap(), Language::Cpp);
        let rust = r#"{"file": "main.rs", "compile": ["rustc", "main.rs"], "run": ["./main"]}"#;
        let Language::Command(commands) = Language::parse("language", rust).unwrap() else { panic!("commands") };
        assert_eq!((commands.file.as_str(), commands.run.as_slice()), ("main.rs", &["./main".to_string()][..]));
        for (text, found) in [
            ("java", "java"),
            (r#"{"file": "../x", "run": ["x"]}"#, "the file name \"../x\""),
            (r#"{"file": "x", "run": []}"#, "no word in `run`"),
            (r#"{"file": "x"}"#, "missing field `run`"),
        ] {
            let error = Language::parse("language", text).unwrap_err().to_string();
            assert!(error.starts_with("language: expected python, cpp, or") && error.contains(found), "{error}");
        }
    }
}
