"""Function signatures: type hints become JSON Schema, and JSON arguments become typed values.

A signature lists every parameter by name with its schema, except for the context and the
credential.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, get_type_hints

import msgspec

from rookery.actors.tools.authoring.credential import ToolCredential
from rookery.actors.tools.authoring.registry import ToolCallContext, ToolError
from rookery.actors.tools.capability_checks import bind_by_name
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused

__all__ = ["ToolSignature"]

_NO_DEFAULT: Final = inspect.Parameter.empty
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class ToolSignature:
    """The parameters and the result of a function; refuses types that JSON cannot express."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._name = name
        self._signature = inspect.signature(function)
        hints = self._hints(function)
        self._context = self._only(hints, ToolCallContext, "context")
        self._credential = self._only(hints, ToolCredential, "credential")
        self._types = {
            name: self._type_of(parameter, hints)
            for name, parameter in self._signature.parameters.items()
            if name not in (self._context, self._credential)
        }
        self._names = tuple(self._types)
        self._parameters = [
            (name, parameter.default, parameter.kind is inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in self._signature.parameters.items()
        ]
        self.input_schema = self._build_input_schema()
        self.output_schema = self._build_output_schema(hints.get("return", Any))

    def bind(self, ctx: ToolCallContext) -> tuple[list[Any], dict[str, Any]]:
        """The typed arguments of a call, positional ones and those by keyword only; raises
        ``ToolError`` for arguments that do not match."""
        try:
            given = bind_by_name(self._name, self._names, ctx.args, ctx.kwargs)
        except Refused as refusal:
            raise ToolError(refusal.code, refusal.message) from None
        if unknown := sorted(given.keys() - self._types.keys()):
            raise ToolError("TYPE_ERROR", f"{self._name} has no parameter {unknown[0][:80]}")
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, default, is_keyword in self._parameters:
            if name == self._context:
                value: Any = ctx
            elif name == self._credential:
                value = ctx.credential
            elif name in given:
                value = self._convert(name, given[name])
            elif default is _NO_DEFAULT:
                raise ToolError("TYPE_ERROR", f"{self._name} is not given {name}")
            else:
                value = default
            if is_keyword:
                kwargs[name] = value
            else:
                args.append(value)
        return args, kwargs

    @property
    def takes_credential(self) -> bool:
        """Whether the function can get the credential of its binding."""
        return self._credential is not None or self._context is not None

    @property
    def needs_credential(self) -> bool:
        return self._credential is not None

    # --- hints to schemas ---------------------------------------------------------------------

    def _only(self, hints: dict[str, Any], kind: type[object], what: str) -> str | None:
        """The parameter of a type that there is once."""
        found = [name for name in self._signature.parameters if hints.get(name) is kind]
        if len(found) > 1:
            raise self._refused(found[1], f"is a second {what}")
        return found[0] if found else None

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        try:
            return get_type_hints(function, include_extras=True)
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            raise Refused(
                "INVALID_ARGUMENT",
                f"a type hint of {self._name} cannot be resolved: {error}",
                hint="import or define the type where the module's own names are found at run time",
            ) from None

    def _type_of(self, parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
        if parameter.kind in _VARIADIC:
            raise self._refused(parameter.name, "takes any number", hint="take a list or a dict")
        if parameter.name not in hints:
            raise self._refused(parameter.name, "has no type", hint=f"write {parameter.name}: ...")
        kind = hints[parameter.name]
        try:
            msgspec.json.schema_components((kind,))
        except TypeError as error:
            raise self._refused(
                parameter.name, f"has no JSON Schema: {_last_line(error)}"
            ) from None
        return kind

    def _build_input_schema(self) -> dict[str, Any]:
        schemas, parts = _schemas(*self._types.values())
        parameters = self._signature.parameters
        described: dict[str, Any] = {
            "type": "object",
            "properties": {
                name: schema | _default_schema(parameters[name].default)
                for name, schema in zip(self._types, schemas, strict=True)
            },
            "required": [n for n in self._types if parameters[n].default is _NO_DEFAULT],
            "additionalProperties": False,
        }
        return described | parts

    def _build_output_schema(self, kind: Any) -> dict[str, Any]:
        try:
            (described,), parts = _schemas(kind)
        except TypeError as error:
            raise self._refused("return", f"has no JSON Schema: {_last_line(error)}") from None
        return described | parts

    def _refused(self, name: str, why: str, *, hint: str = "") -> Refused:
        return Refused("INVALID_ARGUMENT", f"{name} of {self._name} {why}", hint=hint)

    # --- arguments to what was hinted ---------------------------------------------------------

    def _convert(self, name: str, value: Any) -> Any:
        kind = self._types[name]
        try:
            return msgspec.convert(value, kind, str_keys=True)
        except msgspec.ValidationError as error:
            wrong = str(error)
        try:
            return msgspec.convert(_with_integers(value), kind, str_keys=True)
        except msgspec.ValidationError:
            raise ToolError("TYPE_ERROR", f"{self._name}: in $.{name}: {wrong}") from None


def _schemas(*kinds: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The schemas of the types, and their shared definitions."""
    described, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    return list(described), {"$defs": parts} if parts else {}


def _default_schema(default: Any) -> dict[str, Any]:
    """The default as JSON. A default that JSON cannot express stays out of the schema."""
    if default is _NO_DEFAULT:
        return {}
    try:
        return {"default": msgspec.json.decode(canonical_json(default))}
    except Refused:
        return {}


def _with_integers(value: Any) -> Any:
    """Replace floats with integer values: to JSON Schema 1.0 is an integer, to msgspec it is
    not."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_with_integers(inner) for inner in value]
        case dict():
            return {name: _with_integers(inner) for name, inner in value.items()}
        case _:
            return value


def _last_line(error: TypeError) -> str:
    return str(error).rpartition("\n")[2]
