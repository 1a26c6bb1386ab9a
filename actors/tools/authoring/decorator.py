"""``@tool``: a typed Python function as a capability, by its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypedDict, TypeVar, Unpack, get_type_hints, overload

import msgspec
from msgspec import UNSET, Meta
from msgspec.structs import replace

from rookery.actors.tools.authoring.registry import (
    TOOL_ATTRIBUTE,
    RegisteredTool,
    ToolCallContext,
    ToolCredential,
    ToolError,
    ToolResult,
    check_tool_name,
)
from rookery.actors.tools.validation.capability_checks import bind_by_name
from rookery.schemas.calls import (
    ApprovalMode,
    ApprovalPolicy,
    Capability,
    CapabilityLimits,
    RecordMode,
)
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused
from rookery.schemas.machines.lease import AuthBindingRef
from rookery.schemas.run import SideEffect
from rookery.schemas.seed.policies import CapabilityPermission
from rookery.schemas.seed.policy_decisions import ApprovalDecisionKind, RiskClass

__all__ = [
    "ToolOptions",
    "ToolSignature",
    "tool",
    "type_schema",
]

# --- signature ------------------------------------------------------------------------------------

# Function signatures: type hints become JSON Schema, and JSON arguments become typed values.
#
# A signature lists every parameter by name with its schema, except for the context and the
# credential.


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
            return type_schema(kind)
        except TypeError as error:
            raise self._refused("return", f"has no JSON Schema: {_last_line(error)}") from None

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


def type_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type; ``TypeError`` for one that has none."""
    (described,), parts = _schemas(kind)
    return described | parts


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


# --- decorator ------------------------------------------------------------------------------------

# ``@tool``: a typed Python function as a capability that programs may call.
#
# ::
#
#     @tool(side_effect="write", timeout_ms=30_000, approval_policy="manual")
#     def send(to: str, text: Annotated[str, Meta(max_length=500)], urgent: bool = False) ->
#     Receipt:
#         '''Send a message.'''
#
# The type hints are the schemas, the docstring is the description. The function itself does not
# change. A registry lists the tools a process offers.


_ANY_REALM: Final = "any"
_Decisions = Annotated[tuple[ApprovalDecisionKind, ...], Meta(min_length=1)]
F = TypeVar("F", bound=Callable[..., Any])


class ToolOptions(TypedDict, total=False):
    """The options of a tool, beyond type hints and docstring."""

    name: str
    """Defaults to the function's name."""
    side_effect: SideEffect | str
    approval_policy: ApprovalPolicy | str | dict[str, Any]
    """``"none"``, ``"manual"``, ``"manual_any_arguments"`` or ``{"auto": {"rule": ...}}``."""
    idempotent: bool
    """Whether a second call with the same idempotency key has no further effect, so that the node
    may repeat the call after a crash. Defaults to true for tools without effect and for reads."""
    record: RecordMode | str
    """``"before"`` or ``"after"``: whether the journal gets the call's intent before the tool is
    called, or together with its outcome. Defaults to ``"after"`` for idempotent tools without
    effect or for reads that need no approval; others cannot have it."""
    quick: bool
    """Whether the function returns at once and never blocks. It is then called on the node's own
    event loop, which saves a call the change of threads; a function that takes long there holds up
    every run of the node, and its time-out cannot stop it. Defaults to false."""
    sensitive: Sequence[str]
    """Arguments that facts, lists and approvers see only as digests. In the JSON Schema they are
    ``writeOnly``, which marks them in schemas written by hand, too."""
    sensitive_result: bool
    """Whether the same holds for the result. Then exceptions are logged without their texts."""
    binding: str
    """The credential that its calls need: ``NAME`` of ``[bindings.NAME]``, or ``NAME:PROFILE``. A
    parameter annotated ``ToolCredential`` gets it, and is no part of the schema. A call waits until
    it is fresh; what the function returns or raises is scrubbed of it."""
    permissions: Sequence[CapabilityPermission | str]
    """What its calls need the permission of ``[policy]`` for, such as ``"Network"``; without this
    option it is not known."""
    risk: RiskClass | str
    """``"Low"``, ``"Medium"``, ``"High"`` or ``"Critical"``, as approvers see it. Defaults to what
    follows from the side effect."""
    allowed_decisions: Sequence[ApprovalDecisionKind | str]
    """What an approver may decide: ``"Approved"``, ``"ApprovedForSession"``, ``"Denied"``. Defaults
    to all of them."""
    limits: CapabilityLimits
    """All limits at once; each option below sets one."""
    timeout_ms: int
    max_request_bytes: int
    max_response_bytes: int
    concurrency: int
    rate_per_min: int | None


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[F], F]: ...


def tool(function: F | None = None, /, **options: Unpack[ToolOptions]) -> F | Callable[[F], F]:
    """Make a tool of a synchronous or asynchronous function; refuse a function that cannot be one.

    A parameter annotated ``ToolCallContext`` gets the context of the call and is no part of the
    schema. Arguments are converted to their declared types before the call.
    """

    def decorate(function: F) -> F:
        setattr(function, TOOL_ATTRIBUTE, _register(function, options))
        return function

    return decorate if function is None else decorate(function)


def _register(function: Callable[..., Any], options: Mapping[str, object]) -> RegisteredTool:
    if not inspect.isfunction(function):
        raise Refused(
            "INVALID_ARGUMENT",
            f"@tool is for functions, not for a {type(function).__name__}",
            hint="define a function that calls it",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Refused(
            "INVALID_ARGUMENT", f"{function.__name__} yields", hint="return a list instead"
        )
    if unknown := sorted(options.keys() - ToolOptions.__annotations__.keys()):
        raise Refused(
            "INVALID_ARGUMENT",
            f"@tool has no option {unknown[0]}",
            hint=f"there are {', '.join(ToolOptions.__annotations__)}",
        )
    name = _option(function.__name__, options, "name", function.__name__, str)
    check_tool_name(name)
    signature = ToolSignature(function, name)
    _check_binding(name, signature, options)
    capability = _capability(name, inspect.getdoc(function) or "", signature, options)
    quick: bool = _option(name, options, "quick", default=False, kind=bool)
    if inspect.iscoroutinefunction(function):
        handler = _asynchronous(function, signature)
        return RegisteredTool(capability, handler, async_mode=True, quick=quick)
    handler = _synchronous(function, signature)
    return RegisteredTool(capability, handler, async_mode=False, quick=quick)


def _capability(
    name: str, description: str, signature: ToolSignature, options: Mapping[str, object]
) -> Capability:
    side_effect: SideEffect = _option(name, options, "side_effect", SideEffect.NONE, SideEffect)
    reads_only = side_effect in (SideEffect.NONE, SideEffect.READ)
    policy = _option(name, options, "approval_policy", ApprovalMode.NONE, ApprovalPolicy)
    idempotent = _option(name, options, "idempotent", reads_only, bool)
    binding = options.get("binding", UNSET)
    repeatable = reads_only and idempotent and policy is ApprovalMode.NONE and binding is UNSET
    default = RecordMode.AFTER if repeatable else RecordMode.BEFORE
    input_schema, output_schema = _marked_schemas(name, signature, options)
    return Capability(
        name=name,
        description=description,
        input_schema=input_schema,
        output_schema=output_schema,
        side_effect=side_effect,
        limits=_limits(name, options),
        approval_policy=policy,
        idempotent=idempotent,
        record=_option(name, options, "record", default, RecordMode),
        binding=binding if isinstance(binding, str) else UNSET,
        permissions=_declared(name, options, "permissions", tuple[CapabilityPermission, ...]),
        risk=_declared(name, options, "risk", RiskClass),
        allowed_decisions=_declared(name, options, "allowed_decisions", _Decisions),
    )


def _declared(tool: str, options: Mapping[str, object], option: str, kind: Any) -> Any:
    return _option(tool, options, option, UNSET, kind) if option in options else UNSET


def _check_binding(name: str, signature: ToolSignature, options: Mapping[str, object]) -> None:
    """Refuse a binding that is none, or that the function could not use."""
    binding = _option(name, options, "binding", default="", kind=str)
    if "binding" in options:
        try:
            AuthBindingRef.parse(_ANY_REALM, binding)
        except Refused as refusal:
            raise Refused("INVALID_ARGUMENT", f"binding of {name}: {refusal.message}") from None
        if signature.takes_credential:
            return
        why = f"binding of {name}: no parameter gets the credential"
    elif signature.needs_credential:
        why = f"{name} has a parameter for a credential, and no binding"
    else:
        return
    raise Refused(
        "INVALID_ARGUMENT", why, hint='@tool(binding="NAME"), and a parameter of ToolCredential'
    )


def _marked_schemas(
    name: str, signature: ToolSignature, options: Mapping[str, object]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schemas, in which sensitive values are marked."""
    given, returned = signature.input_schema, signature.output_schema
    hidden: list[str] = _option(name, options, "sensitive", [], list[str])
    properties = dict(given["properties"])
    for argument in hidden:
        if argument not in properties:
            raise Refused(
                "INVALID_ARGUMENT",
                f"sensitive of {name}: there is no argument {argument!r}",
                hint=f"there are {', '.join(properties) or 'none'}",
            )
        properties[argument] = {**properties[argument], "writeOnly": True}
    if _option(name, options, "sensitive_result", default=False, kind=bool):
        returned = {**returned, "writeOnly": True}
    return ({**given, "properties": properties} if hidden else given), returned


def _option(tool: str, options: Mapping[str, object], option: str, default: Any, kind: Any) -> Any:
    given = options.get(option, default)
    try:
        return msgspec.convert(msgspec.to_builtins(given), kind)
    except (msgspec.ValidationError, TypeError) as error:
        raise Refused("INVALID_ARGUMENT", f"{option} of {tool}: {error}") from None


def _limits(tool: str, options: Mapping[str, object]) -> CapabilityLimits:
    limits: CapabilityLimits = _option(
        tool, options, "limits", CapabilityLimits(), CapabilityLimits
    )
    singly = {name: options[name] for name in limits.__struct_fields__ if name in options}
    return replace(limits, **singly)


# --- calling --------------------------------------------------------------------------------------


def _synchronous(
    function: Callable[..., Any], signature: ToolSignature
) -> Callable[[ToolCallContext], ToolResult]:
    def handler(ctx: ToolCallContext) -> ToolResult:
        args, kwargs = signature.bind(ctx)
        return _to_json_value(function(*args, **kwargs))

    return handler


def _asynchronous(
    function: Callable[..., Any], signature: ToolSignature
) -> Callable[[ToolCallContext], Any]:
    async def handler(ctx: ToolCallContext) -> ToolResult:
        args, kwargs = signature.bind(ctx)
        return _to_json_value(await function(*args, **kwargs))

    return handler


def _to_json_value(result: Any) -> Any:
    try:
        return msgspec.to_builtins(result, str_keys=True, order="deterministic")
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ToolError("SERIALIZE_ERROR", f"the result is not JSON: {error}") from None
