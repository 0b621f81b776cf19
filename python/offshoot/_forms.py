"""Forms that samples must have: vLLM's ``StructuredOutputsParams`` and the older ``GuidedDecodingParams``, read and
turned into the engine's; schemas may be dicts, texts or pydantic models."""

from __future__ import annotations

import dataclasses
import json as _json
from collections.abc import Mapping
from typing import Any

from offshoot._native import NativeForm
from offshoot._vllm import asks

#: What a fork takes as a form: parameters, a JSON Schema as a dict or text, or a pydantic model, whose class has
#: ``model_json_schema``.
Form = Any

#: Fields that say what a text must be, of which a form has one.
_KINDS = ("json", "regex", "choice", "grammar", "json_object")
#: Fields that change how JSON is written.
_STYLE = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
#: Fields of vLLM's that choose its library for forms: there is one here.
_BACKENDS = ("backend", "backend_was_auto", "disable_fallback", "_backend", "_backend_was_auto")


@dataclasses.dataclass(kw_only=True)
class StructuredOutputsParams:
    """A form that samples must have, by one of these: ``json``, a JSON Schema as a dict or text, or a pydantic model;
    ``regex``, a pattern of the whole text; ``choice``, texts of which it is one; ``grammar``, in Lark or GBNF;
    ``json_object``, any object. JSON has a blank behind commas and colons or none; ``disable_any_whitespace``: none;
    ``whitespace_pattern``: the pattern of white space between any of its parts. ``disable_additional_properties``:
    objects whose schema lists properties have no others."""

    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        native_form(type(self).__name__, self)

    def all_constraints_none(self) -> bool:
        """Whether it asks for nothing."""
        return not any(asks(getattr(self, name)) for name in (*_KINDS, "structural_tag"))


@dataclasses.dataclass(kw_only=True)
class GuidedDecodingParams(StructuredOutputsParams):
    """``StructuredOutputsParams`` as vLLM called them before. ``backend`` and what goes with it is of no effect."""

    backend: str | None = None
    backend_was_auto: bool = False
    disable_fallback: bool = False

    @classmethod
    def from_optional(cls, **fields: Any) -> GuidedDecodingParams | None:
        """The parameters; None where no field asks for a form."""
        made = cls(**{name: value for name, value in fields.items() if value is not None})
        return None if made.all_constraints_none() else made


def native_form(argument: str, given: Any) -> NativeForm | None:
    """The form of an argument: parameters as vLLM has them, or a dict of their fields; None if they ask for none."""
    fields = _fields(argument, given)
    if asks(fields.get("structural_tag")):
        raise NotImplementedError(
            f"{argument}.structural_tag is not supported: give json, regex, choice, grammar or json_object")
    kinds = [name for name in _KINDS if fields.get(name) is not None and fields.get(name) is not False]
    if len(kinds) > 1:
        raise ValueError(f"{argument}: expected one of {', '.join(_KINDS)}, found {' and '.join(kinds)}")
    style: dict[str, Any] = {name: fields.get(name) for name in _STYLE if asks(fields.get(name))}
    for name, value in style.items():
        if not isinstance(value, str if name == "whitespace_pattern" else bool):
            raise TypeError(f"{argument}.{name}: expected "
                            f"{'a pattern' if name == 'whitespace_pattern' else 'True or False'}, found {value!r}")
    if not kinds:
        if style:
            raise ValueError(f"{argument}.{next(iter(style))}: expected json or json_object beside it, found neither")
        return None
    kind, value = kinds[0], fields[kinds[0]]
    if style and kind not in ("json", "json_object"):
        raise ValueError(f"{argument}.{next(iter(style))}: expected json or json_object beside it, found {kind}")
    if kind == "json":
        return _json_form(f"{argument}.json", value, style)
    if kind == "json_object":
        if value is not True:
            raise TypeError(f"{argument}.json_object: expected True or False, found {value!r}")
        return NativeForm.json(None, **style)
    if kind == "choice":
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
            raise TypeError(f"{argument}.choice: expected a list of texts, found {value!r}")
        texts = list(value)
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{argument}.choice: expected a list of texts, at least one, found {value!r}")
        return NativeForm.choice(texts)
    if not isinstance(value, str):
        raise TypeError(f"{argument}.{kind}: expected a text, found {value!r}")
    if kind == "regex":
        return NativeForm.regex(value)
    try:
        return NativeForm.grammar(value)
    except ValueError as error:
        raise ValueError(f"{argument}.grammar: {error}") from None


def form_of_fork(given: Any) -> NativeForm | None:
    """The form that a fork begins: as ``native_form`` takes it, or a JSON Schema: a dict, its text, or a pydantic
    model."""
    if isinstance(given, str) or _model_schema(given) is not None:
        return _json_form("form", given, {})
    if not isinstance(given, Mapping) and not _has_fields(given):
        raise TypeError("form: expected StructuredOutputsParams, a JSON Schema as a dict or text, a pydantic model or "
                        f"False, found {given!r}")
    if isinstance(given, Mapping) and not set(given) & {*_KINDS, *_STYLE, "structural_tag"}:
        return _json_form("form", given, {})
    form = native_form("form", given)
    if form is None:
        raise ValueError(f"form: expected one of {', '.join(_KINDS)}, found none of them")
    return form


def _fields(argument: str, given: Any) -> dict[str, Any]:
    """The fields of parameters: of ours, of vLLM's own, or of a dict."""
    if isinstance(given, Mapping):
        fields = dict(given)
        unknown = sorted(set(fields) - {*_KINDS, *_STYLE, *_BACKENDS, "structural_tag"})
        if unknown:
            raise TypeError(f"{argument}: expected fields of StructuredOutputsParams, found {unknown[0]!r}")
        return fields
    if not _has_fields(given):
        raise TypeError(f"{argument}: expected StructuredOutputsParams, found {given!r}")
    return {name: getattr(given, name) for name in (*_KINDS, *_STYLE, "structural_tag") if hasattr(given, name)}


def _has_fields(given: Any) -> bool:
    """Whether it has the fields of parameters. (A pydantic model has a method ``json``.)"""
    return hasattr(given, "regex") and hasattr(given, "json_object")


def _model_schema(value: Any) -> Any:
    """The JSON Schema of a pydantic model, by its method; None of anything else."""
    method = getattr(value, "model_json_schema", None)
    return method() if callable(method) else None


def _json_form(argument: str, value: Any, style: dict[str, Any]) -> NativeForm:
    schema = _model_schema(value)
    if schema is None:
        schema = value
    if isinstance(schema, bytes) or not isinstance(schema, (str, bool, Mapping)):
        raise TypeError(f"{argument}: expected a JSON Schema as a dict or text, or a pydantic model, found {value!r}")
    try:
        text = schema if isinstance(schema, str) else _json.dumps(schema, ensure_ascii=False, allow_nan=False)
        return NativeForm.json(text, **style)
    except (ValueError, RecursionError, TypeError) as error:
        raise ValueError(f"{argument}: expected a JSON Schema, found {str(value)[:60]!r} ({error})") from None
