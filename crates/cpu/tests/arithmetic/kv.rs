//! Pages of keys and values: what is appended, saved and joined.

use std::ops::Range;

use offshoot_backend::{Dtype, HeadLayout, KvDtype, KvShape, Values};
use offshoot_core::ids::{LayerIx, PageId};
use offshoot_cpu::kv::{KvStore, SLOTS};
use offshoot_cpu::{Cores, CpuBuffer, Isa};
use offshoot_kv::KvSlot;

fn shape(dtype: Dtype, head_dim: usize) -> KvShape {
    shape_of(dtype, head_dim, Values::Beside(head_dim))
}

fn shape_of(dtype: Dtype, head_dim: usize, values: Values) -> KvShape {
    KvShape::uniform(2, HeadLayout { q_heads: 4, kv_heads: 2, head_dim, values, expanded: false }, dtype, 3)
}

/// Values as wide as keys, wider, narrower, and in the keys.
fn every_kind(head_dim: usize) -> [Values; 4] {
    [Values::Beside(head_dim), Values::Beside(head_dim + 6), Values::Beside(2), Values::InKeys(head_dim - 1)]
}

#[test]
fn what_is_appended_is_read_back_rounded() {
    for dtype in Dtype::ALL {
        let kinds = [(2, KvDtype::Model), (18, KvDtype::Model), (1026, KvDtype::Model), (18, KvDtype::Fp8)];
        for (head_dim, kept, values) in
            kinds.into_iter().flat_map(|(head_dim, kept)| every_kind(head_dim).map(|values| (head_dim, kept, values)))
        {
            let shape = shape_of(dtype, head_dim, values);
            let value_dim = shape.heads[0].value_dim();
            let mut kv = KvStore::new(&shape, kept).unwrap();
            let slots: Vec<KvSlot> = [(2, 15), (0, 0), (0, 1), (0, 2), (1, 7)]
                .map(|(page, slot)| KvSlot { page: PageId(page), slot })
                .to_vec();
            let mut qkv = CpuBuffer::new(slots.len(), shape.heads[0].qkv_width());
            qkv.data.iter_mut().enumerate().for_each(|(i, x)| *x = (i as f32 * 0.37).sin() * 3.0);
            kv.append(&Cores::new(Isa::Portable), LayerIx(1), &qkv, &slots);
            for (r, &at) in slots.iter().enumerate() {
                for kv_head in 0..2 {
                    let key = (4 + kv_head) * head_dim;
                    let value = match values {
                        Values::Beside(_) => 6 * head_dim + kv_head * value_dim,
                        Values::InKeys(_) => key,
                    };
                    let rounded = |from: usize, width: usize| -> Vec<f32> {
                        qkv.row(r)[from..][..width].iter().map(|&x| kept.round(dtype, x)).collect()
                    };
                    assert_eq!(kv.key(LayerIx(1), kv_head, at), rounded(key, head_dim));
                    let page = kv.page_keys(LayerIx(1), kv_head, at.page);
                    let of_slot = page.iter().skip(at.slot as usize).step_by(SLOTS);
                    assert_eq!(of_slot.copied().collect::<Vec<_>>(), rounded(key, head_dim));
                    assert_eq!(kv.value(LayerIx(1), kv_head, at), rounded(value, value_dim));
                    assert!(kv.key(LayerIx(0), kv_head, at).iter().all(|&x| x == 0.0), "the other layer is untouched");
                }
            }
        }
    }
}

#[test]
fn saved_pages_are_joined_slot_by_slot() {
    let kinds = |kept: KvDtype| every_kind(18).map(move |values| (kept, values));
    let kinds: Vec<_> = [KvDtype::Model, KvDtype::Fp8].into_iter().flat_map(kinds).collect();
    for (dtype, &(kept, values)) in Dtype::ALL.into_iter().flat_map(|dtype| kinds.iter().map(move |kind| (dtype, kind)))
    {
        let shape = shape_of(dtype, 18, values);
        let mut kv = KvStore::new(&shape, kept).unwrap();
        let append = |kv: &mut KvStore, page: u32, slots: Range<u32>| {
            let slots: Vec<KvSlot> = slots.map(|slot| KvSlot { page: PageId(page), slot }).collect();
            let mut qkv = CpuBuffer::new(slots.len(), shape.heads[0].qkv_width());
            for (r, at) in slots.iter().enumerate() {
                let width = qkv.width;
                let row = &mut qkv.data[r * width..][..width];
                row.iter_mut().enumerate().for_each(|(i, x)| *x = (at.slot as usize * width + i) as f32 * 0.01);
            }
            (0..2).for_each(|layer| kv.append(&Cores::new(Isa::Portable), LayerIx(layer), &qkv, &slots));
        };
        // The first slots in page 1, the others in page 2, and all of them in page 0.
        append(&mut kv, 0, 0..16);
        append(&mut kv, 1, 0..5);
        append(&mut kv, 2, 5..16);
        let whole = kv.save(&[PageId(0), PageId(0)]);
        let (mut parted, others) = (kv.save(&[PageId(0), PageId(2)]), kv.save(&[PageId(2), PageId(2), PageId(1)]));
        assert!(parted != whole);
        kv.join(&mut parted, 1, &others, 2, 0..5);
        assert!(parted == whole, "{dtype:?}, {kept}, {values:?}");
        assert_eq!(whole.len(), 2 * KvStore::page_bytes(&shape, kept), "{dtype:?}, {kept}, {values:?}");
    }
}

#[test]
fn writing_an_even_slot_clears_its_partner_unless_that_is_a_number() {
    let shape = shape(Dtype::Bf16, 16);
    let mut kv = KvStore::new(&shape, KvDtype::Model).unwrap();
    let at = |slot| KvSlot { page: PageId(1), slot };
    let mut qkv = CpuBuffer::new(1, shape.heads[0].qkv_width());
    qkv.data.fill(f32::NAN);
    kv.append(&Cores::new(Isa::Portable), LayerIx(0), &qkv, &[at(5)]);
    assert!(kv.value(LayerIx(0), 0, at(5))[0].is_nan());
    qkv.data.fill(1.0);
    kv.append(&Cores::new(Isa::Portable), LayerIx(0), &qkv, &[at(4)]);
    assert_eq!(kv.value(LayerIx(0), 0, at(5)), vec![0.0; 16]);
    assert_eq!(kv.value(LayerIx(0), 0, at(4)), vec![1.0; 16]);
    kv.append(&Cores::new(Isa::Portable), LayerIx(0), &qkv, &[at(7)]);
    kv.append(&Cores::new(Isa::Portable), LayerIx(0), &qkv, &[at(6)]);
    assert_eq!(kv.value(LayerIx(0), 0, at(7)), vec![1.0; 16], "a live neighbour");
}

#[test]
fn page_bytes_count_padding_and_all_layers() {
    // keys 18 x 16, values 16 x 32, two bytes each, in 2 heads of 2 layers
    let page_bytes = |shape: &KvShape| KvStore::page_bytes(shape, KvDtype::Model);
    assert_eq!(page_bytes(&shape(Dtype::Bf16, 18)), (18 * 16 + 16 * 32) * 2 * 4);
    assert_eq!(page_bytes(&shape(Dtype::F32, 64)), 16 * 64 * 2 * 4 * 4);
    // Latents are stored once, and values of another width are padded by themselves.
    let latents = shape_of(Dtype::Bf16, 576, Values::InKeys(512));
    assert_eq!(page_bytes(&latents), 16 * 576 * 2 * 4);
    assert_eq!(page_bytes(&shape_of(Dtype::Bf16, 18, Values::Beside(40))), (18 * 16 + 16 * 48) * 2 * 4);
    // With fp8, an element of latents takes a byte, any other element as many bytes as its dtype.
    assert_eq!(KvStore::page_bytes(&latents, KvDtype::Fp8), 16 * 576 * 4);
    let beside = shape(Dtype::Bf16, 18);
    assert_eq!(KvStore::page_bytes(&beside, KvDtype::Fp8), page_bytes(&beside));
}
