//! Fields of config.json that nobody reads: those of all configs at hand are known, others are refused by name.

use std::fs;
use std::path::{Path, PathBuf};

use offshoot_model::config::{ModelConfig, ignored_fields};
use serde_json::json;

use crate::model_configs::{bad, good};
use crate::shared::shared;

/// What an error says of a field that nobody reads.
const UNKNOWN: &str = "what this one would change is not computed";

/// The files below a folder whose names begin and end as those of configs.
fn configs(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            configs(&path, found);
        } else if name.starts_with("config") && name.ends_with(".json") {
            found.push(path);
        }
    }
}

#[test]
fn every_field_of_the_configs_at_hand_is_known() {
    let mut found = Vec::new();
    configs(&Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data/goldens"), &mut found);
    for folder in ["goldens", "goldens_modern", "goldens_2026", "data/hf_configs", "cases/models", "data/models"] {
        if let Some(folder) = shared(folder) {
            configs(&folder, &mut found);
        }
    }
    let fault = |path: &PathBuf| {
        let error = ModelConfig::from_file(path).err()?.to_string();
        error.contains(UNKNOWN).then_some(error)
    };
    let faults: Vec<String> = found.iter().filter_map(fault).collect();
    assert!(faults.is_empty(), "{} configs:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_document_lists_the_fields_that_change_nothing() {
    let page = include_str!("../../../../docs/config-fields.md");
    let row = |(family, field, why)| match family {
        None => format!("| `{field}` | all | {why} |"),
        Some(family) => format!("| `{field}` | {family} | {why} |"),
    };
    let rows: Vec<String> = ignored_fields().map(row).collect();
    let written: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(written, rows, "the rows must be\n{}", rows.join("\n"));
}

#[test]
fn a_field_that_nobody_reads_is_refused_by_name() {
    for (field, value) in [("moon_phase", json!(3)), ("attention_scale", json!(0.5)), ("is_tuned", json!(true))] {
        bad(json!({field: value}), &[&format!("`{field}`"), UNKNOWN]);
    }
    let rope = json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "warp": 3}});
    bad(rope, &["`rope_scaling.warp`", "is not computed"]);
    // What says nothing, or concerns something else, is passed over.
    good(
        json!({"moon_phase": null, "is_tuned": false, "attention_dropout": 0.1, "use_cache": true, "num_mtp_heads": 2}),
    );
    // What must be off, or say what another field says.
    good(json!({"pruned_heads": {}, "num_heads": 4}));
    bad(json!({"pruned_heads": {"0": [1]}}), &["`pruned_heads`", "off"]);
    bad(json!({"num_heads": 3}), &["`num_heads`", "`num_attention_heads`"]);
}
