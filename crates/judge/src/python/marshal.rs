//! Validates data sent from a candidate to the checker: Python's marshal format, version 2, restricted to plain data.
//! Python itself decodes it afterwards, so it must contain neither code nor references, nor lengths beyond its end.

/// The deepest nesting of values that is accepted; marshal itself reads 2,000 levels.
const DEEPEST: usize = 1500;

/// A container with values still to be read.
enum OpenContainer {
    Values { left: usize },
    Key,
    Value,
}

/// Checks that `bytes` are one plain value; the error says why not.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let mut rest = bytes;
    let mut open: Vec<OpenContainer> = Vec::new();
    // An Ellipsis is allowed only as the first element of a tuple.
    let mut at_head = false;
    loop {
        let code = take(&mut rest, 1)?[0];
        let head = std::mem::take(&mut at_head);
        let mut opened = None;
        match code {
            b'N' | b'T' | b'F' => {}
            b'.' if head => {}
            b'i' => _ = take(&mut rest, 4)?,
            b'g' => _ = take(&mut rest, 8)?,
            b'y' => _ = take(&mut rest, 16)?,
            b'l' => {
                let digits = i32::from_le_bytes(four(&mut rest)?).unsigned_abs() as usize;
                take(&mut rest, digits.saturating_mul(2))?;
            }
            b's' | b'u' => {
                let length = length(&mut rest)?;
                take(&mut rest, length)?;
            }
            b'(' | b'[' | b'<' | b'>' => {
                let left = length(&mut rest)?;
                if left > rest.len() {
                    return Err("ends too early".to_string());
                }
                at_head = code == b'(' && left > 0;
                opened = Some(OpenContainer::Values { left });
            }
            b'{' => opened = Some(OpenContainer::Key),
            b'0' if matches!(open.last(), Some(OpenContainer::Key)) => _ = open.pop(),
            other => return Err(format!("has the type code {other}")),
        }
        if code != b'0'
            && let Some(state @ (OpenContainer::Key | OpenContainer::Value)) = open.last_mut()
        {
            *state = if matches!(state, OpenContainer::Key) { OpenContainer::Value } else { OpenContainer::Key };
        }
        if let Some(container) = opened {
            if open.len() == DEEPEST {
                return Err(format!("is nested deeper than {DEEPEST} levels"));
            }
            open.push(container);
        }
        while matches!(open.last(), Some(OpenContainer::Values { left: 0 })) {
            open.pop();
        }
        match open.last_mut() {
            Some(OpenContainer::Values { left }) => *left -= 1,
            Some(OpenContainer::Key | OpenContainer::Value) => {}
            None if rest.is_empty() => return Ok(()),
            None => return Err("has trailing bytes".to_string()),
        }
    }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], String> {
    let (taken, left) = rest.split_at_checked(count).ok_or("ends too early")?;
    *rest = left;
    Ok(taken)
}

fn four(rest: &mut &[u8]) -> Result<[u8; 4], String> {
    Ok(take(rest, 4)?.try_into().expect("four bytes were taken"))
}

fn length(rest: &mut &[u8]) -> Result<usize, String> {
    usize::try_from(i32::from_le_bytes(four(rest)?)).map_err(|_| "has a negative length".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(count: i32, items: &[u8]) -> Vec<u8> {
        [b"[", count.to_le_bytes().as_slice(), items].concat()
    }

    #[test]
    fn plain_values_pass() {
        for plain in [
            b"N".to_vec(),
            b"i\x01\0\0\0".to_vec(),
            b"l\xfe\xff\xff\xff\x01\0\x01\0".to_vec(),
            b"u\x02\0\0\0ab".to_vec(),
            list(0, b""),
            list(2, b"N[\0\0\0\0"),
            b"{NT(\x02\0\0\0.NF0".to_vec(),
            b"{0".to_vec(),
            b"(\x01\0\0\0{0".to_vec(),
            list(2, b"{N{TF00>\x01\0\0\0g12345678"),
        ] {
            assert_eq!(check(&plain), Ok(()), "{plain:?}");
        }
    }

    #[test]
    fn nothing_else_does() {
        for other in [
            b"".to_vec(),
            b"NN".to_vec(),
            b".".to_vec(),
            b"0".to_vec(),
            b"c\0\0\0\0".to_vec(),
            b"\xe9\0\0\0\0".to_vec(),
            b"r\0\0\0\0".to_vec(),
            b"S".to_vec(),
            b"{N0".to_vec(),
            b"{NN".to_vec(),
            list(1, b"."),
            list(2, b"N"),
            list(i32::MAX, b"N"),
            list(-1, b"N"),
            b"s\xff\xff\xff\x7f".to_vec(),
            b"l\0\0\0\x80".to_vec(),
            b"(\x02\0\0\0N.".to_vec(),
            b"[\x02\0\0\0(\0\0\0\0.".to_vec(),
        ] {
            assert!(check(&other).is_err(), "{other:?}");
        }
        let deep = [b"[\x01\0\0\0".repeat(DEEPEST + 1), b"N".to_vec()].concat();
        assert!(check(&deep).unwrap_err().contains("nested"));
    }
}
