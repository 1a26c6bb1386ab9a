"""``@tool``: the tool it makes of a function, its arguments, and the functions it refuses."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rookery.actors import tool
from rookery.actors.tools import ToolCallContext, ToolError, ToolRegistry
from rookery.actors.tools.authoring.registry import tool_of
from rookery.schemas.calls import ApprovalMode, AutoApproval, AutoRule, CapabilityLimits
from rookery.schemas.errors import Refused
from rookery.schemas.run import SideEffect


def call(function: Any, *args: Any, **kwargs: Any) -> Any:
    context = ToolCallContext(
        name=function.__name__, args=list(args), kwargs=kwargs, idempotency_key="key-1"
    )
    return asyncio.run(tool_of(function).call_on(None, context))


def made(function: Any) -> Any:
    return tool_of(function).capability


@tool
def day_after(day: datetime.date, days: int = 1) -> datetime.date:
    """The day after another.

    Or some days after it.
    """
    return day + datetime.timedelta(days=days)


@tool(side_effect="write", timeout_ms=30_000)
async def note(text: str, ctx: ToolCallContext) -> dict[str, str]:
    await asyncio.sleep(0)
    return {text: ctx.idempotency_key}


# --- what a function becomes ----------------------------------------------------------------------


def test_a_decorated_function_is_still_a_function():
    assert day_after(datetime.date(2024, 2, 28)) == datetime.date(2024, 2, 29)
    assert day_after.__name__ == "day_after"


def test_name_and_docstring_are_name_and_description():
    assert made(day_after).name == "day_after"
    assert made(day_after).description == "The day after another.\n\nOr some days after it."
    assert made(note).description == ""


def test_every_option_reaches_the_capability():
    @tool(
        name="pay",
        side_effect=SideEffect.EXTERNAL_SYSTEM,
        approval_policy={"auto": {"rule": "args.amount < 5"}},
        idempotent=True,
        limits=CapabilityLimits(timeout_ms=1, concurrency=2),
        timeout_ms=3,
        max_request_bytes=4,
        max_response_bytes=5,
        rate_per_min=6,
    )
    def send_money(amount: int) -> None: ...

    assert made(send_money).name == "pay"
    assert made(send_money).side_effect is SideEffect.EXTERNAL_SYSTEM
    assert made(send_money).approval_policy == AutoApproval(auto=AutoRule(rule="args.amount < 5"))
    assert made(send_money).idempotent
    assert made(send_money).limits == CapabilityLimits(
        timeout_ms=3, max_request_bytes=4, max_response_bytes=5, concurrency=2, rate_per_min=6
    )


def test_without_options_a_tool_is_harmless_and_needs_no_approval():
    assert made(day_after).side_effect is SideEffect.NONE
    assert made(day_after).approval_policy is ApprovalMode.NONE
    assert made(day_after).limits == CapabilityLimits()


@pytest.mark.parametrize("side_effect", SideEffect)
def test_only_a_harmless_tool_may_be_called_again_by_default(side_effect: SideEffect):
    @tool(side_effect=side_effect)
    def act() -> None: ...

    assert made(act).idempotent is (side_effect in (SideEffect.NONE, SideEffect.READ))


def test_a_coroutine_function_is_awaited_by_programs():
    assert tool_of(note).async_mode
    assert not tool_of(day_after).async_mode


# --- what it is given, and gives ------------------------------------------------------------------


def test_arguments_are_of_the_declared_types_and_the_result_is_json():
    assert call(day_after, "2024-02-28", days=2) == "2024-03-01"
    assert call(day_after, day="2024-02-28") == "2024-02-29"


def test_the_context_is_passed_and_is_no_argument():
    assert call(note, "a") == {"a": "key-1"}
    assert list(made(note).input_schema["properties"]) == ["text"]
    with pytest.raises(ToolError, match=r"^TYPE_ERROR: note has no parameter ctx"):
        call(note, "a", ctx={})


def test_a_whole_float_is_an_integer_as_in_json_schema():
    @tool
    def kinds(one: int, many: list[int], other: float) -> list[str]:
        return [type(value).__name__ for value in (one, *many, other)]

    assert call(kinds, 1.0, [2, 3.0], 4) == ["int", "int", "int", "float"]


def test_keys_have_the_declared_type_though_json_has_only_text_keys():
    @tool
    def swap(names: dict[int, str]) -> dict[str, int]:
        return {name: number for number, name in names.items()}

    assert call(swap, {"1": "one"}) == {"one": 1}
    with pytest.raises(ToolError, match=r"^TYPE_ERROR: swap: in \$\.names: Expected `int`"):
        call(swap, {"one": "1"})


def test_a_set_is_written_in_one_order():
    @tool
    def letters() -> set[str]:
        return set("hgfedcba")

    assert call(letters) == sorted("abcdefgh")


def test_any_default_of_the_function_is_used():
    nothing: Any = object()
    some = [1, 2]

    @tool
    def given(value: int = nothing, rest: list[int] = some) -> list[bool]:
        return [value is nothing, rest is some]

    assert call(given) == [True, True]
    assert "default" not in made(given).input_schema["properties"]["value"]


def test_parameters_may_be_of_every_kind_but_variadic():
    @tool
    def mixed(a: int, /, b: int, *, c: int = 3) -> list[int]:
        return [a, b, c]

    assert call(mixed, 1, 2) == [1, 2, 3]
    assert call(mixed, a=1, b=2, c=4) == [1, 2, 4]
    assert call(mixed, 1, 2, 5) == [1, 2, 5]


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "day_after is not given day"),
        (("2024-02-28", 1, 2), {}, "day_after takes 2 arguments, given 3"),
        (("2024-02-28",), {"day": "x"}, r"day_after is given \$.day by position and by name"),
        (("soon",), {}, r"day_after: in \$.day: "),
    ],
)
def test_a_call_that_does_not_fit_never_reaches_the_function(args: Any, kwargs: Any, why: str):
    with pytest.raises(ToolError, match=f"^TYPE_ERROR: {why}"):
        call(day_after, *args, **kwargs)


@pytest.mark.parametrize("result", [object(), {(1, 2): 3}, print, {"deep": [object()]}])
def test_a_result_that_is_no_json_is_the_tools_failure(result: Any):
    @tool
    def answer():
        return result

    with pytest.raises(ToolError, match=r"^SERIALIZE_ERROR: the result is not JSON"):
        call(answer)


def test_a_result_that_holds_itself_is_the_tools_failure():
    @tool
    def answer() -> list[Any]:
        endless: list[Any] = []
        endless.append(endless)
        return endless

    with pytest.raises(ToolError, match=r"^SERIALIZE_ERROR"):
        call(answer)


def test_an_exception_of_a_tool_arrives_unchanged():
    @tool
    def fail(code: str) -> None:
        raise ToolError(code, "as told") if code else KeyError("bug")

    with pytest.raises(ToolError, match=r"^CARD_DECLINED: as told$"):
        call(fail, "CARD_DECLINED")
    with pytest.raises(KeyError):
        call(fail, "")


# --- what is refused ------------------------------------------------------------------------------


def unannotated(a: int, b) -> None: ...
def variadic(*numbers: int) -> None: ...
def keywords(**options: int) -> None: ...
def foreign(a: threading.Thread) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def opaque(a: int, handle: object) -> None: ...
def returns_opaque() -> object: ...
def two_contexts(a: ToolCallContext, b: ToolCallContext) -> None: ...
def yields() -> Iterator[int]:
    yield 1


async def yields_later() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (unannotated, "b of unannotated has no type"),
        (variadic, "numbers of variadic takes any number"),
        (keywords, "options of keywords takes any number"),
        (foreign, "a type hint of foreign cannot be resolved: name 'threading' is not defined"),
        (opaque, "handle of opaque has no JSON Schema: .*object"),
        (returns_opaque, "return of returns_opaque has no JSON Schema"),
        (two_contexts, "b of two_contexts is a second context"),
        (yields, "yields yields"),
        (yields_later, "yields_later yields"),
        (int, "@tool is for functions, not for a type"),
        ("".join, "@tool is for functions, not for a builtin_function_or_method"),
    ],
)
def test_an_unsuitable_function_is_refused_when_it_is_decorated(function: Any, why: str):
    with pytest.raises(Refused, match=f"^INVALID_ARGUMENT: {why}"):
        tool(function)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"name": "send-mail"}, "INVALID_TOOL_NAME: capability name 'send-mail'"),
        ({"name": 3}, "INVALID_ARGUMENT: name of act: Expected `str`"),
        ({"side_effect": "explosion"}, "INVALID_ARGUMENT: side_effect of act: "),
        ({"approval_policy": "perhaps"}, "INVALID_ARGUMENT: approval_policy of act: "),
        ({"idempotent": "yes"}, "INVALID_ARGUMENT: idempotent of act: "),
        ({"limits": 3}, "INVALID_ARGUMENT: limits of act: "),
        ({"timeout_ms": 0}, "INVALID_ARGUMENT: timeout_ms of act is 0"),
        ({"timeout_ms": "1s"}, "INVALID_ARGUMENT: timeout_ms of act is '1s'"),
        ({"timeout": 1}, "INVALID_ARGUMENT: @tool has no option timeout "),
    ],
)
def test_an_option_that_means_nothing_is_refused(options: Any, code: str):
    def act() -> None: ...

    with pytest.raises(Refused, match=f"^{code}"):
        tool(**options)(act)


def test_a_lambda_has_no_name_to_be_called_by():
    with pytest.raises(Refused, match=r"^INVALID_TOOL_NAME: capability name '<lambda>'"):
        tool(lambda: None)
    named = tool(name="nothing")(lambda: None)
    assert ToolRegistry.of(named).names() == ["nothing"]
