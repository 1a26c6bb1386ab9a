"""Limits out of range are refused with a hint; facts with such limits stay readable."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.schemas.codec import (
    FactCodec,
    decode_command,
    encode_facts,
    encode_json,
    hint_for,
    strict,
)
from rookery.schemas.commands import COMMANDS, ChangeLimits, CreateSession, RunsQuery
from rookery.schemas.errors import Refused
from rookery.schemas.facts.session import SESSION_FACTS, LimitsSet
from rookery.schemas.run import (
    RunRequest,
    SessionLimits,
    check_limits,
    check_run_limits,
    limit_hint,
)

LEAST = {"max_stdout_bytes": 0, "max_external_calls": 0}
MOST = {"max_stack_depth": 65_535}
NAMES = SessionLimits.__struct_fields__


@pytest.mark.parametrize("name", NAMES)
@given(value=st.one_of(st.integers(), st.sampled_from((0, 1, 65_535, 65_536, 2**32 - 1, 2**32))))
def test_a_limit_is_refused_exactly_outside_its_range(name: str, value: int):
    least, most = LEAST.get(name, 1), MOST.get(name, 2**32 - 1)
    limits = SessionLimits(**{name: value})
    if least <= value <= most:
        check_run_limits(RunRequest(limits=limits))
        assert check_limits(limits) is limits
        return
    with pytest.raises(Refused, match=f"INVALID_ARGUMENT: {name} is {value}") as caught:
        check_run_limits(RunRequest(limits=limits))
    assert caught.value.hint == f"{name} is a whole number from {least} to {most}"


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_is_no_whole_number_is_refused_also_when_a_program_made_it(value: Any):
    with pytest.raises(Refused, match="memory_mb is"):
        check_limits(SessionLimits(memory_mb=value))
    if value is not None:
        with pytest.raises(Refused, match="timeout_ms is"):
            check_run_limits(RunRequest(timeout_ms=value))


def test_a_fact_with_limits_out_of_range_is_read():
    fact = LimitsSet(limits=SessionLimits(memory_mb=0, cpu_ms=-1))
    assert FactCodec[Any](SESSION_FACTS).decode(encode_facts([fact])) == [fact]


def test_what_is_left_out_of_a_change_stays():
    before = SessionLimits(memory_mb=5, cpu_ms=6)
    assert ChangeLimits(cpu_ms=7).of(before) == SessionLimits(memory_mb=5, cpu_ms=7)
    assert ChangeLimits().of(before) is not None
    assert ChangeLimits().of(before) == before


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        (RunRequest, {"limits": {"cpu_ms": "lots"}}, limit_hint("cpu_ms")),
        (RunRequest, {"timeout_ms": 1.5}, limit_hint("timeout_ms")),
        (RunRequest, {"limits": {"cpu": 1}}, f"known: {', '.join(NAMES)}"),
        (RunRequest, {"language": "cobol"}, "language is one of python, typescript"),
        (CreateSession, {"limits": {"memory_mb": None}}, limit_hint("memory_mb")),
        (ChangeLimits, {"memory_mb": "1"}, limit_hint("memory_mb")),
        (ChangeLimits, {"memory": 1}, f"known: {', '.join(NAMES)}"),
        (RunsQuery, {"status": "fine"}, "status is one of"),
        (RunRequest, {"code": 7}, "$SRV.INFO.rookery"),
        (RunRequest, [1], "$SRV.INFO.rookery"),
        (RunRequest, {"inputs": []}, "$SRV.INFO.rookery"),
    ],
)
def test_a_mismatching_body_gets_a_hint(kind: Any, body: Any, says: str):
    with pytest.raises(Refused) as caught:
        decode_command(encode_json(body), kind)
    assert says in caught.value.hint


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_command_has_a_hint_for_every_mismatch(verb: str):
    kind = COMMANDS[verb]
    for message in ("Expected `object`", "at `$.no.such.place`", "at `$.limits[...]`", "at `$`"):
        assert hint_for(kind, message)
        assert hint_for(strict(kind), message)
