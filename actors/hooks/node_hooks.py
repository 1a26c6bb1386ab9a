"""The hooks of a node: registered by its own process, fixed when it starts.

A run is bound to the hooks it started with, by the digests of their registrations. A node that
lacks one of them leaves the run to others.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.hooks.authoring import LocalHook, LocalRule
from rookery.actors.hooks.executors import HookExecutors
from rookery.actors.hooks.package import run_fingerprint
from rookery.actors.hooks.registration import check_registrations
from rookery.actors.kernel import NotExecutableHere
from rookery.actors.tools import DaemonThreadPool
from rookery.schemas.calls import PinnedHook, RunEnvironment
from rookery.schemas.hooks import HookRegistration
from rookery.schemas.seed.hook_spec import HookSpec

__all__ = ["NodeHooks"]

THREADS_MAX = 16


class NodeHooks:
    """One per node. Raises ``Refused`` for an invalid registration."""

    def __init__(self, hooks: Iterable[LocalHook | LocalRule] = ()) -> None:
        hooks = tuple(hooks)
        check_registrations([one.registration for one in hooks])
        enabled = [one.registration for one in hooks if one.registration.is_enabled]
        enabled.sort(key=lambda registration: registration.spec.sort_key())
        self._registrations = {_pin(one): one for one in enabled}
        local = [one for one in hooks if isinstance(one, LocalHook)]
        threads = DaemonThreadPool(THREADS_MAX)
        for one in local:
            one.threads = threads
        self.executors = HookExecutors(local)

    def pin(self, environment: RunEnvironment) -> RunEnvironment:
        """The environment of a run that starts now, with the hooks of the node."""
        if not self._registrations:
            return environment
        pinned = replace(environment, hooks=tuple(self._registrations))
        fingerprint = run_fingerprint(environment, self._specs)
        return replace(pinned, package_fingerprint=fingerprint.as_str())

    def require(self, environment: RunEnvironment) -> None:
        """Raise ``NotExecutableHere`` if a hook of the run is missing here."""
        pins = () if environment.hooks is UNSET else environment.hooks
        if missing := [pin.hook_id for pin in pins if pin not in self._registrations]:
            text = f"a run needs hooks that this node lacks: {', '.join(missing)[:400]}"
            raise NotExecutableHere(text)

    def of_run(self, environment: RunEnvironment) -> tuple[HookRegistration, ...]:
        """The hooks of a run that this node may execute, in order."""
        pins = () if environment.hooks is UNSET else environment.hooks
        return tuple(self._registrations[pin] for pin in pins)

    @property
    def _specs(self) -> list[HookSpec]:
        return [registration.spec for registration in self._registrations.values()]


def _pin(registration: HookRegistration) -> PinnedHook:
    hook_id = registration.spec.hook_id.as_str()
    return PinnedHook(hook_id=hook_id, digest=registration.digest())
