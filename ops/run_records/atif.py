"""The documents of the Agent Trajectory Interchange Format, ATIF, as far as a run needs them.

Names and rules are those of its specification: step ids count from 1, only steps of an agent have a
model, calls and metrics, and each result names a call of its own step.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import Struct

__all__ = [
    "ATIF_VERSION",
    "Agent",
    "FinalMetrics",
    "Observation",
    "Step",
    "StepMetrics",
    "StepSource",
    "Trajectory",
    "TrajectoryCall",
    "TrajectoryResult",
]

ATIF_VERSION: Final = "ATIF-v1.7"

StepSource = Literal["system", "user", "agent"]


class Agent(Struct, kw_only=True, omit_defaults=True):
    name: str
    version: str
    model_name: str | None = None


class TrajectoryCall(Struct, kw_only=True, omit_defaults=True):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class TrajectoryResult(Struct, kw_only=True, omit_defaults=True):
    source_call_id: str
    content: str | None = None
    extra: dict[str, Any] | None = None


class Observation(Struct, kw_only=True):
    results: list[TrajectoryResult]


class StepMetrics(Struct, kw_only=True, omit_defaults=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None


class Step(Struct, kw_only=True, omit_defaults=True):
    step_id: int
    timestamp: str
    source: StepSource
    message: str
    model_name: str | None = None
    tool_calls: list[TrajectoryCall] | None = None
    observation: Observation | None = None
    metrics: StepMetrics | None = None
    llm_call_count: int | None = None
    """Of a step of the agent: the questions that led to it; 0 where no model was asked."""
    extra: dict[str, Any] | None = None


class FinalMetrics(Struct, kw_only=True, omit_defaults=True):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int


class Trajectory(Struct, kw_only=True, omit_defaults=True):
    schema_version: str
    session_id: str
    trajectory_id: str
    agent: Agent
    steps: list[Step]
    final_metrics: FinalMetrics
    extra: dict[str, Any]
