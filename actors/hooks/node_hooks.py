"""The hooks of a node: those of its own registry, and those that are registered for its realm.

A run is bound to the hooks that its node had when it started. Of the realm's it has the form of
that moment, of the node's own the present one. Whether a hook is enforced, audited, off or removed
is read when a node begins to drive the run. A node that cannot invoke one of them leaves the run to
others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.daemon_threads import DaemonThreadPool
from rookery.actors.hooks.authoring import LocalHook, LocalRule
from rookery.actors.hooks.executors.ports import HookExecutors, validate_package_hooks
from rookery.actors.hooks.registration import check_registrations
from rookery.actors.kernel.executors import NotExecutableHere
from rookery.schemas.calls import AvailableTool, PinnedHook, RunEnvironment
from rookery.schemas.errors import Refused
from rookery.schemas.hooks import HookMode, HookRegistration, HookSettings, RuleHook
from rookery.schemas.ids import HookExecutorRef, encode_typed_text
from rookery.schemas.seed.agent_error import AgentError
from rookery.schemas.seed.hook import HookPoint, HookResponseClass
from rookery.schemas.seed.hook_spec import HOOK_SIDECAR_KIND, HOOK_SIDECAR_VERSION, HookSpec
from rookery.schemas.seed.package import (
    RUNTIME_PACKAGE_SCHEMA_VERSION,
    RuntimePackageFingerprint,
    package_fingerprint,
)

__all__ = ["NodeHooks", "hook_sidecar", "run_fingerprint", "run_package"]

log = logging.getLogger(__name__)

THREADS_MAX = 16
MISSING_POLL_S: Final = 1.0
_NONE: Final[Mapping[str, HookRegistration]] = MappingProxyType({})
FINGERPRINTS_MAX = 1_024


class NodeHooks:
    """One per node. Raises ``Refused`` for an invalid registration."""

    def __init__(
        self,
        hooks: Iterable[LocalHook | LocalRule] = (),
        missing_wait_s: float = HookSettings().missing_wait_s,
    ) -> None:
        """``missing_wait_s``: how long a run waits for a hook that this node lacks."""
        hooks, self._missing_wait_s = tuple(hooks), missing_wait_s
        check_registrations([one.registration for one in hooks])
        self.own: Mapping[str, HookRegistration] = {
            one.registration.spec.hook_id.as_str(): one.registration for one in hooks
        }
        """Of the node's registry, by id."""
        self.problem = ""
        """Why no run may start here: a hook may be missing, or its order would be wrong."""
        self._forms = _NONE
        local = [one for one in hooks if isinstance(one, LocalHook)]
        threads, functions = DaemonThreadPool(THREADS_MAX), dict[HookExecutorRef, LocalHook]()
        for one in local:
            one.threads = threads
            if not functions.setdefault(one.executor_ref, one).is_of(one):
                text = f"two functions of hooks are called {one.executor_ref.as_str()[:200]}"
                raise Refused("HOOK_INVALID", text, hint="a hook's function has a name of its own")
        self.executors = HookExecutors(local)
        self._have(self.own)

    def follow(
        self, realm: Mapping[str, HookRegistration], forms: Mapping[str, HookRegistration]
    ) -> None:
        """Have the realm's hooks beside the node's own; one of the same id replaces the node's.
        ``forms``: by digest, each form that a hook of the realm has had."""
        self._forms, self.problem = forms, ""
        self._have({**self.own, **realm})
        try:
            self.check(realm)
        except Refused as refusal:
            self.problem = refusal.message

    def check(self, realm: Mapping[str, HookRegistration]) -> None:
        """Raise ``Refused`` if the realm's hooks may not be beside the node's own."""
        check_registrations(tuple({**self.own, **realm}.values()))

    def _have(self, registrations: Mapping[str, HookRegistration]) -> None:
        ordered = sorted(registrations.values(), key=lambda one: one.spec.sort_key())
        self._registrations = {one.spec.hook_id.as_str(): one for one in ordered}
        self.registrations = tuple(ordered)
        """The hooks of runs that start now, their observers, and those that are off, in order."""
        self._enabled = [one for one in ordered if one.is_enabled and one.spec.is_blocking]
        self._pins = tuple(map(_pin, self._enabled))
        self._fingerprints: dict[Hashable, str] = {}

    def pin(self, environment: RunEnvironment) -> RunEnvironment:
        """The environment of a run that starts now, with the hooks of the node; ``Refused`` while
        these are not known."""
        if self.problem:
            hint = "rookery hooks list; rookery doctor"
            raise Refused("HOOK_INVALID", f"no run starts here: {self.problem}", hint=hint)
        fingerprint, pins = self._fingerprint(environment), self._pins or UNSET
        return replace(environment, hooks=pins, package_fingerprint=fingerprint)

    def pin_again(self, environment: RunEnvironment) -> RunEnvironment:
        """The environment of a run that leaves a park, with the hooks of now; the same object if
        these are the run's, or are not known here. A hook that this node has never had stays, as
        only a node that has it can say that it is gone."""
        if self.problem:
            return environment
        former = _pins_of(environment)
        elsewhere = tuple(
            pin
            for pin in former
            if pin.hook_id not in self._registrations and pin.digest not in self._forms
        )
        if set(former) == {*elsewhere, *self._pins}:
            return environment
        fingerprint = self._fingerprint(environment)
        if elsewhere:
            specs = [one.spec for one in self._enabled]
            fingerprint = run_fingerprint(environment, specs, elsewhere).as_str()
        pins = (*elsewhere, *self._pins)
        return replace(environment, hooks=pins or UNSET, package_fingerprint=fingerprint)

    def _fingerprint(self, environment: RunEnvironment) -> str:
        """Of the package of a run; runs with the same tools, policy and guest share it."""
        key = (
            environment.language,
            environment.build,
            environment.catalogue,
            environment.surfaces,
            environment.policy,
        )
        if (found := self._fingerprints.get(key)) is None:
            specs = [one.spec for one in self._enabled]
            found = run_fingerprint(environment, specs).as_str()
            if len(self._fingerprints) >= FINGERPRINTS_MAX:
                self._fingerprints.clear()
            self._fingerprints[key] = found
        return found

    async def wait_for(self, environment: RunEnvironment) -> str:
        """Wait until this node can invoke the hooks of a run, unless another node takes it over;
        the id of one that it still cannot, or an empty text."""
        for _ in range(ceil(self._missing_wait_s / MISSING_POLL_S)):
            if not (missing := self._missing(environment)):
                return ""
            log.warning("a run waits for hooks", extra={"missing": ", ".join(missing)[:400]})
            await asyncio.sleep(MISSING_POLL_S)
        return next(iter(self._missing(environment)), "")

    def _missing(self, environment: RunEnvironment) -> list[str]:
        return [pin.hook_id for pin in _pins_of(environment) if not self._has(pin)]

    def require(self, environment: RunEnvironment) -> None:
        """Raise ``NotExecutableHere`` if a hook of the run is missing here."""
        if missing := self._missing(environment):
            text = f"a run needs hooks that this node lacks: {', '.join(missing)[:400]}"
            raise NotExecutableHere(text)

    def of_run(self, environment: RunEnvironment) -> list[HookRegistration]:
        """The hooks of a run that this node may execute, in order."""
        found = [one for pin in _pins_of(environment) if (one := self._bound(pin)) is not None]
        enabled = [one for one in found if one.is_enabled]
        return sorted(enabled, key=lambda one: one.spec.sort_key())

    def fault_of(self, registration: HookRegistration) -> str:
        """Why this node cannot invoke the hook, as the contract says it; empty if it can."""
        if isinstance(registration.executor, RuleHook):
            return ""
        try:
            validate_package_hooks((registration.spec,), self.executors)
        except AgentError as error:
            return error.context.message
        return ""

    def _bound(self, pin: PinnedHook) -> HookRegistration | None:
        """The hook of a run in the form that it has there, in its present mode."""
        present, bound = self._registrations.get(pin.hook_id), self._forms.get(pin.digest)
        if bound is None:
            return present
        mode = HookMode.OFF if present is None else present.mode
        return bound if bound.mode is mode else replace(bound, mode=mode)

    def _has(self, pin: PinnedHook) -> bool:
        registration = self._bound(pin)
        return registration is not None and (
            not registration.is_enabled or not self.fault_of(registration)
        )


def _pins_of(environment: RunEnvironment) -> tuple[PinnedHook, ...]:
    return () if environment.hooks is UNSET else environment.hooks


def _pin(registration: HookRegistration) -> PinnedHook:
    hook_id = registration.spec.hook_id.as_str()
    spec = registration.spec
    judges_results = spec.point is HookPoint.AFTER_TOOL_CALL
    retries = judges_results and HookResponseClass.REQUEST_RETRY in spec.mutation_rights.rights
    return PinnedHook(hook_id=hook_id, digest=registration.digest(), retries=retries or UNSET)


# --- packages -------------------------------------------------------------------------------------

# The package of a run: everything that is in force for it, under one fingerprint. Pure.
#
# A hook is in it by its sidecar, which names the hash of its spec.


PACKAGE_ID: Final = "rookery.run"


def hook_sidecar(spec: HookSpec) -> dict[str, Any]:
    """The sidecar of a valid spec."""
    content_hash, policy = spec.spec_hash(), spec.policy_ref
    sidecar = {
        "sidecar_id": spec.sidecar_id(),
        "kind": HOOK_SIDECAR_KIND,
        "version": HOOK_SIDECAR_VERSION,
        "content_hash": content_hash,
    }
    policies = [msgspec.to_builtins(policy, enc_hook=encode_typed_text)]
    return {**sidecar, "refs": [sidecar], "policy_refs": policies}


def run_package(
    environment: RunEnvironment,
    specs: Sequence[HookSpec] = (),
    elsewhere: Sequence[PinnedHook] = (),
) -> dict[str, Any]:
    """The package of a run in an environment: its tools, hooks, policy and guest. ``elsewhere``:
    hooks that only other nodes have."""
    return {
        "schema_version": RUNTIME_PACKAGE_SCHEMA_VERSION,
        "package_id": PACKAGE_ID,
        "capabilities": [_capability(tool) for tool in environment.tools],
        "catalogue": environment.catalogue,
        "surfaces": _surfaces(environment),
        "sidecars": [*map(hook_sidecar, specs), *map(_foreign_sidecar, elsewhere)],
        "policies": {"digest": environment.policy or ""},
        "guest": {"language": environment.language.value, "build": environment.build},
    }


def run_fingerprint(
    environment: RunEnvironment,
    specs: Sequence[HookSpec] = (),
    elsewhere: Sequence[PinnedHook] = (),
) -> RuntimePackageFingerprint:
    """The fingerprint of the package of a run; the order of tools and hooks does not count."""
    return package_fingerprint(run_package(environment, specs, elsewhere))


def _foreign_sidecar(pin: PinnedHook) -> dict[str, Any]:
    """Of a hook whose spec is not known here; its registration is."""
    return {"sidecar_id": f"hook.{pin.hook_id}", "kind": HOOK_SIDECAR_KIND, "digest": pin.digest}


def _surfaces(environment: RunEnvironment) -> dict[str, Any]:
    """The tools of surfaces, by the digests of their lists."""
    seen = environment.surfaces
    return {} if seen is UNSET else {"lists": list(seen.lists), "without": list(seen.without)}


def _capability(tool: AvailableTool) -> dict[str, Any]:
    """What a tool is; what the run has a right to is not part of the package."""
    return {
        "capability_id": tool.name,
        "kind": "tool",
        "schema_digest": tool.schema_digest,
        "side_effect": tool.side_effect.value,
    }
