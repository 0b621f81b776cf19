//! No code: `Cargo.toml` lists the features that third crates have in the whole workspace.
