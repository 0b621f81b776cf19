//! Answers that look alike and differ, by kind: the table `apart.txt`.

use crate::answer::latex::same;

/// The texts of each line of the table, with the line's number.
fn rows() -> impl Iterator<Item = (usize, Vec<&'static str>)> {
    let lines = include_str!("apart.txt").lines().enumerate().skip(1);
    let rows = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with("# "));
    rows.map(|(at, line)| (at + 1, line.split(" ~~ ").map(str::trim).collect()))
}

#[test]
fn answers_that_look_alike_are_not_the_same() {
    let (mut pairs, mut wrong) = (0, Vec::new());
    for (line, texts) in rows() {
        for (at, one) in texts.iter().enumerate() {
            assert!(same(one, one), "line {line}: {one}");
            for other in &texts[at + 1..] {
                if same(one, other) || same(other, one) {
                    wrong.push(format!("line {line}: {one} and {other}"));
                }
                pairs += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(pairs > 2_500, "{pairs}");
}
