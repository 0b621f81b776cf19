"""The compiled module, imported in one place."""

from offshoot import _offshoot as native

version = native.__version__
Engine = native.Engine
Generation = native.Generation
Sampling = native.Sampling
NativeTokenizer = native.Tokenizer
NativeTree = native.Tree
NativeJudge = native.Judge
search = native.search
prompt_parts = native.prompt_parts
batch_tokens = native.batch_tokens
text_keys = native.text_keys
Records = native.Records
Samples = native.Samples
use_helper = native.use_helper
