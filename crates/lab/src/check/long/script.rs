//! Generates what happens to the tree of a long decode, round by round: which branches are dropped, forked and started,
//! and how many tokens each samples. It is independent of the engine: every engine that runs the same script has the
//! same branches with the same tokens, whatever its steps.

use offshoot_cases::CheckEffort;
use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;

/// Vocabulary of the model: a power of two, so that a random number determines its token without rounding.
pub const VOCAB: usize = 256;

/// A branch of the script, numbered in order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BranchName(pub u32);

#[derive(Clone, Debug)]
pub enum ScriptAction {
    Root {
        name: BranchName,
        text: Vec<TokenId>,
    },
    /// `at` is idle.
    Fork {
        at: BranchName,
        name: BranchName,
    },
    /// Samples `tokens` tokens, the first at `position`.
    Draw {
        name: BranchName,
        position: u32,
        tokens: u32,
    },
    /// Drops the branch, while it runs or later: pages that only it holds are free at once.
    Prune(BranchName),
    /// Drops an idle branch: its pages stay cached until others need them.
    Release(BranchName),
}

/// Actions on branches that run together.
pub struct ScriptRound {
    /// The branch with the most tokens of those that start together.
    pub leader: BranchName,
    /// Each action with the number of tokens that the leader has by then, in rising order; fewer than the leader
    /// samples in total.
    pub orders: Vec<(u32, ScriptAction)>,
}

/// How large a script is.
#[derive(Clone, Copy)]
pub struct ScriptSizes {
    /// Fewest steps.
    pub steps: u32,
    /// Fewest and most branches that start a round together.
    rows: (u32, u32),
    /// Tokens that all prompts share, and most own tokens of each.
    header: u32,
    own: u32,
    /// Longer branches are not continued.
    longest: u32,
    /// Fewest and most tokens of the leaders of short, usual and long rounds.
    lengths: [(u32, u32); 3],
    /// Size of the pool in tokens: fewer than are computed, so that pages are reused.
    pub pool: usize,
}

impl ScriptSizes {
    pub fn of(effort: CheckEffort) -> Self {
        match effort {
            CheckEffort::Quick => ScriptSizes {
                steps: 300,
                rows: (4, 9),
                header: 70,
                own: 40,
                longest: 250,
                lengths: [(2, 5), (9, 20), (35, 50)],
                pool: 1600,
            },
            CheckEffort::Full => ScriptSizes {
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

/// Counts of the actions.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScriptCounts {
    /// Forks, and those among them while branches run.
    pub forks: u32,
    pub late_forks: u32,
    /// Prompts that start while branches run.
    pub late_roots: u32,
    /// Dropped branches, and those among them while others run.
    pub prunes: u32,
    pub late_prunes: u32,
}

/// An idle branch, and its length in tokens.
#[derive(Clone, Copy)]
struct Resting {
    name: BranchName,
    tokens: u32,
}

pub struct LongScript {
    sizes: ScriptSizes,
    dice: Dice,
    header: Vec<TokenId>,
    named: u32,
    /// Fewest steps of the rounds so far.
    steps: u32,
    /// Branches at the end of the previous round, and the branches that they were forked from.
    live: Vec<Resting>,
    parents: Vec<Resting>,
    pub counts: ScriptCounts,
}

impl LongScript {
    pub fn new(sizes: ScriptSizes, seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let header = dice.text(sizes.header as usize, VOCAB);
        let (live, parents) = (Vec::new(), Vec::new());
        LongScript { sizes, dice, header, named: 0, steps: 0, live, parents, counts: ScriptCounts::default() }
    }

    /// The next round; `None` once the steps are done.
    pub fn next_round(&mut self) -> Option<ScriptRound> {
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
        Some(ScriptRound { leader, orders })
    }

    /// Keeps a few branches of the previous round, from which those of this round are forked.
    fn clear_away(&mut self, length: u32, orders: &mut Vec<(u32, ScriptAction)>) {
        orders.extend(self.parents.drain(..).map(|parent| (0, ScriptAction::Release(parent.name))));
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

    /// Starts the branches of the round, at least one per parent. Returns the one with `length` tokens.
    fn branch_out(&mut self, length: u32, orders: &mut Vec<(u32, ScriptAction)>) -> BranchName {
        let rows = self.dice.within(self.sizes.rows.0, self.sizes.rows.1).max(small(self.parents.len()));
        for number in 0..rows as usize {
            let parent = self.parents.get(number).copied().unwrap_or_else(|| self.dice.pick(&self.parents));
            let tokens = if number > 0 && self.dice.one_in(3) { self.dice.within(1, length) } else { length };
            self.fork(parent, tokens, 0, orders);
        }
        self.live[0].name
    }

    /// While others run, adds a sibling of a branch, starts a prompt, or drops a branch.
    fn come_between(&mut self, leader: BranchName, moment: u32, length: u32, orders: &mut Vec<(u32, ScriptAction)>) {
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
                // A branch that starts later cannot be dropped yet.
                let began = orders.iter().any(|(moment, order)| {
                    *moment == 0 && matches!(order, ScriptAction::Draw { name, .. } if *name == gone)
                });
                if gone != leader && began {
                    self.live.retain(|branch| branch.name != gone);
                    self.prune(gone, moment, orders);
                    self.counts.late_prunes += 1;
                }
            }
        }
    }

    fn name(&mut self) -> BranchName {
        self.named += 1;
        BranchName(self.named - 1)
    }

    fn root(&mut self, moment: u32, orders: &mut Vec<(u32, ScriptAction)>) -> Resting {
        let name = self.name();
        let own = self.dice.within(1, self.sizes.own);
        let text = [self.header.clone(), self.dice.text(own as usize, VOCAB)].concat();
        let tokens = small(text.len());
        orders.push((moment, ScriptAction::Root { name, text }));
        Resting { name, tokens }
    }

    fn fork(&mut self, at: Resting, tokens: u32, moment: u32, orders: &mut Vec<(u32, ScriptAction)>) {
        let name = self.name();
        orders.push((moment, ScriptAction::Fork { at: at.name, name }));
        self.draw(Resting { name, ..at }, tokens, moment, orders);
        self.counts.forks += 1;
    }

    fn draw(&mut self, branch: Resting, tokens: u32, moment: u32, orders: &mut Vec<(u32, ScriptAction)>) {
        let Resting { name, tokens: position } = branch;
        orders.push((moment, ScriptAction::Draw { name, position, tokens }));
        self.live.push(Resting { name, tokens: position + tokens });
    }

    fn prune(&mut self, gone: BranchName, moment: u32, orders: &mut Vec<(u32, ScriptAction)>) {
        orders.push((moment, ScriptAction::Prune(gone)));
        self.counts.prunes += 1;
    }
}

fn small(len: usize) -> u32 {
    u32::try_from(len).expect("a few branches of some hundred tokens")
}
