//! What compiling a form, and finding one mask of it, may take. llguidance counts the work: a form takes the same on
//! any machine.

use llguidance::api::ParserLimits;

/// What a grammar, and each step in it, may take. The numbers are llguidance's units of work: about 14,000 of the
/// lexer, or 10,000 items of the parser, take a millisecond.
pub(crate) fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 10_000,
        initial_lexer_fuel: 1_000_000,
        // Measured with 128,000 tokens: a choice of 2,000 texts takes 26,000, other forms as people write them less.
        step_lexer_fuel: 100_000,
        // A schema of 300 optional properties takes 78,000.
        step_max_items: 100_000,
        // 1 to 2 kB each, in each lane.
        max_lexer_states: 50_000,
        max_grammar_size: 500_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}
