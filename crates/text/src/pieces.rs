//! The bytes of each token: the tokenizer's decoder is applied once to every token, so that decoding a stream is a
//! table look-up. `stream` turns the bytes into text.

use serde_json::Value;

use offshoot_core::figures;
use offshoot_core::ids::TokenId;

/// The bytes of every token, back to back.
pub(super) struct TokenPieces {
    bytes: Vec<u8>,
    /// Token t's bytes are `ends[t-1]..ends[t]`.
    ends: Vec<usize>,
    special: Vec<bool>,
    /// Spaces taken from the start of a text (sentencepiece puts one there before it encodes).
    pub leading_spaces: usize,
}

/// The longest text of a token, in bytes; those of published models have a few hundred. So a stranger's file does not
/// decide how long the text of a thousand tokens is.
const MOST_OF_PIECE: usize = 16 << 10;

/// Why tokens have no bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoPieces {
    /// This decoder is not known.
    Decoder(String),
    /// A token's text is longer than [`MOST_OF_PIECE`].
    Long { token: usize, bytes: usize },
}

impl NoPieces {
    /// The field of tokenizer.json at fault, what it may hold, and what it holds.
    pub fn words(self) -> (&'static str, String, String) {
        match self {
            NoPieces::Decoder(found) => {
                let known = "ByteLevel, Metaspace or sentencepiece's Replace, ByteFallback, Fuse and Strip";
                ("decoder", known.to_string(), found)
            }
            NoPieces::Long { token, bytes } => {
                let most = format!("texts of at most {} for each token", figures::bytes(MOST_OF_PIECE as u64));
                ("vocab and decoder", most, format!("{} for token {token}", figures::bytes(bytes as u64)))
            }
        }
    }
}

/// One step of a tokenizer's decoder, on one token.
enum DecoderStep {
    /// Characters stand for bytes, as in GPT-2.
    ByteLevel,
    Replace {
        from: String,
        to: String,
    },
    /// `<0x0A>` is the byte 10.
    ByteFallback,
    /// Tokens are words with a space between them.
    Words,
}

impl TokenPieces {
    /// `vocabulary[t]` is the token t as the vocabulary writes it, and whether it is special; ids may be missing.
    /// `decoder` is tokenizer.json's.
    pub fn new(vocabulary: &[Option<(String, bool)>], decoder: &Value) -> Result<TokenPieces, NoPieces> {
        let mut steps = Vec::new();
        let mut leading_spaces = 0;
        read_decoder(decoder, &mut steps, &mut leading_spaces).map_err(NoPieces::Decoder)?;
        let mut pieces = TokenPieces { bytes: Vec::new(), ends: Vec::new(), special: Vec::new(), leading_spaces };
        for (token, entry) in vocabulary.iter().enumerate() {
            let (text, special) = entry.as_ref().map_or(("", false), |(text, special)| (text, *special));
            let steps = if special || text.is_empty() { &[][..] } else { &steps };
            pieces.bytes.extend(decode(text, steps).map_err(|bytes| NoPieces::Long { token, bytes })?);
            pieces.ends.push(pieces.bytes.len());
            pieces.special.push(special);
        }
        Ok(pieces)
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_special(&self, token: TokenId) -> bool {
        self.special.get(token.ix()).copied().unwrap_or(false)
    }

    /// The bytes of a token, special ones written out. A model may have more ids than its vocabulary (padding): no
    /// bytes.
    pub fn shown(&self, token: TokenId) -> &[u8] {
        let Some(&end) = self.ends.get(token.ix()) else { return &[] };
        let start = token.ix().checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }

    /// The bytes that a token adds to a text: special tokens add none.
    pub fn text(&self, token: TokenId) -> &[u8] {
        if self.is_special(token) { &[] } else { self.shown(token) }
    }
}

fn read_decoder(decoder: &Value, steps: &mut Vec<DecoderStep>, leading_spaces: &mut usize) -> Result<(), String> {
    let Some(kind) = decoder["type"].as_str() else {
        steps.push(DecoderStep::Words);
        *leading_spaces = 1;
        return Ok(());
    };
    match kind {
        "Sequence" => {
            let inner = decoder["decoders"].as_array().map_or(&[][..], Vec::as_slice);
            return inner.iter().try_for_each(|d| read_decoder(d, steps, leading_spaces));
        }
        "ByteLevel" => steps.push(DecoderStep::ByteLevel),
        "ByteFallback" => steps.push(DecoderStep::ByteFallback),
        "Fuse" => {}
        "Replace" => {
            let from = decoder["pattern"]["String"].as_str().ok_or("Replace by a regular expression")?;
            let to = decoder["content"].as_str().unwrap_or_default();
            steps.push(DecoderStep::Replace { from: from.to_string(), to: to.to_string() });
        }
        "Strip" if decoder["content"] == " " && decoder["stop"] == 0 => {
            *leading_spaces = decoder["start"].as_u64().unwrap_or(0) as usize;
        }
        "Metaspace" => {
            let from = decoder["replacement"].as_str().unwrap_or("▁");
            steps.push(DecoderStep::Replace { from: from.to_string(), to: " ".to_string() });
            let prepends = decoder["prepend_scheme"] != "never" && decoder["add_prefix_space"] != false;
            *leading_spaces = usize::from(prepends);
        }
        other => return Err(other.to_string()),
    }
    Ok(())
}

/// The bytes of a token; of one that is longer than [`MOST_OF_PIECE`], or would be after some step, only their number.
fn decode(token: &str, steps: &[DecoderStep]) -> Result<Vec<u8>, usize> {
    let short = |bytes: usize| if bytes > MOST_OF_PIECE { Err(bytes) } else { Ok(()) };
    short(token.len())?;
    let mut text = token.to_string();
    for step in steps {
        match step {
            DecoderStep::ByteLevel => return Ok(byte_level(&text)),
            DecoderStep::ByteFallback => {
                if let Some(byte) = fallback_byte(&text) {
                    return Ok(vec![byte]);
                }
            }
            DecoderStep::Replace { from, to } => {
                let places = text.matches(from).count();
                short(text.len() - places * from.len() + places.saturating_mul(to.len()))?;
                text = text.replace(from, to);
            }
            DecoderStep::Words => text.insert(0, ' '),
        }
    }
    short(text.len())?;
    Ok(text.into_bytes())
}

fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

/// GPT-2's alphabet: printable Latin-1 characters stand for their own byte, the other 68 bytes are U+0100 onwards. A
/// token with any other character is its own UTF-8.
fn byte_level(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

fn byte_of(c: char) -> Option<u8> {
    let own = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(c) {
        code @ 0..=0xff => Some(code as u8).filter(|&b| own(b)),
        code => (0..=u8::MAX).filter(|&b| !own(b)).nth((code - 0x100) as usize),
    }
}

/// The letters of that alphabet, by their bytes.
pub(super) fn letters() -> Vec<char> {
    let mut letters = vec!['\0'; 256];
    for (byte, c) in ('\0'..'\u{200}').filter_map(|c| Some((byte_of(c)?, c))) {
        letters[usize::from(byte)] = c;
    }
    letters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpt2_alphabet() {
        assert_eq!(byte_level("Ġa"), b" a");
        assert_eq!(byte_level("Ċ"), b"\n");
        assert_eq!(byte_level("âĤ¬"), "€".as_bytes());
        assert_eq!(byte_of('Ń'), Some(0xad));
        assert_eq!(byte_of('ń'), None);
        assert_eq!(byte_level("<| x |>"), b"<| x |>");
        let mut all: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        all.sort_unstable();
        assert_eq!(all, (0..=255).collect::<Vec<u8>>());
        assert!((0..=255).all(|byte| byte_of(letters()[usize::from(byte)]) == Some(byte)));
    }

    /// Steps that lengthen each other's text, as a stranger's file may have them.
    #[test]
    fn a_token_has_a_longest_text() {
        let doubling = |times: usize| {
            let step = serde_json::json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
            serde_json::json!({"type": "Sequence", "decoders": vec![step; times]})
        };
        let vocabulary = [None, Some(("a".to_string(), false))];
        let whole = TokenPieces::new(&vocabulary, &doubling(14)).expect("16 KiB are no more than the bound");
        assert_eq!(whole.text(TokenId(1)).len(), MOST_OF_PIECE);
        let long = NoPieces::Long { token: 1, bytes: 2 * MOST_OF_PIECE };
        assert_eq!(TokenPieces::new(&vocabulary, &doubling(15)).err(), Some(long));
        assert_eq!(
            TokenPieces::new(&[Some(("s".repeat(20_000), true))], &doubling(0)).map(|_| ()).err(),
            Some(NoPieces::Long { token: 0, bytes: 20_000 })
        );
    }

    #[test]
    fn sentencepiece_tokens() {
        let steps = [DecoderStep::Replace { from: "▁".into(), to: " ".into() }, DecoderStep::ByteFallback];
        assert_eq!(decode("▁▁a", &steps).as_deref(), Ok(&b"  a"[..]));
        assert_eq!(decode("<0xE2>", &steps), Ok(vec![0xe2]));
        assert_eq!(decode("<0xzz>", &steps).as_deref(), Ok(&b"<0xzz>"[..]));
    }
}
