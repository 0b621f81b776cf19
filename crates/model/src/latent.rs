//! Latent attention of a decoder layer: its projections, and attention in both forms. Positions that have copies are
//! read in the expanded form, all others in the absorbed one, and the two results are merged. The ops are defined in
//! `backend::latent`.

use std::sync::Arc;

use offshoot_backend::{Attended, Backend, CopyStore, LatentSteps, MOST_ROPES, Scoring, Split, StepRows};
use offshoot_core::error::Result;

use super::activations::LatentBuffers;
use super::config::{LatentSpec, Norm};
use super::layer::{Kinds, PlaceInKv};
use super::layout::{LatentTensors, LayerTensors, QueryTensors};
use super::loader::Loader;
use super::operands::{StepOperands, copies_of};
use super::parts::{Linear, NormLayer};

/// The attention of a layer without the projection of what its heads have read.
pub struct LatentAttention<B: Backend> {
    spec: LatentSpec,
    /// Gives queries, or what `queries` makes them of.
    first: Linear<B>,
    queries: Option<(NormLayer<B>, Linear<B>)>,
    /// `None`: `first` gives latents behind queries.
    latents: Option<Linear<B>>,
    norm: Arc<B::Vector>,
    maps: Arc<B::LatentMaps>,
    place: PlaceInKv,
    /// Indices of the plans of copies, by [`CopyStore`].
    copy_plans: [usize; CopyStore::COUNT],
    /// Indices in `Decoder::ropes`.
    ropes: [Option<usize>; MOST_ROPES],
    scale: f32,
}

impl<B: Backend> LatentAttention<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        tensors: &LayerTensors,
        own: &LatentTensors,
        spec: LatentSpec,
        kinds: &Kinds,
        place: PlaceInKv,
        (ropes, scale): ([Option<usize>; MOST_ROPES], f32),
    ) -> Result<Self> {
        let of_queries = |loader: &mut Loader<'_, B>, QueryTensors { norm, up }: &QueryTensors| {
            let norm = NormLayer::load(loader, norm, Norm::Rms { eps: spec.eps })?;
            Ok((norm, Linear::load(loader, up)?))
        };
        Ok(Self {
            spec,
            first: Linear::load(loader, tensors.projections())?,
            queries: own.queries.as_ref().map(|queries| of_queries(loader, queries)).transpose()?,
            latents: own.latents.as_ref().map(|latents| Linear::load(loader, latents)).transpose()?,
            norm: loader.made_vector(&own.norm, &Split::Whole, |weight| spec.latent_scale * weight)?,
            maps: loader.latent_maps(&own.maps, spec.heads, &own.maps_split)?,
            place,
            copy_plans: CopyStore::ALL.map(|store| kinds.attention.len() + store as usize),
            ropes,
            scale,
        })
    }

    /// The linear layer that alone reads its input, if one does.
    pub fn reads_alone(&self) -> Option<&Linear<B>> {
        self.latents.is_none().then_some(&self.first)
    }

    /// `attended = attention(x)`, `[R, heads * value]`. Stores the new latents, and expands what the step says. Calls
    /// `observe` with the operands of the absorbed form if the step has it.
    pub fn attend(
        &self,
        backend: &mut B,
        attended: &mut B::Buffer,
        x: &B::Buffer,
        buffers: (&mut B::Buffer, &mut LatentBuffers<B>),
        step: &mut StepOperands<'_, B>,
        observe: &mut impl FnMut(&mut B, Attended<'_, B>),
    ) {
        let (queries, LatentBuffers { low, latents, absorbed, read, lse, expanded }) = buffers;
        let adapters = step.adapters(StepRows::All);
        match (&self.queries, low) {
            (Some((norm, up)), Some([low, normed])) => {
                self.first.apply(backend, low, x, adapters);
                norm.apply_for(backend, normed, low, up, adapters);
                up.apply(backend, queries, normed, adapters);
            }
            _ => self.first.apply(backend, queries, x, adapters),
        }
        if let (Some(linear), Some(latents)) = (&self.latents, latents.as_mut()) {
            linear.apply(backend, latents, x, adapters);
        }
        let PlaceInKv { layer, stored, plan } = self.place;
        let steps = LatentSteps {
            heads: self.spec.heads,
            norm: &*self.norm,
            eps: self.spec.eps,
            ropes: self.ropes.map(|rope| rope.map(|rope| &step.ropes[rope].table)),
            layer: stored,
        };
        let tails = step.absorbs.then_some(&mut *absorbed);
        backend.prepare_latents(queries, latents.as_mut(), tails, &steps, step.kv, step.loaded);
        // Behind the latents of this step's own rows, which may be expanded, too.
        for store in CopyStore::ALL {
            if step.copies_shape[store as usize].expansions > 0 {
                let (copies, layer) = copies_of(&mut step.copies, store, stored);
                backend.expand_latents(copies, layer, step.kv, stored, &self.maps, store, step.loaded);
            }
        }
        let scoring = Scoring { scale: self.scale, softcap: None, sinks: None };
        if step.absorbs {
            backend.absorb_queries(absorbed, queries, &self.maps);
            match step.copies_shape.iter().any(|shape| shape.is_read) {
                false => backend.tree_attention(read, absorbed, step.kv, stored, step.loaded, plan, scoring),
                true => backend.tree_attention_lse(read, lse, absorbed, step.kv, stored, step.loaded, plan, scoring),
            }
            backend.map_values(attended, read, &self.maps);
        }
        let mut has_result = step.absorbs;
        for store in CopyStore::ALL {
            if step.copies_shape[store as usize].is_read {
                let plan = self.copy_plans[store as usize];
                let (copies, layer) = copies_of(&mut step.copies, store, stored);
                let [other, other_lse] = &mut *expanded;
                let (to, to_lse) = if has_result { (other, other_lse) } else { (&mut *attended, &mut *lse) };
                backend.tree_attention_lse(to, to_lse, queries, copies, layer, step.loaded, plan, scoring);
                if has_result {
                    let [other, other_lse] = &*expanded;
                    backend.merge_attended(attended, lse, other, other_lse);
                }
                has_result = true;
            }
        }
        if step.absorbs {
            observe(backend, Attended { layer, stored, qkv: absorbed, kv: step.kv, plan, scoring });
        }
    }
}
