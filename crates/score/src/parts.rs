//! Cuts the steps of an answer, as a search has them, into the parts for which a scorer has values.

/// A part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part<'t> {
    /// The number of the step, from 0.
    pub step: usize,
    pub text: &'t str,
}

/// The parts of all steps. A separator at the end of a step begins no further part. `keeps_empty`: whether empty parts
/// between separators count; if not, nor do parts of white space.
pub(crate) fn parts<'t, S: AsRef<str>>(steps: &'t [S], separator: &str, keeps_empty: bool) -> Vec<Part<'t>> {
    let counts = |text: &str| keeps_empty || !text.trim().is_empty();
    let of_step = |(step, text): (usize, &'t S)| {
        let text = text.as_ref();
        let text = text.strip_suffix(separator).unwrap_or(text);
        let pieces: Vec<&str> = match separator.is_empty() || text.is_empty() {
            // An empty step with or without a separator behind it.
            true => Some(text).filter(|text| !text.is_empty()).into_iter().collect(),
            false => text.split(separator).collect(),
        };
        pieces.into_iter().filter(|text| counts(text)).map(move |text| Part { step, text }).collect::<Vec<_>>()
    };
    steps.iter().enumerate().flat_map(of_step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts<'t>(steps: &'t [&'t str], separator: &str, keeps_empty: bool) -> Vec<(usize, &'t str)> {
        parts(steps, separator, keeps_empty).into_iter().map(|part| (part.step, part.text)).collect()
    }

    #[test]
    fn steps_are_cut_at_separators_and_at_their_own_ends() {
        assert_eq!(texts(&["a\n\nb\n\n", "c"], "\n\n", false), [(0, "a"), (0, "b"), (1, "c")]);
        assert_eq!(texts(&["a", "b"], "\n\n", false), [(0, "a"), (1, "b")]);
        assert_eq!(texts(&["a\n\n\nb"], "\n\n", false), [(0, "a"), (0, "\nb")]);
        assert_eq!(texts(&["a\n\n", "", " \n\n", "b"], "\n\n", false), [(0, "a"), (3, "b")]);
        assert_eq!(texts(&["ab", ""], "", false), [(0, "ab")]);
    }

    #[test]
    fn empty_lines_count_where_they_are_kept() {
        assert_eq!(texts(&["a\n\n", "b\n"], "\n", true), [(0, "a"), (0, ""), (1, "b")]);
        assert_eq!(texts(&["a\n\n", "b\n"], "\n", false), [(0, "a"), (1, "b")]);
        assert_eq!(texts(&["", "a"], "\n", true), [(1, "a")]);
    }
}
