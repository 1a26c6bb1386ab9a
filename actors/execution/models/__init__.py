"""Runs that a language model drives: its steps, the attempts to ask it, and how its runs end."""

from rookery.actors.execution.models.model_execution import model_execution

__all__ = ["model_execution"]
