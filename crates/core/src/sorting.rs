//! Sorting by numbers. What decides the order is compiled once for values of all types; of each type only the swaps
//! are.

/// Sorts `items` by a number; those with the same number keep their order.
pub fn sort_by_number<T>(items: &mut [T], number: impl Fn(&T) -> u64) {
    let numbers: Vec<u64> = items.iter().map(number).collect();
    for (one, other) in swaps(&numbers) {
        items.swap(one, other);
    }
}

/// The swaps that sort values of these numbers.
fn swaps(numbers: &[u64]) -> Vec<(usize, usize)> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by_key(|&at| numbers[at]);
    let mut place = vec![0; order.len()];
    order.into_iter().enumerate().for_each(|(to, from)| place[from] = to);
    let mut swaps = Vec::new();
    for at in 0..place.len() {
        while place[at] != at {
            let to = place[at];
            swaps.push((at, to));
            place.swap(at, to);
        }
    }
    swaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_keep_their_order() {
        let mut dice = crate::dice::Dice::new(1);
        for length in 0..40 {
            let mut items: Vec<(u64, usize)> = (0..length).map(|place| (dice.below(8) as u64, place)).collect();
            let mut expected = items.clone();
            expected.sort_by_key(|&(number, _)| number);
            sort_by_number(&mut items, |&(number, _)| number);
            assert_eq!(items, expected);
        }
    }
}
