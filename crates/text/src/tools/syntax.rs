//! The syntaxes in which families of models write calls, as a table. One is known by texts of the chat template, which
//! shows the model its own earlier calls in it. `head` reads the styles, `grammar` writes them.

use std::fmt;

/// How the text of a call is written between its mark and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallStyle {
    /// An object of JSON with the tool's name and its arguments, or a list of such objects.
    Object,
    /// The tool's name, and the arguments as JSON behind it.
    Named(NamedCall),
    /// The tool's name, and each argument between tags of its own.
    Tagged(Tagged),
    /// `call:NAME{key:value,…}` with strings between marks, as Gemma 4 writes it.
    Gemma,
    /// `NAME(key=value, …)` with values of Python, or a list of such calls.
    Python,
}

/// The name, and the arguments as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamedCall {
    /// What stands before the name; may be empty.
    pub before: &'static str,
    /// What stands between the name and the arguments; may be empty.
    pub after: &'static str,
    /// What may follow the name, with a text up to `after`, and says nothing of the call (ids).
    pub skips: Option<&'static str>,
}

/// The name, and arguments between tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tagged {
    pub before_name: &'static str,
    /// Empty: the name ends before white space or a tag.
    pub after_name: &'static str,
    pub before_key: &'static str,
    pub after_key: &'static str,
    /// What stands between the key and its value, behind white space; may be empty.
    pub before_value: &'static str,
    pub after_value: &'static str,
    /// What ends the call; may be empty, then the syntax's close does.
    pub end: &'static str,
}

/// Qwen3-Coder's, and that of families that took it over.
const FUNCTION_TAGS: Tagged = Tagged {
    before_name: "<function=",
    after_name: ">",
    before_key: "<parameter=",
    after_key: ">",
    before_value: "",
    after_value: "</parameter>",
    end: "</function>",
};

/// GLM-4.5's.
const ARGUMENT_TAGS: Tagged = Tagged {
    before_name: "",
    after_name: "",
    before_key: "<arg_key>",
    after_key: "</arg_key>",
    before_value: "<arg_value>",
    after_value: "</arg_value>",
    end: "",
};

/// Hunyuan 3's: GLM's with a separator behind the name.
const SEPARATED_TAGS: Tagged = Tagged { after_name: "<tool_sep>", ..ARGUMENT_TAGS };

/// MiniMax-M2's.
const INVOKE_TAGS: Tagged = Tagged {
    before_name: "<invoke name=\"",
    after_name: "\">",
    before_key: "<parameter name=\"",
    after_key: "\">",
    before_value: "",
    after_value: "</parameter>",
    end: "</invoke>",
};

pub(super) const OBJECT: &[CallStyle] = &[CallStyle::Object];
/// The model writes objects instead where its prompt asks for them.
pub(super) const PYTHON: &[CallStyle] = &[CallStyle::Python, CallStyle::Object];
/// What families write behind `<tool_call>`. The first sign tells which: no name begins with `{` or `<`.
const TOOL_CALL: &[CallStyle] =
    &[CallStyle::Object, CallStyle::Tagged(FUNCTION_TAGS), CallStyle::Tagged(ARGUMENT_TAGS)];
/// What Hermes and Qwen write behind `<tool_call>`: not GLM's syntax, in which any word is the call of a tool without
/// arguments.
const HERMES: &[CallStyle] = &[CallStyle::Object, CallStyle::Tagged(FUNCTION_TAGS)];
const GLM: &[CallStyle] = &[CallStyle::Tagged(ARGUMENT_TAGS)];
const CODER: &[CallStyle] = &[CallStyle::Tagged(FUNCTION_TAGS)];
const MISTRAL: &[CallStyle] = &[
    CallStyle::Object,
    CallStyle::Named(NamedCall { before: "", after: "[ARGS]", skips: Some("[CALL_ID]") }),
    MISTRAL_PLAIN,
];
/// `[TOOL_CALLS]name{…}`.
const MISTRAL_PLAIN: CallStyle = CallStyle::Named(NamedCall { before: "", after: "", skips: None });
const SEPARATED: &[CallStyle] = &[CallStyle::Tagged(SEPARATED_TAGS)];
const INVOKE: &[CallStyle] = &[CallStyle::Tagged(INVOKE_TAGS)];
const GEMMA: &[CallStyle] = &[CallStyle::Gemma];
/// First the syntax of V3, with a fence around the arguments: in that of V3.1 no name is followed by a second
/// separator.
const DEEPSEEK: &[CallStyle] = &[
    CallStyle::Named(NamedCall { before: "function<｜tool▁sep｜>", after: "\n```json\n", skips: None }),
    CallStyle::Named(NamedCall { before: "", after: "<｜tool▁sep｜>", skips: None }),
];
const KIMI: &[CallStyle] =
    &[CallStyle::Named(NamedCall { before: "functions.", after: "<|tool_call_argument_begin|>", skips: Some(":") })];

/// Llama's mark of calls; several objects may stand behind one.
pub(super) const PYTHON_TAG: &str = "<|python_tag|>";

/// A mark behind which a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    pub mark: &'static str,
    pub styles: &'static [CallStyle],
    /// Whether the mark is the beginning of the style's own text.
    pub is_within: bool,
}

const fn opening(mark: &'static str, styles: &'static [CallStyle]) -> Opening {
    Opening { mark, styles, is_within: false }
}

/// How a text without a mark of its own calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BareCalls {
    /// Never.
    None,
    /// By an object of JSON with which the text begins.
    First,
}

/// How a call that must be made is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// Before the first call.
    pub begin: &'static str,
    /// Between two calls; `None`: an answer has one call.
    pub between: Option<&'static str>,
    /// Behind the last call.
    pub end: &'static str,
    /// Before and behind each call.
    pub before: &'static str,
    pub after: &'static str,
    pub style: WrittenStyle,
}

/// The keys of a call that is an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObjectKeys {
    /// That of a number in quotation marks, with which the object begins.
    pub number: Option<&'static str>,
    pub name: &'static str,
    pub arguments: &'static str,
}

impl ObjectKeys {
    const fn new(arguments: &'static str) -> Self {
        ObjectKeys { number: None, name: "name", arguments }
    }
}

/// The style of a call that must be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrittenStyle {
    Object(ObjectKeys),
    Named(NamedCall),
    Tagged(Tagged),
    Gemma,
    /// A message of the commentary channel.
    Channel,
}

/// The syntax in which a family writes calls.
pub struct CallSyntax {
    name: &'static str,
    /// The texts by which a template of the family is recognised: it has all of them.
    recognised_by: &'static [&'static str],
    pub(super) openings: &'static [Opening],
    /// The texts that end calls, and lists of calls, in any order behind a call.
    pub(super) closes: &'static [&'static str],
    pub(super) bare: BareCalls,
    /// Whether each answer's messages stand in channels, which tell calls by their recipient.
    pub(super) has_channels: bool,
    pub(super) written: Written,
    /// Whether the ids of its calls are nine letters and digits, which its templates demand.
    pub has_short_ids: bool,
}

impl fmt::Debug for CallSyntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallSyntax").field(&self.name).finish()
    }
}

/// Syntaxes are constants: equal ones have one name.
impl PartialEq for CallSyntax {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl CallSyntax {
    /// The syntax of the family whose chat template this is; `None`: no known one.
    pub fn of(template: &str) -> Option<&'static CallSyntax> {
        SYNTAXES.iter().find(|syntax| syntax.recognised_by.iter().all(|sign| template.contains(sign)))
    }

    /// The syntax for models that know none, which is given to those that must call: objects of JSON, and
    /// nothing else.
    pub fn unknown() -> &'static CallSyntax {
        &UNKNOWN
    }

    /// Whether a mark begins each call, so that it is told from content that is JSON.
    pub fn has_marks(&self) -> bool {
        self.bare == BareCalls::None
    }

    /// The family's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether its calls have their arguments as one value of JSON.
    pub fn has_json_arguments(&self) -> bool {
        !matches!(self.written.style, WrittenStyle::Tagged(_) | WrittenStyle::Gemma)
    }

    /// Whether calls are messages of a channel, which stand beside those of the reasoning and the content.
    pub fn is_in_channels(&self) -> bool {
        self.has_channels
    }

    /// The texts with which a call may begin, other than without a mark.
    pub(super) fn marks(&self) -> impl Iterator<Item = &'static str> {
        self.openings.iter().map(|opening| opening.mark)
    }
}

/// The marks of calls that some vocabularies have as special tokens. Texts keep them: without them a call would look
/// like any text.
pub(crate) const MARKS: [&str; 38] = [
    "<tool_call>",
    "</tool_call>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<seed:tool_call>",
    "</seed:tool_call>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<TOOLCALL>",
    "</TOOLCALL>",
    "<tool_calls>",
    "</tool_calls>",
    "<tool_sep>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
];

const PLAIN: CallSyntax = CallSyntax {
    name: "",
    recognised_by: &[],
    openings: &[],
    closes: &[],
    bare: BareCalls::None,
    has_channels: false,
    written: Written {
        begin: "",
        between: Some(""),
        end: "",
        before: "",
        after: "",
        style: WrittenStyle::Object(ObjectKeys::new("arguments")),
    },
    has_short_ids: false,
};

const fn object_written(
    [begin, between, end]: [&'static str; 3],
    [before, after]: [&'static str; 2],
    arguments: &'static str,
) -> Written {
    let style = WrittenStyle::Object(ObjectKeys::new(arguments));
    Written { begin, between: Some(between), end, before, after, style }
}

/// The families' syntaxes. A template that has the texts of several is of the first one's family.
pub(super) static SYNTAXES: [CallSyntax; 22] = [
    // gpt-oss.
    CallSyntax {
        name: "harmony",
        recognised_by: &["<|channel|>", "<|message|>"],
        has_channels: true,
        written: Written { begin: "", between: None, end: "", before: "", after: "", style: WrittenStyle::Channel },
        ..PLAIN
    },
    CallSyntax {
        name: "gemma4",
        recognised_by: &["<|tool_call>"],
        openings: &[opening("<|tool_call>", GEMMA)],
        closes: &["<tool_call|>"],
        written: Written {
            begin: "",
            between: Some(""),
            end: "",
            before: "<|tool_call>",
            after: "<tool_call|>",
            style: WrittenStyle::Gemma,
        },
        ..PLAIN
    },
    // DeepSeek-V3 and R1.
    CallSyntax {
        name: "deepseek_v3",
        recognised_by: &["<｜tool▁call▁begin｜>", "```json"],
        openings: DEEPSEEK_OPENINGS,
        closes: DEEPSEEK_CLOSES,
        written: Written {
            begin: "<｜tool▁calls▁begin｜>",
            between: Some("\n"),
            end: "<｜tool▁calls▁end｜>",
            before: "<｜tool▁call▁begin｜>",
            after: "\n```<｜tool▁call▁end｜>",
            style: WrittenStyle::Named(NamedCall {
                before: "function<｜tool▁sep｜>",
                after: "\n```json\n",
                skips: None,
            }),
        },
        ..PLAIN
    },
    CallSyntax {
        name: "deepseek_v31",
        recognised_by: &["<｜tool▁call▁begin｜>"],
        openings: DEEPSEEK_OPENINGS,
        closes: DEEPSEEK_CLOSES,
        written: Written {
            begin: "<｜tool▁calls▁begin｜>",
            between: Some(""),
            end: "<｜tool▁calls▁end｜>",
            before: "<｜tool▁call▁begin｜>",
            after: "<｜tool▁call▁end｜>",
            style: WrittenStyle::Named(NamedCall { before: "", after: "<｜tool▁sep｜>", skips: None }),
        },
        ..PLAIN
    },
    // Kimi K2: `functions.NAME:0`, where 0 is the number of the call.
    CallSyntax {
        name: "kimi_k2",
        recognised_by: &["<|tool_call_begin|>"],
        openings: &[opening("<|tool_calls_section_begin|>", &[]), opening("<|tool_call_begin|>", KIMI)],
        closes: &["<|tool_call_end|>", "<|tool_calls_section_end|>"],
        written: Written {
            begin: "<|tool_calls_section_begin|>",
            between: Some(""),
            end: "<|tool_calls_section_end|>",
            before: "<|tool_call_begin|>",
            after: "<|tool_call_end|>",
            style: WrittenStyle::Named(NamedCall {
                before: "functions.",
                after: "<|tool_call_argument_begin|>",
                skips: Some(":"),
            }),
        },
        ..PLAIN
    },
    // Mistral with a tokenizer of version 11 or later.
    CallSyntax {
        name: "mistral_args",
        recognised_by: &["[TOOL_CALLS]", "[ARGS]"],
        openings: &[opening("[TOOL_CALLS]", MISTRAL)],
        written: Written {
            begin: "",
            between: Some(""),
            end: "",
            before: "[TOOL_CALLS]",
            after: "",
            style: WrittenStyle::Named(NamedCall { before: "", after: "[ARGS]", skips: None }),
        },
        has_short_ids: true,
        ..PLAIN
    },
    CallSyntax {
        name: "mistral",
        recognised_by: &["[TOOL_CALLS]"],
        openings: &[opening("[TOOL_CALLS]", MISTRAL)],
        written: object_written(["[TOOL_CALLS][", ", ", "]"], ["", ""], "arguments"),
        has_short_ids: true,
        ..PLAIN
    },
    // Phi-4-mini whose template shows objects between two marks; the model's texts may begin with `functools` instead.
    CallSyntax {
        name: "phi4",
        recognised_by: &["<|/tool_call|>"],
        openings: PHI_OPENINGS,
        closes: &["<|/tool_call|>"],
        written: object_written(["", "", ""], ["<|tool_call|>", "<|/tool_call|>"], "arguments"),
        ..PLAIN
    },
    // Granite 3: a list behind a mark, and no mark at its end.
    CallSyntax {
        name: "tool_call_list",
        recognised_by: &["<|tool_call|>"],
        openings: PHI_OPENINGS,
        closes: &["<|/tool_call|>"],
        written: object_written(["<|tool_call|>[", ", ", "]"], ["", ""], "arguments"),
        ..PLAIN
    },
    CallSyntax {
        name: "phi4_functools",
        recognised_by: &["<|tool|>", "<|/tool|>"],
        openings: PHI_OPENINGS,
        closes: &["<|/tool_call|>"],
        written: object_written(["functools[", ", ", "]"], ["", ""], "arguments"),
        ..PLAIN
    },
    // Command R7B, Command A and later models of Cohere: a list of objects with keys of their own.
    CallSyntax {
        name: "cohere",
        recognised_by: &["<|START_ACTION|>"],
        openings: &[opening("<|START_ACTION|>", OBJECT)],
        closes: &["<|END_ACTION|>"],
        written: Written {
            begin: "<|START_ACTION|>[\n    ",
            between: Some(",\n    "),
            end: "\n]<|END_ACTION|>",
            before: "",
            after: "",
            style: WrittenStyle::Object(ObjectKeys {
                number: Some("tool_call_id"),
                name: "tool_name",
                arguments: "parameters",
            }),
        },
        ..PLAIN
    },
    // LFM2.5 and LFM2, whose template shows no calls, but lists of tools.
    CallSyntax { recognised_by: &["<|tool_call_start|>"], ..LFM2 },
    CallSyntax { name: "lfm2_tool_list", recognised_by: &["<|tool_list_start|>"], ..LFM2 },
    CallSyntax {
        name: "minimax_m2",
        recognised_by: &["<minimax:tool_call>"],
        openings: MINIMAX_OPENINGS,
        closes: &["</minimax:tool_call>"],
        written: Written {
            begin: "<minimax:tool_call>\n",
            between: Some("\n"),
            end: "\n</minimax:tool_call>",
            before: "",
            after: "",
            style: WrittenStyle::Tagged(INVOKE_TAGS),
        },
        ..PLAIN
    },
    // Nemotron Nano 2.
    CallSyntax {
        name: "nemotron",
        recognised_by: &["<TOOLCALL>"],
        openings: &[opening("<TOOLCALL>", OBJECT)],
        closes: &["</TOOLCALL>"],
        written: object_written(["<TOOLCALL>[", ", ", "]</TOOLCALL>"], ["", ""], "arguments"),
        ..PLAIN
    },
    CallSyntax {
        name: "hunyuan_v3",
        recognised_by: &["<tool_sep>", "<arg_key>"],
        openings: &[opening("<tool_calls>", &[]), opening("<tool_call>", SEPARATED)],
        closes: &["</tool_call>", "</tool_calls>"],
        written: Written {
            begin: "<tool_calls>\n",
            between: Some("\n"),
            end: "\n</tool_calls>",
            before: "<tool_call>",
            after: "\n</tool_call>",
            style: WrittenStyle::Tagged(SEPARATED_TAGS),
        },
        ..PLAIN
    },
    // Hunyuan-A13B.
    CallSyntax {
        name: "hunyuan_list",
        recognised_by: &["<tool_calls>"],
        openings: &[opening("<tool_calls>", OBJECT)],
        closes: &["</tool_calls>"],
        written: object_written(["<tool_calls>[", ", ", "]</tool_calls>"], ["", ""], "arguments"),
        ..PLAIN
    },
    // GLM-4.5 to 4.7.
    CallSyntax {
        name: "glm",
        recognised_by: &["<arg_key>"],
        openings: &[opening("<tool_call>", GLM)],
        closes: &["</tool_call>"],
        written: Written {
            begin: "",
            between: Some("\n"),
            end: "",
            before: "<tool_call>",
            after: "</tool_call>",
            style: WrittenStyle::Tagged(ARGUMENT_TAGS),
        },
        ..PLAIN
    },
    CallSyntax {
        name: "seed_oss",
        recognised_by: &["<seed:tool_call>", "<function="],
        openings: &[opening("<seed:tool_call>", CODER)],
        closes: &["</seed:tool_call>"],
        written: Written {
            begin: "",
            between: Some("\n"),
            end: "",
            before: "<seed:tool_call>\n",
            after: "\n</seed:tool_call>",
            style: WrittenStyle::Tagged(FUNCTION_TAGS),
        },
        ..PLAIN
    },
    // Qwen3-Coder, Qwen3.5 and families that took their syntax over.
    CallSyntax {
        name: "qwen3_coder",
        recognised_by: &["<function="],
        openings: &[
            opening("<tool_call>", HERMES),
            // The model leaves the mark out at times.
            Opening { mark: "<function=", styles: CODER, is_within: true },
        ],
        closes: &["</tool_call>"],
        written: Written {
            begin: "",
            between: Some("\n"),
            end: "",
            before: "<tool_call>\n",
            after: "\n</tool_call>",
            style: WrittenStyle::Tagged(FUNCTION_TAGS),
        },
        ..PLAIN
    },
    // Hermes, Qwen2.5, Qwen3, SmolLM3 and many more.
    CallSyntax {
        name: "hermes",
        recognised_by: &["<tool_call>"],
        openings: &[opening("<tool_call>", HERMES)],
        closes: &["</tool_call>"],
        written: object_written(["", "\n", ""], ["<tool_call>\n", "\n</tool_call>"], "arguments"),
        ..PLAIN
    },
    // Llama 3.1 to 3.3.
    CallSyntax {
        name: "llama3",
        recognised_by: &["ipython", "\"parameters\""],
        openings: &[opening(PYTHON_TAG, OBJECT)],
        bare: BareCalls::First,
        // The template refuses more calls than one.
        written: Written { between: None, ..object_written(["", "", ""], ["", ""], "parameters") },
        ..PLAIN
    },
];

const DEEPSEEK_OPENINGS: &[Opening] =
    &[opening("<｜tool▁calls▁begin｜>", &[]), opening("<｜tool▁call▁begin｜>", DEEPSEEK)];
const DEEPSEEK_CLOSES: &[&str] = &["```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"];
/// Calls that must be made are objects, which the model writes, too.
const LFM2: CallSyntax = CallSyntax {
    name: "lfm2",
    openings: &[opening("<|tool_call_start|>", PYTHON)],
    closes: &["<|tool_call_end|>"],
    written: object_written(["<|tool_call_start|>[", ", ", "]<|tool_call_end|>"], ["", ""], "arguments"),
    ..PLAIN
};
/// The model leaves the mark of the list out at times.
const MINIMAX_OPENINGS: &[Opening] =
    &[opening("<minimax:tool_call>", &[]), Opening { mark: "<invoke name=", styles: INVOKE, is_within: true }];
const PHI_OPENINGS: &[Opening] = &[opening("<|tool_call|>", OBJECT), opening("functools", OBJECT)];

static UNKNOWN: CallSyntax = CallSyntax {
    name: "unknown",
    bare: BareCalls::First,
    written: object_written(["", "\n", ""], ["", ""], "arguments"),
    ..PLAIN
};

/// The syntaxes of all families, for texts of an unknown model.
pub(crate) static ANY: CallSyntax = CallSyntax {
    name: "any",
    openings: &[
        opening("<tool_call>", TOOL_CALL),
        opening("<seed:tool_call>", CODER),
        Opening { mark: "<function=", styles: CODER, is_within: true },
        opening("<|tool_call>", GEMMA),
        opening("<|tool_call|>", OBJECT),
        opening("functools", OBJECT),
        opening(PYTHON_TAG, OBJECT),
        opening("[TOOL_CALLS]", MISTRAL),
        opening("<｜tool▁calls▁begin｜>", &[]),
        opening("<｜tool▁call▁begin｜>", DEEPSEEK),
        opening("<|tool_calls_section_begin|>", &[]),
        opening("<|tool_call_begin|>", KIMI),
        opening("<|START_ACTION|>", OBJECT),
        opening("<TOOLCALL>", OBJECT),
        opening("<tool_calls>", OBJECT),
        opening("<minimax:tool_call>", INVOKE),
        opening("<|tool_call_start|>", PYTHON),
    ],
    closes: &[
        "<|END_ACTION|>",
        "</TOOLCALL>",
        "</tool_calls>",
        "</minimax:tool_call>",
        "</tool_call>",
        "</seed:tool_call>",
        "<tool_call|>",
        "<|/tool_call|>",
        "```",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ],
    bare: BareCalls::First,
    has_channels: true,
    ..PLAIN
};
