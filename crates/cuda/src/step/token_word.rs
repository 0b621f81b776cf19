//! Where a row's input token comes from, as the one word that kernels read; kernels/token_word.cuh is its other half.

use offshoot_backend::RowToken;

/// Set: the other bits are a request of the step before. Clear: they are the token.
const SAMPLED: u32 = 1 << 31;

pub fn token_word(token: RowToken) -> u32 {
    let (index, mark) = match token {
        RowToken::Known(token) => (token.0, 0),
        RowToken::Sampled(request) => (request, SAMPLED),
    };
    assert!(index < SAMPLED, "token or request {index} does not fit 31 bits");
    index | mark
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_core::ids::TokenId;

    #[test]
    fn the_high_bit_tells_a_sampled_token_from_a_known_one() {
        assert_eq!(token_word(RowToken::Known(TokenId(128_255))), 128_255);
        assert_eq!(token_word(RowToken::Sampled(0)), 0x8000_0000);
        assert_eq!(token_word(RowToken::Sampled(2559)), 0x8000_09ff);
    }

    #[test]
    fn the_kernels_use_the_same_bit() {
        assert!(include_str!("../../../../kernels/token_word.cuh").contains("SAMPLED = 1u << 31;"));
    }
}
