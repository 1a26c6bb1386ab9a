"""The models of a node: what its configuration may say, and which requests they take."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rookery.actors.execution.agents import open_models
from rookery.actors.execution.agents.conversation import ModelRun
from rookery.actors.execution.agents.model_calls import judge_calls
from rookery.actors.execution.agents.model_port import ModelCall, ModelTool
from rookery.actors.execution.agents.scripted_model import read_script
from rookery.ops.config import load
from rookery.schemas.agents import CallPart, ConfiguredModel
from rookery.schemas.errors import Refused
from rookery.schemas.run import RunLimits, RunRequest

ANSWER = b'{"answers": [{"text": "hello"}]}'


def configured(**fields: Any) -> dict[str, ConfiguredModel]:
    return {"m": ConfiguredModel(**fields)}


def test_a_prompt_without_the_package_of_its_provider_is_refused_with_the_line_to_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "s.json").write_bytes(ANSWER)
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)  # It cannot be imported.
    known = configured(provider="openai", model="x")
    known["fake"] = ConfiguredModel(provider="scripted", script="s.json")
    models = open_models(known, "fake", tmp_path)
    models.check(RunRequest(prompt="x"))
    with pytest.raises(Refused) as refused:
        models.check(RunRequest(prompt="x", model="m"))
    assert (refused.value.code, refused.value.hint) == (
        "EXTRA_MISSING",
        "pip install 'rookery[agents]'",
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"provider": "oracle"}, "no provider is called"),
        ({"provider": "openai"}, "which model"),
        ({"provider": "scripted"}, "has no script"),
        ({"provider": "scripted", "script": "absent.json"}, "No such file"),
        ({"provider": "scripted", "script": "json:dumps_not"}, "no attribute"),
        ({"provider": "scripted", "script": "sys:path"}, "neither a script nor a function"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_when_the_node_starts(
    tmp_path: Path, fields: dict[str, Any], text: str
):
    with pytest.raises(Refused, match=text) as refused:
        open_models(configured(**fields), "", tmp_path)
    assert refused.value.code == "CONFIG_INVALID"


@pytest.mark.parametrize(
    "script", [b"{", b'{"answers": [{"colour": 1}]}', b'{"answers": [{"match": "("}]}']
)
def test_a_script_that_says_nothing_sensible_is_refused(script: bytes):
    with pytest.raises(Refused, match="CONFIG_INVALID"):
        read_script(script, "s.json")


def test_the_default_has_to_be_a_model(tmp_path: Path):
    with pytest.raises(Refused, match="CONFIG_INVALID"):
        open_models({}, "fast", tmp_path)


def test_the_configuration_has_a_table_for_each_model(tmp_path: Path):
    file = tmp_path / "rookery.toml"
    file.write_text('[models]\ndefault = "a"\n[models.a]\nprovider = "openai"\nmodel = "x"\n')
    loaded = load(environ={}, directory=tmp_path)
    assert loaded.config.models.default == "a"
    assert loaded.config.models.known["a"].model == "x"
    file.write_text('[models.a]\nprovider = "openai"\nkey = "secret"\n')
    with pytest.raises(Refused, match="CONFIG_INVALID"):
        load(environ={}, directory=tmp_path)


def test_limits_of_a_prompt_have_defaults_and_are_pinned_with_its_run(tmp_path: Path):
    (tmp_path / "s.json").write_bytes(ANSWER)
    models = open_models(configured(provider="scripted", script="s.json"), "m", tmp_path)
    limits = models.environment(RunRequest(prompt="x", limits=RunLimits(turns=3))).limits
    assert (limits.turns, limits.tool_calls, limits.wall_ms) == (3, 256, 600_000)
    hurried = models.environment(RunRequest(prompt="x", timeout_ms=70)).limits
    assert hurried.wall_ms == 70
    text = msgspec.json.encode(RunRequest(prompt="x", limits=RunLimits(turns=3)))
    assert msgspec.json.decode(text, type=RunRequest).limits == RunLimits(turns=3)


def test_calls_that_no_record_can_have_are_mistakes_of_their_model():
    tools = {"look": ModelTool(name="look", description="", schema={"type": "object"})}
    wanted = [
        ModelCall(name="look", arguments='{"a": 1}'),
        ModelCall(name="look", arguments='{"a": 1'),
        ModelCall(name="look", arguments="[1]"),
        ModelCall(name="look", arguments={"a": "\ud800"}),
        ModelCall(name="look", arguments={"a": float("nan")}),
        ModelCall(name="lo\ud800ok" * 99, arguments={}, id="\ud800" * 500),
    ]
    judged = judge_calls(
        wanted, ModelRun("r"), tools, lambda *_: None, calls_max=9, operation_id=str
    )
    codes = [None if one.fault is None else one.fault.code for one in judged]
    assert codes == [None, *["INVALID_JSON"] * 4, "UNKNOWN_TOOL"]
    assert [one.part.number for one in judged] == [1, 2, 3, 4, 5, 6]
    for one in judged:
        stored = msgspec.json.encode(one.part)
        assert len(stored) < 2_000
        assert msgspec.json.decode(stored, type=CallPart) == one.part
