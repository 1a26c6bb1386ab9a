"""Agents: models, and the conversations in which they drive runs.

``model_port`` is how any model is asked, ``scripted_model`` one without a network, ``models`` those
of a node by their aliases. ``conversation`` folds what was said from facts, and ``model_calls``
judges the calls of an answer; both are pure. The steps are taken in ``actors/execution/models/``.
"""

from rookery.actors.execution.agents.models import ModelBudgets, Models, open_models

__all__ = ["ModelBudgets", "Models", "open_models"]
