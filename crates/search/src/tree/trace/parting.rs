//! Where the texts of siblings part, so that a list of them shows what differs.

use std::collections::BTreeSet;

use super::Trace;

impl Trace {
    /// For each node, the number of characters at the beginning of its text that most of its siblings have, too; 0 if
    /// that is little, or if its own text begins otherwise.
    pub fn parts_at(&self) -> Vec<usize> {
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for node in &self.nodes {
            if let Some(parent) = node.parent {
                children[parent].push(node.id);
            }
        }
        let mut parts_at = vec![0; self.nodes.len()];
        for siblings in children {
            let texts: Vec<&str> = siblings.iter().map(|&node| self.nodes[node].text.as_str()).collect();
            let common = common_beginning(&texts);
            for node in siblings.into_iter().filter(|&node| self.nodes[node].text.starts_with(common)) {
                parts_at[node] = common.chars().count();
            }
        }
        parts_at
    }
}

/// Shorter beginnings are shown.
const LEAST_COMMON: usize = 12;

/// The longest beginning of whole words that more than half of the distinct `texts` have in common and that ends before
/// all of them do; empty if it is short.
fn common_beginning<'t>(texts: &[&'t str]) -> &'t str {
    let texts: BTreeSet<&str> = texts.iter().copied().collect();
    let mut group: Vec<&str> = texts.iter().copied().collect();
    let mut end = 0;
    loop {
        let mut next: Vec<(char, usize)> = Vec::new();
        for c in group.iter().filter_map(|text| text[end..].chars().next()) {
            match next.iter_mut().find(|(known, _)| *known == c) {
                Some((_, times)) => *times += 1,
                None => next.push((c, 1)),
            }
        }
        let Some(&(c, _)) = next.iter().find(|(_, times)| 2 * times > texts.len()) else { break };
        group.retain(|text| text[end..].starts_with(c));
        end += c.len_utf8();
    }
    let Some(first) = group.first().filter(|first| texts.len() > 1 && end > 0 && first.len() > end) else { return "" };
    let words = first[..end].rfind(char::is_whitespace).map_or(0, |at| at + 1);
    if first[..words.min(end)].chars().count() < LEAST_COMMON { "" } else { first.get(..words).unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_part_behind_what_most_of_them_begin_with() {
        let votes = ["There are 3 * 4 = 12 cups.", "There are 3 * 4 = 7 cups.", "There are 3 + 4 cups.", "No cups."];
        assert_eq!(common_beginning(&votes), "There are 3 ");
        assert_eq!(common_beginning(&["the same twice a", "the same twice a", "the same twice b"]), "the same twice ");
        assert_eq!(common_beginning(&["short a", "short b"]), "", "a few letters are no burden");
        assert_eq!(common_beginning(&["one text for all", "one text for all"]), "", "nothing would be left");
        assert_eq!(common_beginning(&["only one text of it"]), "");
        assert_eq!(common_beginning(&[]), "");
    }
}
