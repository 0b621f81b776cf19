//! The memory for keys and values on a device that is only described, and what of a job fits there at once.
//!
//! # Waves
//! In depth-first order, prompts are taken with all of their samples at the length that is expected, each shared run of tokens
//! counted once, until the pool is full: that is a wave. The next one keeps what it shares with the one before. The engine lets
//! a branch in as soon as another has left; waves say how often the pool is filled, not when branches come and go.

use serde::Serialize;

use super::job::Job;
use crate::error::{Error, Result};
use crate::figures::{bytes, count};
use crate::kv::{PromptTree, Prompts};

/// Pages for keys and values.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pool {
    pub pages: u64,
    pub page_tokens: u32,
    pub page_bytes: u64,
}

impl Pool {
    pub fn tokens(&self) -> u64 {
        self.pages * u64::from(self.page_tokens)
    }

    pub fn bytes(&self) -> u64 {
        self.pages * self.page_bytes
    }

    /// Pages of a run of tokens at positions `first .. end`: pages are aligned to positions, and each run is counted from a page of
    /// its own on, as all but the first behind another are laid out.
    fn of_run(&self, first: u32, end: u32) -> u64 {
        match first < end {
            true => u64::from((end - 1) / self.page_tokens - first / self.page_tokens + 1),
            false => 0,
        }
    }
}

/// So many samples of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub prompt: u32,
    pub samples: u32,
}

/// What fits at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wave {
    /// In the order in which they are taken.
    pub shares: Vec<Share>,
    pub pages: u64,
}

impl Wave {
    pub fn samples(&self) -> u64 {
        self.shares.iter().map(|share| u64::from(share.samples)).sum()
    }
}

/// A job's need of pages.
pub struct Need<'a> {
    job: &'a Job,
    tree: &'a PromptTree,
    pool: Pool,
    /// For each prompt the node in which it ends.
    ends: Vec<Option<u32>>,
    /// For each node the pages of its path.
    path_pages: Vec<u64>,
}

impl<'a> Need<'a> {
    pub fn new(job: &'a Job, tree: &'a PromptTree, pool: Pool) -> Self {
        let mut path_pages: Vec<u64> = Vec::with_capacity(tree.nodes().len());
        for node in tree.nodes() {
            let above = node.parent.map_or(0, |parent| path_pages[parent as usize]);
            path_pages.push(above + pool.of_run(node.first, node.end));
        }
        Self { job, tree, pool, ends: tree.ends(), path_pages }
    }

    fn length(&self, prompt: u32) -> u32 {
        u32::try_from(self.job.prompts.tokens(prompt as usize).len()).expect("a prompt's tokens are counted in u32")
    }

    /// Pages of one sample's own tokens.
    fn of_sample(&self, prompt: u32) -> u64 {
        let length = self.length(prompt);
        self.pool.of_run(length, length + self.job.asks[prompt as usize].tokens)
    }

    fn of_path(&self, prompt: u32) -> u64 {
        self.ends[prompt as usize].map_or(0, |end| self.path_pages[end as usize])
    }

    /// Pages of everything at once, shared runs once; and with nothing shared.
    pub fn at_once(&self) -> (u64, u64) {
        let runs: u64 = self.tree.nodes().iter().map(|node| self.pool.of_run(node.first, node.end)).sum();
        let (mut shared, mut unshared) = (runs, 0);
        for (ask, prompt) in self.job.asks.iter().zip(0u32..) {
            let end = self.length(prompt) + ask.tokens;
            shared += u64::from(ask.samples) * self.of_sample(prompt);
            unshared += u64::from(ask.samples) * self.pool.of_run(0, end);
        }
        (shared, unshared)
    }

    /// The waves of prompts in `order`, depth-first.
    ///
    /// # Errors
    /// Some prompt with one sample is more than the pool: the longest is named, with both sizes.
    pub fn waves(&self, order: &[u32]) -> Result<Vec<Wave>> {
        self.check_longest()?;
        let mut filling =
            Filling { held_in: vec![None; self.path_pages.len()], waves: Vec::new(), wave: Wave::default() };
        for &prompt in order {
            let (own, path) = (self.of_sample(prompt), self.of_path(prompt));
            let mut left = self.job.asks[prompt as usize].samples;
            while left > 0 {
                let room = self.pool.pages - filling.wave.pages;
                let new_path = self.new_path(prompt, &filling);
                let fit = room.checked_sub(new_path).map_or(0, |room| room / own);
                let fit = u32::try_from(fit).unwrap_or(u32::MAX).min(left);
                // What fits whole into a wave of its own is not divided.
                let whole_later = path + u64::from(left) * own <= self.pool.pages;
                if fit == 0 || fit < left && whole_later && !filling.wave.shares.is_empty() {
                    filling.next_wave();
                    continue;
                }
                filling.take(self, Share { prompt, samples: fit }, new_path + u64::from(fit) * own);
                left -= fit;
            }
        }
        filling.next_wave();
        Ok(filling.waves)
    }

    /// Pages of those nodes on the path of `prompt` that the wave does not hold.
    fn new_path(&self, prompt: u32, filling: &Filling) -> u64 {
        let mut node = self.ends[prompt as usize];
        while let Some(at) = node.filter(|&at| !filling.holds(at)) {
            node = self.tree.nodes()[at as usize].parent;
        }
        self.of_path(prompt) - node.map_or(0, |held| self.path_pages[held as usize])
    }

    fn check_longest(&self) -> Result<()> {
        let need = |prompt: u32| self.of_path(prompt) + self.of_sample(prompt);
        let count_of_prompts = u32::try_from(self.job.asks.len()).expect("prompts are counted in u32");
        let Some(longest) = (0..count_of_prompts).max_by_key(|&prompt| need(prompt)) else { return Ok(()) };
        if need(longest) <= self.pool.pages {
            return Ok(());
        }
        let expected = format!(
            "at least {}, which a prompt of {} tokens and a sample of {} need",
            bytes(need(longest) * self.pool.page_bytes),
            count(self.length(longest).into()),
            count(self.job.asks[longest as usize].tokens.into())
        );
        Err(Error::value("memory for keys and values (--kv-memory, --memory)", expected, bytes(self.pool.bytes())))
    }
}

struct Filling {
    /// For each node the last wave that held it.
    held_in: Vec<Option<usize>>,
    waves: Vec<Wave>,
    wave: Wave,
}

impl Filling {
    fn holds(&self, node: u32) -> bool {
        self.held_in[node as usize] == Some(self.waves.len())
    }

    fn take(&mut self, need: &Need<'_>, share: Share, pages: u64) {
        let mut node = need.ends[share.prompt as usize];
        while let Some(at) = node.filter(|&at| !self.holds(at)) {
            self.held_in[at as usize] = Some(self.waves.len());
            node = need.tree.nodes()[at as usize].parent;
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
