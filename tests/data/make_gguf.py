"""Writes tests/data/gguf with other people's code: the `gguf` package 0.19.0 and llama.cpp's conversion script
(0c1e57098, as vendored in llama-cpp-python 0.3.36), sentencepiece 0.2.3, tokenizers 0.23.3, numpy, torch and
transformers.

    python make_gguf.py LLAMA_CPP_FOLDER

blocks.gguf, more-blocks.gguf   random numbers in every quantised type: `TYPE` as `gguf.quantize` makes it (those that
                  the package cannot make have random bytes), `TYPE.values` in F32 as `gguf.dequantize` reads it
llama3.gguf       goldens/llama3-gqa-ropescaled as the conversion script writes it: rows of queries and keys in pairs,
                  rope_freqs
gpt-oss.gguf      goldens/gpt-oss-sinks likewise: experts in one tensor, their biases, sinks
sentencepiece.gguf, .json   a sentencepiece BPE, and the tokens that sentencepiece gives for texts
byte-level.gguf, .json      tasks/models/demo's tokenizer, and the tokens that the library gives for the same texts
pre-tokenizers.json         the tokens that the library gives with the same vocabulary, where texts are split as other
                            models' tokenizer.json say
"""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).parent
OUT = HERE / "gguf"
LLAMA_CPP = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]

import conversion  # noqa: E402
import gguf  # noqa: E402
import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
from conversion import base  # noqa: E402

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two spaces, then\ta tab\nand lines\n\n\nof text",
    "Question: Mia has 3 pens and buys 14 more. How many pens does Mia have now?\nAnswer:",
    "def f(x):\n    return x ** 2  # squares\n\n\nprint(f(12345))",
    "naïve façade – „été“ 12½ € 日本語 Привет мир 👩‍🚀🇫🇷",
    "I'll say it's THEY'RE we've don't",
    "<s> is special </s> and <sep> is one token; <|end_of_text|> too",
    "a" * 40 + " " * 20 + "=" * 30,
]


KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "BF16"]
MORE_KINDS = ["Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS"]
# Where a block of random bytes has f16: from the end, or from the beginning.
HALVES = {"Q2_K": slice(-4, None), "Q3_K": slice(-2, None), "Q6_K": slice(-2, None), "IQ4_NL": slice(2),
          "IQ4_XS": slice(2)}


def blocks(file, kinds, seed):
    generator = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(OUT / file, "llama")
    for name in kinds:
        kind = gguf.GGMLQuantizationType[name]
        numbers = generator.standard_normal((2, 512)).astype(np.float32)
        try:
            stored = gguf.quantize(numbers, kind)
        except NotImplementedError:
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            stored = generator.integers(0, 256, (2, 512 // elements, size), dtype=np.uint8)
            halves = generator.uniform(0.001, 0.1, (2, 512 // elements, 2)).astype(np.float16).view(np.uint8)
            place = HALVES.get(name, slice(4))
            stored[..., place] = halves[..., :stored[..., place].shape[-1]]
            stored = stored.reshape(2, -1)
        writer.add_tensor(name, stored, raw_dtype=kind)
        writer.add_tensor(f"{name}.values", gguf.dequantize(stored, kind).reshape(2, 512).astype(np.float32))
    write(writer)


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def converted(folder, out, set_vocab, vocab_only=False):
    """The conversion script's work on a folder, with another vocabulary than the one it would look for."""
    parameters = base.ModelBase.load_hparams(folder, False)
    kind = conversion.get_model_class(base.get_model_architecture(parameters, base.ModelType.TEXT))
    kind.set_vocab = set_vocab
    model = kind(folder, gguf.LlamaFileType.ALL_F32, out, dry_run=False)
    with torch.inference_mode():
        model.write_vocab() if vocab_only else model.write()


def model(golden, out):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder) / out
        shutil.copytree(HERE / "goldens" / golden, folder)
        shutil.copy(folder / "config.rope_parameters.json", folder / "config.json")
        converted(folder, OUT / f"{out}.gguf", lambda self: self.gguf_writer.add_tokenizer_model("none"))


def sentencepiece_bpe():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        lines = [line for file in ["README.md", "CONTRIBUTING.md", "docs/design.md"]
                 for line in (HERE / "../.." / file).read_text().splitlines()]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=str(folder / "tokenizer"), vocab_size=640, model_type="bpe",
            byte_fallback=True, split_digits=True, user_defined_symbols=["<sep>"], remove_extra_whitespaces=False,
            normalization_rule_name="identity", character_coverage=0.99, minloglevel=2,
        )
        shutil.copy(HERE / "goldens/llama2-mha/config.rope_parameters.json", folder / "config.json")
        shutil.copy(HERE / "goldens/llama2-mha/model.safetensors", folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text()) | {"vocab_size": 640}
        (folder / "config.json").write_text(json.dumps(config))
        converted(folder, OUT / "sentencepiece.gguf", lambda self: self._set_vocab_sentencepiece(), vocab_only=True)
        library = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        cases = [{"text": text, "ids": library.encode(text)} for text in TEXTS if "<s>" not in text]
        (OUT / "sentencepiece.json").write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n")


def byte_level_bpe():
    demo = HERE / "../../tasks/models/demo"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder) / "demo"
        shutil.copytree(demo, folder)
        kind = base.TextModel
        kind.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
        converted(folder, OUT / "byte-level.gguf", lambda self: self._set_vocab_gpt2(), vocab_only=True)
    library = tokenizers.Tokenizer.from_file(str(demo / "tokenizer.json"))
    cases = [{"text": text, "ids": library.encode(text, add_special_tokens=False).ids} for text in TEXTS]
    (OUT / "byte-level.json").write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n")


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def as_bytes(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


# Of deepseek-ai/deepseek-coder-6.7b-base and tiiuae/falcon-7b.
PRE_TOKENIZERS = {
    "deepseek-coder": [split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
                       digits(True), as_bytes(False)],
    "falcon": [{"type": "Punctuation", "behavior": "Contiguous"}, as_bytes(True), digits(False),
               split("[0-9][0-9][0-9]")],
}
# Its letters are those that have cases in Unicode 11, less some; the texts have none of the others.
PRE_TOKENIZERS["deepseek-llm"] = [
    split("[\r\n]"), split(r"\s?[\p{Lu}\p{Ll}\p{Lt}]+"), split(r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"),
    split(r"\s+$"), split("[一-龥ࠀ-一가-퟿]+"), digits(True), as_bytes(False)]
# Of models that llama.cpp's src/llama-vocab.cpp names beside these kinds.
SHORTENED = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + SHORTENED + "?"
    + r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + SHORTENED + "?"
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPACES = "".join(rf"|\s{{{count}}}(?!\S)" for count in [512, 256, 128, 64, 32, 16, 8, 4]) + r"|\s{1,2}(?!\S)|\s{1}"
PRE_TOKENIZERS |= {
    "qwen35": [split(SHORTENED + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
                     r"|\s+(?!\S)|\s+"), as_bytes(False)],
    "deepseek-v3": [
        split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"),
        split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+" r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
              r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), as_bytes(False)],
    "seed-coder": [split(SHORTENED + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
                         r"|\s+(?!\S)|\s+"), as_bytes(False)],
    "bailingmoe": [split(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
                         r"|\s+(?!\S)|\s+"), as_bytes(False)],
    "jais-2": [split(SHORTENED + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+" + SPACES),
               as_bytes(False)],
    "exaone-moe": [split(SHORTENED + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
                         r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"), as_bytes(False)],
    "minimax-m2": [split(CASED_WORDS), as_bytes(False)],
    "tiny_aya": [split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(CASED_WORDS), as_bytes(False)],
}
WORDS = [
    *TEXTS,
    "There are 12345678 of 900; was it 1,234.5 or 3x?",
    "if (pens != 3 && boats <= 14) { return \"the \" + name; }  // ...",
    "日本語の文章、한국어 and 中文。 Ω K ΐ ά ﬁ ქ",
    "Привет, как дела? «Hello» ¿qué? — …\r\n\r\n  end   ",
]


def pre_tokenizers():
    described = json.loads((HERE / "../../tasks/models/demo/tokenizer.json").read_text())
    cases = {}
    for name, steps in PRE_TOKENIZERS.items():
        described |= {"normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
        library = tokenizers.Tokenizer.from_str(json.dumps(described))
        cases[name] = [{"text": text, "ids": library.encode(text, add_special_tokens=False).ids} for text in WORDS]
    (OUT / "pre-tokenizers.json").write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n")


OUT.mkdir(exist_ok=True)
blocks("blocks.gguf", KINDS, 1)
blocks("more-blocks.gguf", MORE_KINDS, 2)
model("llama3-gqa-ropescaled", "llama3")
model("gpt-oss-sinks", "gpt-oss")
sentencepiece_bpe()
byte_level_bpe()
pre_tokenizers()
