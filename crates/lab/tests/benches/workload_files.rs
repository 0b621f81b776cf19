//! Files of shapes and jobs, damaged at random: they are read, or refused in a sentence.

use offshoot_core::dice::Dice;
use offshoot_lab::bench::workload_file::read_jobs;

use crate::mutations::mutate_once_or_twice;

#[test]
fn damaged_files_are_read_or_refused() {
    let file = r#"{"shapes": {"small": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "rope_theta": 10000.0}},
        "workloads": {"two": {"levels": [[32, 1], [8, 2]], "samples": 2, "generate": 4}}}"#;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("workloads.json");
    let mut refused = 0;
    for seed in 0..500 {
        let mut bytes = file.as_bytes().to_vec();
        let done = mutate_once_or_twice(&mut Dice::new(seed), &mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        if let Err(error) = read_jobs(Some(&path), "small", &[]) {
            refused += 1;
            assert_eq!(error.exit_code(), 2, "{done:?}: {error}");
            assert!(!error.to_string().contains('\n'), "{done:?}: {error}");
        }
    }
    assert!((1..500).contains(&refused), "{refused} of 500 refused");
}
