"""The hooks of a realm: how an operator's change becomes facts, and what they fold to. Pure.

A change is checked against the hooks that the realm has when it is decided, so two operators who
change them at once leave a valid set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from immutables import Map
from msgspec.structs import replace

from rookery.actors.hooks.registration import check_registration
from rookery.schemas.errors import Refused
from rookery.schemas.facts import hook as facts
from rookery.schemas.hooks import ChangeHooks, HookMode, HookRegistration
from rookery.schemas.ids import HookId

__all__ = ["RealmHook", "RealmHooks", "change_hooks", "evolve_hooks", "hooks_after"]


class RealmHook(msgspec.Struct, frozen=True, kw_only=True):
    """A hook in its present form."""

    registration: HookRegistration
    sequence: int
    """Number of the change that gave it this form."""
    actor: str = ""


class RealmHooks(msgspec.Struct, frozen=True, kw_only=True):
    """The hooks of a realm."""

    hooks: Map[str, RealmHook] = Map()
    """By id."""
    sequence: int = 0
    """Number of the last change."""
    former: frozenset[str] = frozenset()
    """Ids of hooks that the realm had once and has no more."""

    @property
    def registrations(self) -> tuple[HookRegistration, ...]:
        """In the order in which they are invoked."""
        found = (one.registration for one in self.hooks.values())
        return tuple(sorted(found, key=lambda one: one.spec.sort_key()))


# --- a change -------------------------------------------------------------------------------------


def hooks_after(hooks: RealmHooks, change: ChangeHooks) -> dict[str, HookRegistration]:
    """The hooks after a change. Raises ``Refused`` if it names nothing, or an unknown hook, or adds
    one that the others do not allow."""
    if not (change.add or change.modes or change.remove):
        raise Refused("INVALID_ARGUMENT", "the change names no hook", hint=_HELP)
    added = {one.spec.hook_id.as_str(): one for one in change.add}
    named = [*(one.spec.hook_id.as_str() for one in change.add), *change.remove]
    if twice := next((name for name in named if named.count(name) > 1), ""):
        raise Refused("INVALID_ARGUMENT", f"the change names hook {twice[:80]!r} twice")
    for name in change.remove:
        if name not in hooks.hooks and name not in hooks.former:
            raise _not_found(hooks, name)
    known = {name: one.registration for name, one in hooks.hooks.items()} | added
    after = {name: one for name, one in known.items() if name not in change.remove}
    for name, mode in change.modes.items():
        if name not in after:
            raise _not_found(hooks, name)
        after[name] = replace(after[name], mode=mode)
    for registration in change.add:
        check_registration(registration, after.values())
    return after


def change_hooks(hooks: RealmHooks, change: ChangeHooks) -> Sequence[facts.RegistrationFact]:
    """The facts of a change, which share its number; none for what holds already."""
    hooks_after(hooks, change)
    return tuple(_changes(hooks, change))


def _changes(hooks: RealmHooks, change: ChangeHooks) -> Iterator[facts.RegistrationFact]:
    sequence, actor = hooks.sequence + 1, change.actor
    modes = {name: one.registration.mode for name, one in hooks.hooks.items()}
    for name in change.remove:
        if name in hooks.hooks:
            yield facts.Removed(hook_id=HookId(name), sequence=sequence, actor=actor)
    for registration in change.add:
        hook_id = registration.spec.hook_id
        known = hooks.hooks.get(hook_id.as_str())
        if known is not None and known.registration == registration:
            continue
        modes[hook_id.as_str()] = registration.mode
        yield facts.Registered(
            hook_id=hook_id,
            sequence=sequence,
            actor=actor,
            registration=registration,
            record=registration.spec.registered(),
        )
    for name, mode in change.modes.items():
        if (modes[name] or HookMode.ENFORCE) is not mode:
            yield facts.ModeSet(hook_id=HookId(name), sequence=sequence, actor=actor, mode=mode)


def _not_found(hooks: RealmHooks, name: str) -> Refused:
    there_are = ", ".join(sorted(hooks.hooks)) or "none"
    return Refused(
        "HOOK_NOT_FOUND",
        f"the realm has no hook {name[:80]!r}",
        hint=f"rookery hooks list; there are: {there_are[:400]}",
    )


_HELP = "rookery hooks add FILE.toml, or mode ID enforce|audit|off, or remove ID"

# --- fold -----------------------------------------------------------------------------------------


def evolve_hooks(hooks: RealmHooks, fact: facts.RegistrationFact) -> RealmHooks:
    """Fold one fact."""
    name, known = fact.hook_id.as_str(), hooks.hooks
    former = hooks.former
    match fact:
        case facts.Registered(registration=registration):
            known = known.set(name, _form(registration, fact))
            former -= {name}
        case facts.ModeSet(mode=mode) if name in known:
            registration = replace(known[name].registration, mode=mode)
            known = known.set(name, _form(registration, fact))
        case facts.Removed() if name in known:
            known, former = known.delete(name), former | {name}
    return replace(hooks, hooks=known, sequence=fact.sequence, former=former)


def _form(registration: HookRegistration, fact: facts.RegistrationFact) -> RealmHook:
    return RealmHook(registration=registration, sequence=fact.sequence, actor=fact.actor)
