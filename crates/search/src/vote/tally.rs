//! The votes of samples on an item, counted.

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

    /// Counts sample number `sample`, which stands for `copies` with this answer; `weight`: of all of them.
    pub fn add_copies(&mut self, sample: usize, value: Option<&str>, copies: u32, weight: f64) {
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
}
