"""Runs that a language model drives: its steps, the attempts to ask it, how its runs end, and how
they are replayed."""

from rookery.actors.execution.models.model_execution import model_execution
from rookery.actors.execution.models.model_replay import ModelReplay, RunDiffers
from rookery.actors.execution.models.recording import recorded_answers

__all__ = ["ModelReplay", "RunDiffers", "model_execution", "recorded_answers"]
