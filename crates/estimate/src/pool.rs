//! The memory for keys and values on a simulated device, and how much of a job fits into it at once.
//!
//! Pages are counted as in the engine's prefix tree: the first run that follows another continues in its last page, if
//! that has room; all others start with a new page. In groups with a window a computed prompt keeps the pages of the
//! window before its end, and a sample those that its last tokens read: the others are freed when pages are short.
//!
//! Prompts are taken depth-first with all of their samples at the expected length, each shared run counted once, until
//! the pool is full: that is a wave. The next wave keeps what it shares with the previous one. The engine admits a
//! branch as soon as another has finished; waves tell how often the pool is filled, not when branches start and end.

use serde::Serialize;

use super::job::PlannedJob;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::{bytes, count};
use offshoot_kv::{PageCounts, PromptNode, PromptTree, Prompts};

/// Pages for keys and values.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pool {
    pub pages: u64,
    pub page_tokens: u32,
    pub page_bytes: u64,
    #[serde(skip)]
    pub counts: PageCounts,
}

impl Pool {
    /// Tokens of which it has all pages.
    pub fn tokens(&self) -> u64 {
        self.pages / self.of_token() * u64::from(self.page_tokens)
    }

    pub fn bytes(&self) -> u64 {
        self.pages * self.page_bytes
    }

    /// The number of pages in which a token has slots.
    fn of_token(&self) -> u64 {
        self.counts.groups.count() as u64
    }

    /// Whether a run that ends at `end` leaves room in its last page.
    fn has_room_behind(&self, end: u32) -> bool {
        !end.is_multiple_of(self.page_tokens)
    }
}

/// A number of samples of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptShare {
    pub prompt: u32,
    pub samples: u32,
}

/// The samples that fit into the pool at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wave {
    /// In the order in which they are admitted.
    pub shares: Vec<PromptShare>,
    pub pages: u64,
}

impl Wave {
    pub fn samples(&self) -> u64 {
        self.shares.iter().map(|share| u64::from(share.samples)).sum()
    }
}

/// Computes how many pages a job needs.
pub struct PageDemand<'a> {
    job: &'a PlannedJob,
    tree: &'a PromptTree,
    pool: Pool,
    /// For each prompt, the node in which it ends.
    ends: Vec<Option<u32>>,
}

impl<'a> PageDemand<'a> {
    pub fn new(job: &'a PlannedJob, tree: &'a PromptTree, pool: Pool) -> Self {
        Self { job, tree, pool, ends: tree.ends() }
    }

    fn length(&self, prompt: u32) -> u32 {
        u32::try_from(self.job.prompts.tokens(prompt as usize).len()).expect("a prompt's tokens are counted in u32")
    }

    /// End position of a sample's keys and values; the last sampled token has none.
    fn sample_end(&self, prompt: u32) -> u32 {
        self.length(prompt) + self.job.per_prompt[prompt as usize].tokens.saturating_sub(1)
    }

    /// Pages that one sample's own tokens occupy.
    fn of_sample(&self, prompt: u32) -> u64 {
        self.pool.counts.of_sample(self.length(prompt), self.sample_end(prompt)) as u64
    }

    /// Pages of a prompt and one of its samples.
    fn of_path(&self, prompt: u32) -> u64 {
        self.pool.counts.of_path(self.sample_end(prompt)) as u64
    }

    /// Pages of all samples at once, with shared runs counted once, and without sharing.
    pub fn at_once(&self) -> (u64, u64) {
        let nodes = self.tree.nodes();
        let mut goes_on: Vec<bool> = vec![false; nodes.len()];
        nodes.iter().filter_map(|node| node.parent).for_each(|parent| goes_on[parent as usize] = true);
        let mut shared: u64 = nodes.iter().map(|node| self.pool.counts.of_prompt(node.first, node.end) as u64).sum();
        let mut unshared = 0;
        for (ask, prompt) in self.job.per_prompt.iter().zip(0u32..) {
            let own = self.of_sample(prompt);
            shared += u64::from(ask.samples) * own;
            unshared += u64::from(ask.samples) * self.of_path(prompt);
            if let Some(end) = self.ends[prompt as usize].filter(|_| own > 0) {
                goes_on[end as usize] = true;
            }
        }
        let joined = |(node, goes_on): &(&PromptNode, bool)| *goes_on && self.pool.has_room_behind(node.end);
        let joints = nodes.iter().zip(goes_on).filter(joined).count();
        (shared - joints as u64 * self.pool.of_token(), unshared)
    }

    /// The waves of prompts in `order`, depth-first.
    ///
    /// # Errors
    ///
    /// A prompt with one sample exceeds the pool: the message names the longest, with both sizes.
    pub fn waves(&self, order: &[u32]) -> Result<Vec<Wave>> {
        self.check_longest()?;
        let nodes = self.tree.nodes().len();
        let mut filling = WaveBuilder {
            held_in: vec![None; nodes],
            gone_on_in: vec![None; nodes],
            waves: Vec::new(),
            wave: Wave::default(),
        };
        for &prompt in order {
            let (length, own) = (self.length(prompt), self.of_sample(prompt));
            let goes_on = u64::from(own > 0 && self.pool.has_room_behind(length)) * self.pool.of_token();
            let mut left = self.job.per_prompt[prompt as usize].samples;
            while left > 0 {
                let room = self.pool.pages - filling.wave.pages;
                let new_path = self.new_path(prompt, &filling);
                let joint = |end| if goes_on > 0 { filling.joint(self, end) } else { 0 };
                let joined = self.ends[prompt as usize].map_or(0, joint);
                let most = |room: u64| (room + joined).checked_div(own).unwrap_or(u64::MAX);
                let fit = room.checked_sub(new_path).map_or(0, most);
                let fit = u32::try_from(fit).unwrap_or(u32::MAX).min(left);
                // Samples of a prompt that fit together into one wave are not split.
                let whole = self.pool.counts.of_prompt(0, length) as u64 + u64::from(left) * own - goes_on;
                let whole_later = whole <= self.pool.pages;
                if fit == 0 || fit < left && whole_later && !filling.wave.shares.is_empty() {
                    filling.next_wave();
                    continue;
                }
                filling.take(self, PromptShare { prompt, samples: fit }, new_path + u64::from(fit) * own - joined);
                left -= fit;
            }
        }
        filling.next_wave();
        Ok(filling.waves)
    }

    /// Pages of the nodes on the path of `prompt` that the wave does not hold yet.
    fn new_path(&self, prompt: u32, filling: &WaveBuilder) -> u64 {
        let (mut pages, mut node) = (0, self.ends[prompt as usize]);
        while let Some(at) = node.filter(|&at| !filling.holds(at)) {
            let PromptNode { parent, first, end, .. } = self.tree.nodes()[at as usize];
            pages +=
                self.pool.counts.of_prompt(first, end) as u64 - parent.map_or(0, |parent| filling.joint(self, parent));
            node = parent;
        }
        pages
    }

    fn check_longest(&self) -> Result<()> {
        let count_of_prompts = u32::try_from(self.job.per_prompt.len()).expect("prompts are counted in u32");
        let Some(longest) = (0..count_of_prompts).max_by_key(|&prompt| self.of_path(prompt)) else { return Ok(()) };
        if self.of_path(longest) <= self.pool.pages {
            return Ok(());
        }
        let expected = format!(
            "at least {}, which a prompt of {} tokens and a sample of {} need",
            bytes(self.of_path(longest) * self.pool.page_bytes),
            count(self.length(longest).into()),
            count(self.job.per_prompt[longest as usize].tokens.into())
        );
        Err(Error::kv_memory(expected, bytes(self.pool.bytes())))
    }
}

struct WaveBuilder {
    /// For each node, the last wave that held it, and the last one in which a run continued after it.
    held_in: Vec<Option<usize>>,
    gone_on_in: Vec<Option<usize>>,
    waves: Vec<Wave>,
    wave: Wave,
}

impl WaveBuilder {
    fn holds(&self, node: u32) -> bool {
        self.held_in[node as usize] == Some(self.waves.len())
    }

    /// Pages that the next run after `node` shares with it: its last ones, or none.
    fn joint(&self, need: &PageDemand<'_>, node: u32) -> u64 {
        let has_room = need.pool.has_room_behind(need.tree.nodes()[node as usize].end);
        match has_room && self.gone_on_in[node as usize] != Some(self.waves.len()) {
            true => need.pool.of_token(),
            false => 0,
        }
    }

    fn take(&mut self, need: &PageDemand<'_>, share: PromptShare, pages: u64) {
        let (now, last) = (Some(self.waves.len()), need.ends[share.prompt as usize]);
        if let Some(last) = last.filter(|_| need.of_sample(share.prompt) > 0) {
            self.gone_on_in[last as usize] = now;
        }
        let mut node = last;
        while let Some(at) = node.filter(|&at| !self.holds(at)) {
            self.held_in[at as usize] = now;
            node = need.tree.nodes()[at as usize].parent;
            if let Some(parent) = node {
                self.gone_on_in[parent as usize] = now;
            }
        }
        self.wave.shares.push(share);
        self.wave.pages += pages;
    }

    fn next_wave(&mut self) {
        if !self.wave.shares.is_empty() {
            self.waves.push(std::mem::take(&mut self.wave));
        }
    }
}
