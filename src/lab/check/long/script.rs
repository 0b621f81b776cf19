//! What becomes of the tree of a long decode, round by round: which branches are dropped, forked and begun, and how far each
//! draws. It knows no engine: whoever plays the same script has the same branches with the same tokens, however its steps fall.

use crate::ids::TokenId;
use crate::lab::check::device::Effort;
use crate::lab::check::dice::Dice;

/// Tokens of the model: a power of two, so that a uniform names its token without rounding.
pub const VOCAB: usize = 256;

/// A branch of the script, by how many were made before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub u32);

#[derive(Clone, Debug)]
pub enum Order {
    Root {
        name: Name,
        text: Vec<TokenId>,
    },
    /// `at` rests.
    Fork {
        at: Name,
        name: Name,
    },
    /// Draws so many tokens, the first of which stands at `position`.
    Draw {
        name: Name,
        position: u32,
        tokens: u32,
    },
    /// Drops it, while it draws or later: pages that nobody else holds are free at once.
    Prune(Name),
    /// Drops a branch that rests: its pages stay until others need them.
    Release(Name),
}

/// Orders for branches that draw together.
pub struct Round {
    /// It draws the most tokens of those that begin together.
    pub leader: Name,
    /// Each with how many tokens the leader has drawn by then, in rising order; fewer than it draws in all.
    pub orders: Vec<(u32, Order)>,
}

/// How large a script is.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Taken at least.
    pub steps: u32,
    /// Branches that begin a round together, at least and at most.
    rows: (u32, u32),
    /// Tokens that all prompts have in common, and the most that each has of its own.
    header: u32,
    own: u32,
    /// A branch longer than this is not gone on with.
    longest: u32,
    /// Tokens of the leaders of short, usual and long rounds, at least and at most.
    lengths: [(u32, u32); 3],
    /// Tokens for which there are pages: fewer than are computed, so that pages go from branch to branch.
    pub pool: usize,
}

impl Sizes {
    pub fn of(effort: Effort) -> Self {
        match effort {
            Effort::Quick => Sizes {
                steps: 300,
                rows: (4, 9),
                header: 70,
                own: 40,
                longest: 250,
                lengths: [(2, 5), (9, 20), (35, 50)],
                pool: 1600,
            },
            Effort::Full => Sizes {
                steps: 2000,
                rows: (6, 22),
                header: 150,
                own: 120,
                longest: 700,
                lengths: [(2, 6), (15, 60), (80, 200)],
                pool: 12_000,
            },
        }
    }
}

/// What the orders came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Forks, and of these the ones beside branches that draw.
    pub forks: u32,
    pub late_forks: u32,
    /// Prompts that begin beside branches that draw.
    pub late_roots: u32,
    /// Branches that are dropped where they end, and while others draw beside them.
    pub prunes: u32,
    pub late_prunes: u32,
}

/// A branch that rests, and how many tokens it has.
#[derive(Clone, Copy)]
struct Resting {
    name: Name,
    tokens: u32,
}

pub struct Script {
    sizes: Sizes,
    dice: Dice,
    header: Vec<TokenId>,
    named: u32,
    /// Steps that the rounds take at least.
    steps: u32,
    /// Where the round before ended, and what its branches were forked from.
    live: Vec<Resting>,
    parents: Vec<Resting>,
    pub counts: Counts,
}

impl Script {
    pub fn new(sizes: Sizes, seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let header = dice.text(sizes.header as usize, VOCAB);
        let (live, parents) = (Vec::new(), Vec::new());
        Script { sizes, dice, header, named: 0, steps: 0, live, parents, counts: Counts::default() }
    }

    /// `None` once the steps are taken.
    pub fn next_round(&mut self) -> Option<Round> {
        if self.steps >= self.sizes.steps {
            return None;
        }
        let (least, most) = self.dice.pick(&self.sizes.lengths);
        let length = self.dice.within(least, most);
        self.steps += length;
        let mut orders = Vec::new();
        self.clear_away(length, &mut orders);
        let leader = self.branch_out(length, &mut orders);
        for _ in 0..self.dice.within(0, 4).min(length / 4) {
            let moment = self.dice.within(1, length - 1);
            self.come_between(leader, moment, length, &mut orders);
        }
        orders.sort_by_key(|(moment, _)| *moment);
        Some(Round { leader, orders })
    }

    /// Leaves a few of the branches of the round before, from which those of this one are forked.
    fn clear_away(&mut self, length: u32, orders: &mut Vec<(u32, Order)>) {
        orders.extend(self.parents.drain(..).map(|parent| (0, Order::Release(parent.name))));
        let mut kept = std::mem::take(&mut self.live);
        let most_kept = self.dice.within(1, 5) as usize;
        while kept.len() > most_kept {
            let gone = kept.swap_remove(self.dice.within(1, small(kept.len())) as usize - 1);
            self.prune(gone.name, 0, orders);
        }
        let (kept, gone): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|branch| branch.tokens + length <= self.sizes.longest);
        gone.iter().for_each(|branch| self.prune(branch.name, 0, orders));
        self.parents = kept;
        if self.parents.is_empty() || self.dice.one_in(4) {
            let root = self.root(0, orders);
            self.parents.push(root);
        }
    }

    /// The branches that begin together, at least one for each parent. Returns the one that draws all of `length`.
    fn branch_out(&mut self, length: u32, orders: &mut Vec<(u32, Order)>) -> Name {
        let rows = self.dice.within(self.sizes.rows.0, self.sizes.rows.1).max(small(self.parents.len()));
        for number in 0..rows as usize {
            let parent = self.parents.get(number).copied().unwrap_or_else(|| self.dice.pick(&self.parents));
            let tokens = if number > 0 && self.dice.one_in(3) { self.dice.within(1, length) } else { length };
            self.fork(parent, tokens, 0, orders);
        }
        self.live[0].name
    }

    /// While others draw, a branch gets a sibling, a prompt begins, or a branch is dropped.
    fn come_between(&mut self, leader: Name, moment: u32, length: u32, orders: &mut Vec<(u32, Order)>) {
        let tokens = self.dice.within(1, length - moment);
        match self.dice.within(0, 2) {
            0 => {
                let parent = self.dice.pick(&self.parents);
                self.fork(parent, tokens, moment, orders);
                self.counts.late_forks += 1;
            }
            1 => {
                let root = self.root(moment, orders);
                self.draw(root, tokens, moment, orders);
                self.counts.late_roots += 1;
            }
            _ => {
                let gone = self.dice.pick(&self.live).name;
                // Whoever begins later could not be dropped now.
                let began = orders
                    .iter()
                    .any(|(moment, order)| *moment == 0 && matches!(order, Order::Draw { name, .. } if *name == gone));
                if gone != leader && began {
                    self.live.retain(|branch| branch.name != gone);
                    self.prune(gone, moment, orders);
                    self.counts.late_prunes += 1;
                }
            }
        }
    }

    fn name(&mut self) -> Name {
        self.named += 1;
        Name(self.named - 1)
    }

    fn root(&mut self, moment: u32, orders: &mut Vec<(u32, Order)>) -> Resting {
        let name = self.name();
        let own = self.dice.within(1, self.sizes.own);
        let text = [self.header.clone(), self.dice.text(own as usize, VOCAB)].concat();
        let tokens = small(text.len());
        orders.push((moment, Order::Root { name, text }));
        Resting { name, tokens }
    }

    fn fork(&mut self, at: Resting, tokens: u32, moment: u32, orders: &mut Vec<(u32, Order)>) {
        let name = self.name();
        orders.push((moment, Order::Fork { at: at.name, name }));
        self.draw(Resting { name, ..at }, tokens, moment, orders);
        self.counts.forks += 1;
    }

    fn draw(&mut self, branch: Resting, tokens: u32, moment: u32, orders: &mut Vec<(u32, Order)>) {
        let Resting { name, tokens: position } = branch;
        orders.push((moment, Order::Draw { name, position, tokens }));
        self.live.push(Resting { name, tokens: position + tokens });
    }

    fn prune(&mut self, gone: Name, moment: u32, orders: &mut Vec<(u32, Order)>) {
        orders.push((moment, Order::Prune(gone)));
        self.counts.prunes += 1;
    }
}

fn small(len: usize) -> u32 {
    u32::try_from(len).expect("a few branches of some hundred tokens")
}
