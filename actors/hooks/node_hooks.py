"""The hooks of a node: registered by its own process, fixed when it starts.

A run has the hooks that its node had when it started, in their present form. A node that lacks one
of them leaves the run to others; one that has switched it off does not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.hooks.authoring import LocalHook, LocalRule
from rookery.actors.hooks.executors import HookExecutors
from rookery.actors.hooks.package import run_fingerprint
from rookery.actors.hooks.registration import check_registrations
from rookery.actors.kernel import NotExecutableHere
from rookery.actors.tools import DaemonThreadPool
from rookery.schemas.calls import PinnedHook, RunEnvironment
from rookery.schemas.errors import Refused
from rookery.schemas.hooks import HookRegistration
from rookery.schemas.ids import HookExecutorRef
from rookery.schemas.seed.hook import HookPoint, HookResponseClass

__all__ = ["NodeHooks"]

THREADS_MAX = 16


class NodeHooks:
    """One per node. Raises ``Refused`` for an invalid registration."""

    def __init__(self, hooks: Iterable[LocalHook | LocalRule] = ()) -> None:
        hooks = tuple(hooks)
        check_registrations([one.registration for one in hooks])
        registrations = sorted(
            (one.registration for one in hooks), key=lambda one: one.spec.sort_key()
        )
        self._registrations = {one.spec.hook_id.as_str(): one for one in registrations}
        self._enabled = [one for one in registrations if one.is_enabled]
        self._pins = tuple(map(_pin, self._enabled))
        self._fingerprints: dict[Hashable, str] = {}
        local = [one for one in hooks if isinstance(one, LocalHook)]
        threads, functions = DaemonThreadPool(THREADS_MAX), dict[HookExecutorRef, LocalHook]()
        for one in local:
            one.threads = threads
            if not functions.setdefault(one.executor_ref, one).is_of(one):
                text = f"two functions of hooks are called {one.executor_ref.as_str()[:200]}"
                raise Refused("HOOK_INVALID", text, hint="a hook's function has a name of its own")
        self.executors = HookExecutors(local)

    def pin(self, environment: RunEnvironment) -> RunEnvironment:
        """The environment of a run that starts now, with the hooks of the node."""
        if not self._enabled:
            return (
                environment
                if environment.hooks is UNSET
                else replace(environment, hooks=UNSET, package_fingerprint=UNSET)
            )
        fingerprint = self._fingerprint(environment)
        return replace(environment, hooks=self._pins, package_fingerprint=fingerprint)

    def _fingerprint(self, environment: RunEnvironment) -> str:
        """Of the package of a run; runs with the same tools and guest share it."""
        key = (
            environment.language,
            environment.build,
            environment.catalogue,
            environment.surfaces,
        )
        if (found := self._fingerprints.get(key)) is None:
            specs = [one.spec for one in self._enabled]
            found = self._fingerprints[key] = run_fingerprint(environment, specs).as_str()
        return found

    def require(self, environment: RunEnvironment) -> None:
        """Raise ``NotExecutableHere`` if a hook of the run is missing here."""
        pins = () if environment.hooks is UNSET else environment.hooks
        if missing := [pin.hook_id for pin in pins if pin.hook_id not in self._registrations]:
            text = f"a run needs hooks that this node lacks: {', '.join(missing)[:400]}"
            raise NotExecutableHere(text)

    def of_run(self, environment: RunEnvironment) -> list[HookRegistration]:
        """The hooks of a run that this node may execute, in order."""
        pins = () if environment.hooks is UNSET else environment.hooks
        names = {pin.hook_id for pin in pins}
        return [one for one in self._enabled if one.spec.hook_id.as_str() in names]


def _pin(registration: HookRegistration) -> PinnedHook:
    hook_id = registration.spec.hook_id.as_str()
    spec = registration.spec
    judges_results = spec.point is HookPoint.AFTER_TOOL_CALL
    retries = judges_results and HookResponseClass.REQUEST_RETRY in spec.mutation_rights.rights
    return PinnedHook(hook_id=hook_id, digest=registration.digest(), retries=retries or UNSET)
