"""The compiled module, imported in one place."""

from offshoot import _offshoot as native

version = native.__version__
Engine = native.Engine
Generation = native.Generation
Request = native.Request
Sampling = native.Sampling
SampleTokens = native.SampleTokens
SampleFinished = native.SampleFinished
SampleFailed = native.SampleFailed
Finish = native.Finish
Context = native.Context
NativeTokenizer = native.Tokenizer
NativeForm = native.Form
NativePointer = native.JsonPointer
NativeCalls = native.CalledTools
NativeTree = native.Tree
NativeGrowth = native.Growth
NodeFinished = native.NodeFinished
NodeFailed = native.NodeFailed
NativeJudge = native.Judge
NativeScorer = native.Scorer
NativeEmbedder = native.Embedder
search = native.search
SearchPrompt = native.SearchPrompt
Assessed = native.Assessed
prompt_parts = native.prompt_parts
batch_tokens = native.batch_tokens
text_keys = native.text_keys
Records = native.Records
Samples = native.Samples
NativeTrie = native.RolloutTrie
TrieBuilder = native.TrieBuilder
Tensors = native.Tensors
use_helper = native.use_helper
model_role = native.model_role
