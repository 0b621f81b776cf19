//! How the rows of a pass are divided into groups, each of which a kernel multiplies at once.

/// Rows `first .. first + rows` of a pass, multiplied by one kernel call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowGroup {
    pub first: usize,
    pub rows: usize,
}

/// Divides `rows` rows into the fewest groups of at most `most` rows, of nearly equal size.
pub fn groups(rows: usize, most: usize) -> impl ExactSizeIterator<Item = RowGroup> {
    unit_groups(rows, most, 1)
}

/// Divides `rows` rows into groups as [`groups`] does that begin at multiples of `unit`, of which `most` is one.
pub fn unit_groups(rows: usize, most: usize, unit: usize) -> impl ExactSizeIterator<Item = RowGroup> {
    let (count, units) = (rows.div_ceil(most), rows.div_ceil(unit));
    (0..count).map(move |g| {
        let first = g * units / count * unit;
        RowGroup { first, rows: rows.min((g + 1) * units / count * unit) - first }
    })
}
