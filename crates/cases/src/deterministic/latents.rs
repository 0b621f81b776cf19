//! Latent attention: the products with the maps of heads, of rows among others and alone, and attention in each of its
//! forms.

use super::attention::forest;
use super::differences::{Rows, alone};
use crate::case::{CheckEffort, buffer, numbers, tails};
use crate::latents::latent_maps;
use crate::report::CheckReport;
use crate::setting::{ScoreTerms, Setting, sharpness};
use offshoot_backend::{ActivationDtype, Backend, Dtype, KvDtype, LatentHeads};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;
use offshoot_fixtures::forests::ForestShape;

/// Numbers of rows, rising.
const ROWS: [usize; 8] = [1, 2, 5, 16, 33, 64, 130, 257];

const SMALL: LatentHeads = LatentHeads { heads: 3, rank: 40, nope: 24, rope: 8, value: 16 };
const LARGE: LatentHeads = LatentHeads { heads: 16, rank: 512, nope: 128, rope: 64, value: 128 };

pub fn latents<B: Backend>(backend: &mut B, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let mut dice = Dice::new(6);
    let (shapes, counts) = match effort {
        CheckEffort::Quick => (&[SMALL][..], &ROWS[..5]),
        CheckEffort::Full => (&[SMALL, LARGE][..], &ROWS[..]),
    };
    for (i, dtype) in Dtype::ALL.into_iter().enumerate() {
        for &heads in shapes {
            products(backend, heads, dtype, counts, &mut dice, report)?;
            let forms = [
                (heads.absorbed(), KvDtype::Model),
                (heads.absorbed(), KvDtype::Fp8),
                (heads.expanded(), KvDtype::Model),
            ];
            for (heads, kv) in forms {
                let terms = ScoreTerms { softcap: None, has_sinks: i == 1 };
                let (window, sharpness) = (None, sharpness(dtype)[0]);
                let setting = Setting { heads, dtype, kv, window, sharpness, terms };
                forest(backend, &setting, ForestShape::MidPageForks, i as u64, report)?;
            }
        }
    }
    Ok(())
}

/// Queries that are absorbed, and values of what was read.
fn products<B: Backend>(
    backend: &mut B,
    heads: LatentHeads,
    dtype: Dtype,
    counts: &[usize],
    dice: &mut Dice,
    report: &mut CheckReport,
) -> Result<()> {
    let maps = latent_maps(backend, heads, dtype, &numbers(dice, dtype, heads.map_rows() * heads.rank))?;
    let (most, absorbed, holds) = (counts[counts.len() - 1], heads.absorbed(), ActivationDtype::Operands(dtype));
    let queries = numbers(dice, dtype, most * heads.query_width());
    let read = numbers(dice, dtype, most * absorbed.out_width());
    let absorb = |part: Rows| {
        let queries = &queries[part.start * heads.query_width()..part.end * heads.query_width()];
        let mut out = buffer(backend, holds, part.len(), absorbed.q_width(), &tails(heads, queries))?;
        let queries = buffer(backend, holds, part.len(), heads.query_width(), queries)?;
        backend.absorb_queries(&mut out, &queries, &maps);
        backend.read(&out, part.len())
    };
    alone(counts, absorbed.q_width(), dice, absorb)?.file(report, "alone, latents", dtype, heads);
    let map = |part: Rows| {
        let read = &read[part.start * absorbed.out_width()..part.end * absorbed.out_width()];
        let read = buffer(backend, holds, part.len(), absorbed.out_width(), read)?;
        let mut out = buffer(backend, holds, part.len(), heads.out_width(), &[])?;
        backend.map_values(&mut out, &read, &maps);
        backend.read(&out, part.len())
    };
    alone(counts, heads.out_width(), dice, map)?.file(report, "alone, latents", dtype, heads);
    Ok(())
}
