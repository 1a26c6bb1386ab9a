"""The hooks that operators register for a realm.

``realm_hooks`` has the rules of a change and its fold, ``live_hooks`` follows the facts on each
node and serves the verbs of operators, ``trials`` invokes a hook for recorded or typed calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.hooks.realm.live_hooks import HookChanges, LiveHooks
    from rookery.actors.hooks.realm.trials import HookTrials, recorded_calls, typed_call

__all__ = ["HookChanges", "HookTrials", "LiveHooks", "recorded_calls", "typed_call"]

__getattr__ = lazy_names(
    __name__,
    {
        "live_hooks": ("HookChanges", "LiveHooks"),
        "trials": ("HookTrials", "recorded_calls", "typed_call"),
    },
)
