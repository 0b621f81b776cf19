//! Floor 8: what the `bench` subcommand measures.

pub mod attention;
