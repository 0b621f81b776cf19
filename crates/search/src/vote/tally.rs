//! The votes of samples on an item, counted and weighed.

use crate::select::largest;

/// One answer's votes.
#[derive(Clone, Debug, PartialEq)]
pub struct Votes {
    /// The answer.
    pub value: String,
    /// Samples that gave it.
    pub count: u32,
    /// Sum of the samples' weights.
    pub weight: f64,
    /// The smallest index of a sample that gave it.
    pub first: usize,
}

/// The votes on one item; samples may arrive in any order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VoteTally {
    votes: Vec<Votes>,
    silent: u32,
}

impl VoteTally {
    /// Counts sample number `sample`, which gave this canonical answer or none.
    pub fn add(&mut self, sample: usize, value: Option<&str>) {
        self.add_copies(sample, value, 1, 1.0);
    }

    /// Counts sample number `sample`, which stands for `copies` with this answer; `weight`: of all of them, where NaN
    /// is none.
    pub fn add_copies(&mut self, sample: usize, value: Option<&str>, copies: u32, weight: f64) {
        let weight = if weight.is_nan() { 0.0 } else { weight };
        let Some(value) = value else {
            self.silent += copies;
            return;
        };
        match self.votes.iter_mut().find(|votes| votes.value == value) {
            Some(votes) => {
                votes.count += copies;
                votes.weight += weight;
                votes.first = votes.first.min(sample);
            }
            None => self.votes.push(Votes { value: value.to_string(), count: copies, weight, first: sample }),
        }
    }

    /// The answers and their votes, in the order in which they arrived first.
    pub fn votes(&self) -> &[Votes] {
        &self.votes
    }

    /// The answers with their numbers of votes, most votes first; of equal ones, the one with the smallest sample index
    /// is first.
    pub fn most_first(&self) -> Vec<(String, u32)> {
        let mut votes: Vec<&Votes> = self.votes.iter().collect();
        votes.sort_by_key(|votes| (std::cmp::Reverse(votes.count), votes.first));
        votes.into_iter().map(|votes| (votes.value.clone(), votes.count)).collect()
    }

    /// The answer with the most votes; of equal ones, the one with the smallest sample index.
    pub fn leader(&self) -> Option<&Votes> {
        self.leaders().first().copied()
    }

    /// The answers with the most votes, by their smallest sample index; several if they tie.
    pub fn leaders(&self) -> Vec<&Votes> {
        let most = self.first_two().0;
        let mut leaders: Vec<&Votes> = self.votes.iter().filter(|votes| votes.count == most).collect();
        leaders.sort_by_key(|votes| votes.first);
        leaders
    }

    /// The answers with the largest sum of weights, by their smallest sample index; several if the sums are equal but
    /// for rounding, whatever they are.
    pub fn heaviest(&self) -> Vec<&Votes> {
        let weights: Vec<f64> = self.votes.iter().map(|votes| votes.weight).collect();
        let mut heaviest: Vec<&Votes> = largest(&weights).into_iter().map(|ix| &self.votes[ix]).collect();
        heaviest.sort_by_key(|votes| votes.first);
        heaviest
    }

    /// The answers with the sums of their weights, the largest first; of equal ones, the one with the smallest sample
    /// index is first.
    pub fn heaviest_first(&self) -> Vec<(String, f64)> {
        let mut votes: Vec<&Votes> = self.votes.iter().collect();
        votes.sort_by(|a, b| b.weight.total_cmp(&a.weight).then(a.first.cmp(&b.first)));
        votes.into_iter().map(|votes| (votes.value.clone(), votes.weight)).collect()
    }

    /// The votes of the first and of the second answer.
    pub fn first_two(&self) -> (u32, u32) {
        let (mut first, mut second) = (0, 0);
        for votes in &self.votes {
            second = second.max(votes.count.min(first));
            first = first.max(votes.count);
        }
        (first, second)
    }

    /// Samples without an answer.
    pub fn without_answer(&self) -> u32 {
        self.silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_smallest_index_in_whatever_order_samples_arrive() {
        let mut tally = VoteTally::default();
        for (sample, value) in [(3, "b"), (2, "a"), (1, "b"), (0, "c"), (4, "a")] {
            tally.add(sample, Some(value));
        }
        assert_eq!(tally.leader().map(|v| (v.value.as_str(), v.count, v.first)), Some(("b", 2, 1)));
        assert_eq!(tally.leaders().iter().map(|v| v.value.as_str()).collect::<Vec<_>>(), ["b", "a"]);
    }

    fn weighed(votes: &[(&str, f64)]) -> VoteTally {
        let mut tally = VoteTally::default();
        for (sample, &(value, weight)) in votes.iter().enumerate() {
            tally.add_copies(sample, Some(value), 1, weight);
        }
        tally
    }

    #[test]
    fn weights_decide_and_equal_sums_tie() {
        let heaviest = |votes: &[(&str, f64)]| {
            weighed(votes).heaviest().into_iter().map(|votes| votes.value.clone()).collect::<Vec<_>>()
        };
        assert_eq!(heaviest(&[("a", 0.2), ("b", 0.5), ("a", 0.2)]), ["b"]);
        assert_eq!(heaviest(&[("a", 0.25), ("b", 0.5), ("a", 0.25)]), ["a", "b"]);
        assert_eq!(heaviest(&[("a", 0.3), ("b", 0.1), ("b", 0.2)]), ["a", "b"], "the sums differ by rounding");
        assert_eq!(heaviest(&[("a", 0.0), ("b", f64::NAN), ("c", 0.0)]), ["a", "b", "c"], "nothing tells them apart");
        assert_eq!(heaviest(&[("a", -1.0), ("b", -2.0)]), ["a"]);
        assert!(heaviest(&[]).is_empty());
        let sums = weighed(&[("a", 0.25), ("b", 0.5), ("a", 0.5), ("c", 0.5)]).heaviest_first();
        assert_eq!(sums, [("a".to_owned(), 0.75), ("b".to_owned(), 0.5), ("c".to_owned(), 0.5)]);
    }
}
