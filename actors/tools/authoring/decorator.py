"""``@tool``: a typed Python function as a capability that programs may call.

::

    @tool(side_effect="write", timeout_ms=30_000, approval_policy="manual")
    def send(to: str, text: Annotated[str, Meta(max_length=500)], urgent: bool = False) -> Receipt:
        '''Send a message.'''

The type hints are the schemas, the docstring is the description. The function itself does not
change. A registry lists the tools a process offers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.tools.authoring.registry import (
    TOOL_ATTRIBUTE,
    RegisteredTool,
    ToolCallContext,
    ToolError,
    ToolResult,
    check_tool_name,
)
from rookery.actors.tools.authoring.signature import ToolSignature
from rookery.schemas.capability import (
    ApprovalMode,
    ApprovalPolicy,
    Capability,
    CapabilityLimits,
    RecordMode,
)
from rookery.schemas.errors import Refused
from rookery.schemas.machines.lease import AuthBindingRef
from rookery.schemas.run import SideEffect

__all__ = ["ToolOptions", "tool"]

_ANY_REALM: Final = "any"
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
    )


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
