//! Turns the output of an untrusted program into a message for people: one short, printable line.

const MOST_CHARACTERS: usize = 300;

/// The last line that is not blank: an interpreter names the exception there.
pub(super) fn last_line(text: &[u8]) -> Option<String> {
    lines(text).last()
}

/// The first line that contains `error`, else the first that is not blank.
pub(super) fn first_error(text: &[u8]) -> Option<String> {
    lines(text).find(|line| line.to_ascii_lowercase().contains("error")).or_else(|| lines(text).next())
}

fn lines(text: &[u8]) -> impl Iterator<Item = String> {
    text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()).map(|line| {
        let line = String::from_utf8_lossy(&line[..line.len().min(4 * MOST_CHARACTERS)]);
        line.chars().filter(|c| !c.is_control()).take(MOST_CHARACTERS).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_short_printable_line() {
        let traceback = b"Traceback:\n  File x\nValueError: no\x1b[31m\n\n";
        assert_eq!(last_line(traceback).as_deref(), Some("ValueError: no[31m"));
        let compiler = b"main.cpp: In function f:\nmain.cpp:3:5: error: expected ';'\nmore\n";
        assert_eq!(first_error(compiler).as_deref(), Some("main.cpp:3:5: error: expected ';'"));
        assert_eq!(first_error(b"\n ld: no\n").as_deref(), Some("ld: no"));
        assert_eq!(last_line(b" \n"), None);
        assert_eq!(last_line(&[0xff; 1 << 20]).map(|line| line.chars().count()), Some(300));
    }
}
