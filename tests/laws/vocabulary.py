"""The words names are made of: which are wrong, and what to say instead.

A table of the wrong ones, so that each finding comes with its replacement. Rows come from the
design of the house: a word is listed only where it named one thing by several words, or several
things by one. Words of the wire (fields, verbs, subjects, headers) are no names and not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = [
    "CALL_NAMES",
    "EVERYDAY_METHODS",
    "EVERYDAY_VERBS",
    "HEAD_ONLY_ALONE",
    "NOT_IN_TEST_NAMES",
    "POETIC_ANYWHERE",
    "SETTLED",
    "SYNONYMS",
    "SYNONYMS_OF_NOUNS",
    "SYNONYMS_OF_PACKAGES",
    "TEST_MODULES",
    "participle",
    "synonyms",
    "words",
]

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def words(name: str) -> list[str]:
    """``["nats", "door"]`` of ``NatsDoor``, ``_nats_door`` and ``NATSDoor``."""
    return [word.lower() for word in _WORD.findall(name)]


# --- modules --------------------------------------------------------------------------------------

EVERYDAY_VERBS: Final[dict[str, str]] = {
    # Forms of one verb, and the nouns a module is likely to mean by them.
    "acting acted": "executor",
    "admitting admitted": "admission",
    "answering answered": "answers, replies",
    "approving approved": "approvals",
    "asking asked": "request, question, query",
    "blanking blanked": "erasure",
    "calling called": "calls",
    "choosing chosen": "choice, selection",
    "closing closed": "completions, end",
    "conversing": "protocol",
    "coming": "arrivals",
    "destroying destroyed": "destruction",
    "dispatching dispatched": "dispatch, dispatcher",
    "driving driven": "driver, execution, run rules",
    "ending ended": "end, result",
    "fetching fetched": "loader",
    "finding found": "lookup, search",
    "following followed": "progress, feed",
    "forgetting forgotten": "eviction",
    "forking forked": "fork",
    "giving given": "inputs",
    "going gone": "continuation, exit",
    "granting granted": "grants",
    "handling handled": "handler, decider",
    "hearing heard": "subscription, messages",
    "holding held": "hold, lock",
    "imaging imaged": "image",
    "keeping kept": "cache, store",
    "knowing known": "registry, cache",
    "leaving left": "release, exit",
    "listening listened": "server",
    "listing listed": "lists",
    "living lived": "generation",
    "loading loaded": "loader",
    "looking looked": "poll, reader",
    "losing lost": "loss",
    "making made": "factory, build",
    "matching matched": "matcher, validator",
    "naming named": "names, approvers",
    "noting noted": "record, count",
    "offering offered": "environment, provisioning",
    "opening opened": "factory",
    "posting posted": "post",
    "promising promised": "preloaded modules",
    "publishing published": "publish, publisher",
    "reaching reached": "access, url",
    "reading": "reader, projector",
    "replaying replayed": "replay",
    "resolving resolved": "resolution, rules",
    "restarting restarted": "restart",
    "running": "runner, execution",
    "saving saved": "store, snapshots",
    "saying said": "message, statement",
    "seeing seen": "observation",
    "sending sent": "sender",
    "serving served": "server, endpoint",
    "showing shown": "view, rendering",
    "speaking spoken": "broadcast",
    "standing stood": "state, watermark",
    "stopping stopped": "stop, signals",
    "storing stored": "store, storage",
    "tagging tagged": "enums, tags",
    "taking taken": "ownership, acquisition",
    "telling told": "reply, notifier, log",
    "transforming transformed": "transformer",
    "trying tried": "attempts",
    "validating validated": "validation",
    "waiting waited": "waiters, queue",
    "waking woken": "resumption",
    "wanting wanted": "request",
    "watching watched": "watch, watchdog, tasks",
    "working worked": "work, worker",
}
"""No module is called by one, alone or as the last word: the reader has to open the file to know
which noun is meant. Activities that are the field's nouns (``signing``, ``rendering``, ``logging``,
``wiring``, ``parsing``, ``counting``, ``tuning``, ``spelling``, ``provisioning``) are not listed,
nor is ``recorded``, which says what is special about the runs in it. In front of a noun a
participle is an adjective (``retrying_request``, ``shared_build``)."""

POETIC_ANYWHERE: Final = frozenset(["asked", "given", "going", "gone", "kept", "told", "wanted"])
"""Even in front of a noun these do not say which: ``kept_files`` is a file cache."""

HEAD_ONLY_ALONE: Final[dict[str, str]] = {
    "past": "history, rebuilt session",
    "routing": "router (`model_routing_machine` is fine: it is one of the contract's machines)",
    "unread": "malformed, load failed",
}
"""No module is called just this."""

_VERB_OF: Final = {form: say for forms, say in EVERYDAY_VERBS.items() for form in forms.split()}


def participle(module_name: str) -> str:
    """What to call a module that is named by a participle; empty if it is not."""
    parts = words(module_name)
    if not parts:
        return ""
    poetic = next((part for part in parts if part in POETIC_ANYWHERE), parts[-1])
    alone = HEAD_ONLY_ALONE.get(parts[0], "") if len(parts) == 1 else ""
    return alone or _VERB_OF.get(poetic, "")


TEST_MODULES: Final[dict[str, str]] = {
    "clockwork": "virtual_clock",
    "court": "approval_world",
    "crafts": "tool_fixtures",
    "doors": "request_endpoints",
    "foreign": "tool_fixtures",
    "serving": "what is served, by what",
    "stage": "fixtures",
    "story": "fact_builders",
    "surroundings": "fixtures",
    "telling": "fact_builders",
    "till": "effect_audit",
    "till_tools": "effect_audit_tools",
    "visits": "what a visit is",
    "weather": "fault_schedule",
    "workshop": "tool_fixtures",
}
"""What the helpers of tests are not called, and what the house calls them."""

# --- functions ------------------------------------------------------------------------------------

EVERYDAY_METHODS: Final[dict[str, str]] = {
    "keep": "persist, supervise, retain, renew, store",
    "leave": "release, checkpoint, unsubscribe, emit, stop",
    "note": "record, count, cache, on_state",
    "stand": "state, phase",
    "take": "apply, handle, dequeue, acquire, accept, process",
    "tell": "reply, notify, log, print, add",
    "told": "requested_effects, decode, a word for the value",
}
"""No method or function has one of these names, with or without an underscore in front."""

# --- words of the glossary ------------------------------------------------------------------------

_PERSONS: Final = "the node, client, caller, operator or approver that is meant"

SYNONYMS: Final[dict[str, str]] = {
    "anew": "again, or what is made",
    "anybody": _PERSONS,
    "asked": "requested; request",
    "asker": "caller",
    "asking": "request",
    "beat": "heartbeat",
    "board": "call notifier",
    "bear": "set_max_absence: what is set",
    "burial": "dead letter",
    "burials": "dead letters",
    "buried": "dead-lettered",
    "bury": "dead_letter, quarantine",
    "call off": "cancel, withdraw",
    "called off": "cancelled, withdrawn",
    "came": "result, outcome; ended",
    "come": "result in; wait, arrive",
    "comes": "results in; arrives",
    "concern": "decider",
    "concerns": "deciders",
    "court": "approval world",
    "crew": "tool workers",
    "crews": "tool workers",
    "disown": "release, cancel",
    "disowned": "unowned, released",
    "displaced": "taken over, superseded",
    "distrust": "mark stale",
    "door": "request endpoint",
    "doors": "request endpoints",
    "doubt": "unresolved append",
    "doubted": "unresolved",
    "doubts": "append resolver",
    "draft": "unit of work, candidate, pending checkpoint",
    "drafts": "candidates",
    "drive": "execute",
    "driven": "run rules, executed",
    "drives": "executes",
    "driving": "active run, execution",
    "everybody": _PERSONS,
    "excuse": "reply error",
    "floor": "registry",
    "forget": "evict, release, drop",
    "forgets": "evicts, releases",
    "forgotten": "evicted, released",
    "gave up": "cancelled, released, abandoned",
    "give back": "release",
    "give up": "cancel, release, evict, abandon",
    "given": "inputs",
    "given up": "cancelled, released, abandoned",
    "gives up": "cancels, releases, abandons",
    "go on": "continue",
    "goes on": "continues, can continue",
    "going on": "continuation",
    "hand": "deliver, hold, access: what is done with it",
    "handover": "facts committed, delivery",
    "hear": "on message",
    "hears": "receives",
    "home": "entity",
    "horizon": "watermark",
    "house": "maintenance",
    "hub": "actor context",
    "insist": "retry until done",
    "lab": "harness",
    "leash": "parent guard",
    "lend": "allow extra",
    "let go": "evict, release",
    "life": "generation",
    "lives": "generations",
    "look": "poll, check, read, inspect",
    "looked": "inspected, read",
    "looking": "reads first",
    "looks": "reads, polls",
    "moment": "time",
    "moments": "times",
    "nobody": _PERSONS,
    "nowhere": "unknown, no other",
    "offer": "run environment",
    "offering": "provisioning",
    "offers": "provisioner; is offered",
    "others": _PERSONS,
    "owed": "pending",
    "panel": "fan-out dispatcher",
    "parcel": "large body",
    "parcels": "large bodies",
    "place": "slot, attempt, position, path",
    "places": "slots, positions, paths",
    "presence": "process identity",
    "pulse": "heartbeat",
    "reach": "access, url",
    "reaching": "access",
    "remember": "add, cache, record",
    "remembered": "cached, duplicate",
    "remembers": "caches, records",
    "repeat": "duplicate",
    "repeated": "duplicate",
    "repeats": "duplicates",
    "room": "limit, capacity",
    "rooms": "limits",
    "setback": "last error",
    "shelf": "checkpoint store, instance pool",
    "shelves": "checkpoint stores, instance pools",
    "somebody": _PERSONS,
    "speak": "broadcast, send",
    "stand": "state, phase, position",
    "standing": "state: committed, stored or valid",
    "stands": "is committed, is stored, is valid",
    "stood": "was committed, was stored",
    "story": "fact builder, history",
    "stretch": "tail",
    "strike": "tick",
    "surroundings": "environment",
    "tell": "reply, notify, log, print, send",
    "telling": "reply, notifier",
    "tells": "replies, notifies",
    "ticket": "hold",
    "tickets": "holds",
    "till": "effect audit",
    "told": "requested, recorded, notified, printed",
    "tries": "attempts",
    "underway": "in progress",
    "unread": "malformed, load failed",
    "vacate": "release",
    "vault": "secrets",
    "want": "request",
    "wanted": "requested; subject",
    "wanting": "request",
    "wants": "requests, requires",
    "watches": "background tasks",
    "way": "what it is: remedy, dispatcher, progress",
    "ways": "dispatchers, remedies",
    "weather": "fault schedule",
    "who": _PERSONS,
    "whoever": _PERSONS,
    "whom": _PERSONS,
    "workbench": "worker endpoint",
    "yardstick": "baseline",
    "yardsticks": "baselines",
}
"""In names of modules, classes, methods and functions, word by word. Not listed is what the house
itself uses in compounds: ``take_pending``, ``note_answers``, ``is_offered``, ``timeline_lanes``."""

SYNONYMS_OF_NOUNS: Final[dict[str, str]] = {
    "inside": "local ask",
    "outside": "external",
    "shell": "actor",
    "try": "attempt",
}
"""Of modules and classes only: a path is outside a folder, and ``try_enter`` is what it is."""

SYNONYMS_OF_PACKAGES: Final[dict[str, str]] = {
    "runs": "execution",
    "views": "projections",
}

NOT_IN_TEST_NAMES: Final = frozenset(
    {
        "anybody",
        "crew",
        "crews",
        "door",
        "doors",
        "everybody",
        "horizon",
        "hub",
        "leash",
        "nobody",
        "shelf",
        "somebody",
        "stand",
        "standing",
        "stands",
        "stood",
        "tell",
        "telling",
        "tells",
        "told",
        "vault",
        "who",
        "whoever",
        "whom",
        "workbench",
    }
)
"""Sentences have a subject that is a thing of the glossary, and so have the names of tests."""


def synonyms(name: str, *tables: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The wrong words (or two) in a name, each with what to say."""
    spaced = f" {' '.join(words(name))} "
    for table in tables:
        for wrong, say in table.items():
            if f" {wrong} " in spaced:
                yield wrong, say


CALL_NAMES: Final = frozenset(
    {
        "Answered",
        "ApprovalWanted",
        "Asked",
        "AskedCall",
        "Call",
        "ExternalCallRecord",
        "Job",
        "KnownCall",
        "NewCall",
        "OpenCall",
        "OpenCalls",
        "RecordedCall",
        "ResumedCall",
        "ToolCallContext",
        "_Call",
    }
)
"""The classes by which "the call" was known when the house was reviewed."""


SETTLED: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "repeated_classes": {
        "Connection": (2, "the guest's is Python's `sqlite3.Connection`"),
        "ContentRef": (2, "the contract's: an id, and the struct that describes the content"),
        "ToolError": (2, "programs catch the guest's, tools raise the host's; users know both"),
    },
    "everyday_methods": {
        "RawFile.tell": (1, "every file of Python has it, and the guest's is one"),
    },
    "synonyms_in_names": {
        "def weather": (1, "the example's tool is asked about the weather"),
    },
}
"""What breaks a law for good: how often, and why. Words that are not ours to choose."""
