//! Reads a Python pickle of a single string, the format of LiveCodeBench's private tests. Any other pickle is refused,
//! because it could run code.

/// The string; `None` if the pickle contains anything else.
pub(crate) fn text(pickle: &[u8]) -> Option<&str> {
    let mut rest = pickle;
    let mut text = None;
    loop {
        let code = take(&mut rest, 1)?[0];
        match code {
            // PROTO, FRAME
            0x80 => drop(take(&mut rest, 1)?),
            0x95 => drop(take(&mut rest, 8)?),
            // SHORT_BINUNICODE, BINUNICODE, BINUNICODE8: a length of 1, 4 or 8 bytes, little-endian, and UTF-8.
            0x8c | b'X' | 0x8d if text.is_none() => {
                let width = match code {
                    0x8c => 1,
                    b'X' => 4,
                    _ => 8,
                };
                let length = take(&mut rest, width)?.iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
                text = Some(std::str::from_utf8(take(&mut rest, usize::try_from(length).ok()?)?).ok()?);
            }
            // MEMOIZE, BINPUT, LONG_BINPUT: no effect without a later reference.
            0x94 => {}
            b'q' => drop(take(&mut rest, 1)?),
            b'r' => drop(take(&mut rest, 4)?),
            // STOP
            b'.' => return text,
            _ => return None,
        }
    }
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(bytes)?;
    *rest = left;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `pickle.dumps("[1, \u00e9]", p)` of Python 3.11 for the protocols 2 and 4.
    #[test]
    fn texts_as_python_pickles_them() {
        assert_eq!(text(b"\x80\x02X\x07\x00\x00\x00[1, \xc3\xa9]q\x00."), Some("[1, é]"));
        let framed = b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07[1, \xc3\xa9]\x94.";
        assert_eq!(text(framed), Some("[1, é]"));
    }

    #[test]
    fn anything_else_is_refused() {
        // None; a call of os.system; two texts; a length past the end; nothing.
        for other in
            [&b"\x80\x04N."[..], b"cos\nsystem\n(S'true'\ntR.", b"\x8c\x01a\x8c\x01b.", b"X\xff\xff\xff\xff.", b""]
        {
            assert_eq!(text(other), None, "{other:?}");
        }
    }
}
