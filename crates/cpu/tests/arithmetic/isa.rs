//! Code paths and their names.

use offshoot_cpu::Isa;

#[test]
fn paths_are_found_by_their_names_where_the_processor_has_them() {
    for isa in Isa::ALL {
        assert_eq!(Isa::named(isa.name(), &Isa::ALL).expect("all are there"), isa);
    }
    let old = [Isa::Portable, Isa::Avx2];
    for name in ["avx512bf16", "sse2", "AVX2", "clear", "bf16-twin"] {
        let error = Isa::named(name, &old).expect_err(name);
        let said = error.to_string();
        assert!(said.contains("OFFSHOOT_CPU") && said.contains("portable, avx2,"), "{said}");
        assert!(said.contains(&format!("found `{name}`")) && error.exit_code() == 2, "{said}");
    }
}

#[test]
fn the_fastest_path_is_the_processor_s() {
    assert!(Isa::available().contains(&Isa::fastest()));
}
