"""Agents: models, and the conversations in which they drive runs.

``model_port`` is how any model is asked, ``scripted_model`` one without a network, ``models`` those
of a node by their aliases, ``recorded_model`` that of a replay. ``conversation`` folds what was
said from facts, and ``model_calls`` judges the calls of an answer; both are pure. The steps are
taken in ``actors/execution/models/``.
"""

from rookery.actors.agents.budgets import estimate, exceeded_budget, no_progress, priced_usage
from rookery.actors.agents.conversation import CallEnd, Conversation
from rookery.actors.agents.extraction import EXTRACTION_RETRIES_MAX, extract, extraction_text
from rookery.actors.agents.model_calls import (
    CALLS_MAX,
    CheckArguments,
    JudgedCall,
    judge_calls,
    storable,
)
from rookery.actors.agents.model_port import ModelAnswer, ModelFailure, ModelQuestion, ModelTool
from rookery.actors.agents.models import NO_MODELS, ModelBudgets, Models, open_models
from rookery.actors.agents.recorded_model import RecordedAnswer, recorded_models

__all__ = [
    "CALLS_MAX",
    "EXTRACTION_RETRIES_MAX",
    "NO_MODELS",
    "CallEnd",
    "CheckArguments",
    "Conversation",
    "JudgedCall",
    "ModelAnswer",
    "ModelBudgets",
    "ModelFailure",
    "ModelQuestion",
    "ModelTool",
    "Models",
    "RecordedAnswer",
    "estimate",
    "exceeded_budget",
    "extract",
    "extraction_text",
    "judge_calls",
    "no_progress",
    "open_models",
    "priced_usage",
    "recorded_models",
    "storable",
]
