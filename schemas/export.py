"""The contract as documents: JSON Schema of every struct, AsyncAPI of every subject.

``python -m rookery.schemas.export`` writes both beside this file, ``--check`` compares. All content
is derived from the structs, so it matches the codecs. Transport (streams, partitions,
acknowledgements) is left to the bus.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from rookery.schemas import agents, calls, commands, ids, run
from rookery.schemas.approvals import records as approval_record
from rookery.schemas.codec import JSON, MSGPACK, strict, wire_names
from rookery.schemas.commands import (
    COMMANDS,
    INTERNAL_VERBS,
    SIGNED_VERBS,
    HandleInput,
    audience_of,
)
from rookery.schemas.envelope import InputSource, Mode, Sealed
from rookery.schemas.errors import CODES
from rookery.schemas.facts.approval import APPROVAL_FACTS
from rookery.schemas.facts.code import CODE_FACTS
from rookery.schemas.facts.conversation import CONVERSATION_FACTS
from rookery.schemas.facts.hook import HOOK_FACTS, REGISTRATION_FACTS
from rookery.schemas.facts.lease import LEASE_FACTS
from rookery.schemas.facts.model import MODEL_FACTS
from rookery.schemas.facts.node import NODE_FACTS
from rookery.schemas.facts.peer import PEER_FACTS
from rookery.schemas.facts.sandbox import SANDBOX_FACTS
from rookery.schemas.facts.session import SESSION_FACTS
from rookery.schemas.facts.surface import SURFACE_FACTS
from rookery.schemas.facts.tool import TOOL_FACTS
from rookery.schemas.facts.turn import RUN_FACTS, TURN_FACTS
from rookery.schemas.machines.inputs import inputs_of_verb
from rookery.schemas.reads import READS, JournalState, Read
from rookery.schemas.replies import REPLIES
from rookery.schemas.run import OutputMessage
from rookery.schemas.seed import (
    agent_error,
    hook,
    hook_invocation,
    hook_spec,
    lifecycle,
    policies,
    policy_decisions,
    records,
    refs,
    resource,
)

__all__ = [
    "COMMAND_ADDRESS",
    "CONTRACT_VERSION",
    "ENTITIES",
    "FACT_ADDRESS",
    "FAMILIES",
    "FOLDER",
    "OUTPUT_ADDRESS",
    "PUBLIC",
    "REQUEST_ADDRESS",
    "asyncapi",
    "documents",
    "json_schema",
    "main",
]

CONTRACT_VERSION: Final = "0.1.0"
COMMAND_ADDRESS: Final = "rookery.{realm}.cmd.{verb}.{key}"
FACT_ADDRESS: Final = "rookery.{realm}.ev.{family}.{key}"
OUTPUT_ADDRESS: Final = "rookery.{realm}.output.{key}"
REQUEST_ADDRESS: Final = "rookery.{realm}.api.{verb}.{key}"

FAMILIES: Final[dict[str, Any]] = {
    "approval": APPROVAL_FACTS,
    "code": CODE_FACTS,
    "conversation": CONVERSATION_FACTS,
    "hook": HOOK_FACTS,
    "lease": LEASE_FACTS,
    "model": MODEL_FACTS,
    "node": NODE_FACTS,
    "peer": PEER_FACTS,
    "sandbox": SANDBOX_FACTS,
    "session": SESSION_FACTS,
    "surface": SURFACE_FACTS,
    "tool": TOOL_FACTS,
    "turn": TURN_FACTS,
}
"""Union of the facts of every family."""

_IN_TURNS: Final = ("code", "conversation", "model")
ENTITIES: Final[dict[str, Any]] = {
    **{name: union for name, union in FAMILIES.items() if name not in _IN_TURNS},
    "hook": REGISTRATION_FACTS,
    "turn": RUN_FACTS,
}
"""Union of the facts in the messages of every entity. Facts of calls, hooks, models and
conversations are in those of their turn; messages of the entity ``tool`` are older."""

PUBLIC: Final = (
    *(commands, run, calls, agents, refs, agent_error),
    *(policy_decisions, policies),
    *(lifecycle, approval_record, hook, hook_invocation, hook_spec, records, resource),
)
"""Modules with public structs that travel inside other structs."""

FOLDER: Final = Path(__file__).parent / "generated"

Document = dict[str, Any]


@cache
def documents() -> dict[str, str]:
    """File name to text, identical on every machine; made once, because it takes half a second."""
    made = {"schemas.json": json_schema(), "asyncapi.json": asyncapi()}
    return {name: json.dumps(document, indent=2) + "\n" for name, document in made.items()}


def json_schema() -> Document:
    """Every struct that travels: facts by wire name, the others by class name."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Rookery",
        "description": "Everything that travels. A struct called ...Input refuses unknown fields.",
        "$defs": _definitions("#/$defs/"),
    }


def asyncapi() -> Document:
    """Every subject a client may publish, request or subscribe to, as AsyncAPI 3.0."""
    channels: Document = {}
    operations: Document = {}
    messages: Document = {"refusal": _refusal()}
    for family in sorted(ENTITIES):
        messages[f"ev.{family}"] = _facts_message(family)
        _add_feed(channels, operations, family)
    _add_output(channels, operations, messages)
    for verb, kind in sorted(COMMANDS.items()):
        if verb in INTERNAL_VERBS:
            continue
        messages |= _messages_of(verb, kind)
        if verb in SIGNED_VERBS:
            _add_command_channel(channels, operations, verb)
        else:
            _add_request_channels(channels, operations, verb)
    for name, read in READS.items():
        messages[f"{name}.query"] = _one_of(read.queries)
        _add_read(channels, operations, name, read)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Rookery",
            "version": CONTRACT_VERSION,
            "description": "An event-sourced actor runtime on NATS JetStream: durable commands in, "
            "facts out. Subject tokens write '.', '*', '>', '%' and blanks as %XX.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": JSON,
        "channels": channels,
        "operations": operations,
        "components": {
            "schemas": _definitions("#/components/schemas/"),
            "messages": messages,
            "messageTraits": _traits(),
            "parameters": _parameters(),
        },
    }


# --- schemas --------------------------------------------------------------------------------------


def _definitions(prefix: str) -> Document:
    """All structs with those inside them; ``prefix`` begins the references to them."""
    made: Document = {}
    for union in FAMILIES.values():
        for name, fact in wire_names(union).items():
            _merge(made, fact, prefix, name)
    answers = [struct for answer in REPLIES.values() for struct in _members(answer)]
    reads = [struct for read in READS.values() for struct in read.queries]
    exchanged: list[type] = [
        Sealed,
        *map(strict, COMMANDS.values()),
        *answers,
        *reads,
        JournalState,
        OutputMessage,
    ]
    for struct in (*exchanged, *_public_structs()):
        _merge(made, struct, prefix, struct.__name__)
    return dict(sorted(made.items()))


def _public_structs() -> Iterable[type[msgspec.Struct]]:
    for module in PUBLIC:
        for name in module.__all__:
            kind = getattr(module, name)
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                yield kind


def _merge(made: Document, struct: type, prefix: str, name: str) -> None:
    """Add ``struct`` as ``name``; two different structs with one name are an error."""
    _, found = msgspec.json.schema_components(
        [struct], schema_hook=ids.typed_text_schema, ref_template=prefix + "{name}"
    )
    root = found.pop(struct.__name__)
    for key, schema in {**found, name: {**root, "title": name}}.items():
        if "description" in schema:
            schema["description"] = cleandoc(schema["description"])
        if made.setdefault(key, schema) != schema:
            raise ValueError(f"two different structs are called {key}")


# --- AsyncAPI -------------------------------------------------------------------------------------


def _add_feed(channels: Document, operations: Document, family: str) -> None:
    name = f"ev.{family}"
    address = FACT_ADDRESS.replace("{family}", family)
    channels[name] = _channel(address, {"facts": name})
    operations[f"publish.{name}"] = _operation("send", name, "facts")


def _add_output(channels: Document, operations: Document, messages: Document) -> None:
    messages["output"] = _message(OutputMessage.__name__, _summary(OutputMessage))
    channels["output"] = _channel(OUTPUT_ADDRESS, {"output": "output"})
    operations["publish.output"] = _operation("send", "output", "output")


def _messages_of(verb: str, kind: type[msgspec.Struct]) -> Document:
    """The messages of a command: as it is sent, and the answer to a request."""
    summary = _summary(kind)
    if verb in SIGNED_VERBS:
        return {f"cmd.{verb}": _message(kind.__name__, summary, "signed")}
    made = {
        f"{door}.{verb}": _message(strict(kind).__name__, summary, trait)
        for door, trait in (("cmd", "durable"), ("api", "request"))
    }
    made[f"answer.{verb}"] = answer = _reply_message(_reply_of(verb))
    if kind is HandleInput:
        answer["traits"] = [_reference("components", "messageTraits", "view")]
    return made


def _add_command_channel(channels: Document, operations: Document, verb: str) -> Document:
    """The channel of durable commands; the tags of the verb."""
    durable, address = f"cmd.{verb}", COMMAND_ADDRESS.replace("{verb}", verb)
    channels[durable] = _channel(address, {"command": durable})
    tags: Document = {"tags": [{"name": audience_of(verb).value}]}
    if inputs := inputs_of_verb(verb):
        tags["x-inputs"] = inputs
    operations[f"accept.{durable}"] = _operation("receive", durable, "command") | tags
    return tags


def _add_request_channels(channels: Document, operations: Document, verb: str) -> None:
    request, answer = f"api.{verb}", f"answer.{verb}"
    tags = _add_command_channel(channels, operations, verb)
    address = REQUEST_ADDRESS.replace("{verb}", verb)
    channels[request] = _channel(address, {"command": request})
    channels[answer] = {
        "address": None,
        "description": "The requester's inbox: where NATS sends the answer to a request.",
        "messages": {
            "answer": _reference("components", "messages", answer),
            "refusal": _reference("components", "messages", "refusal"),
        },
    }
    operations[f"answer.{request}"] = {
        **_operation("receive", request, "command"),
        **tags,
        "reply": {
            "channel": _reference("channels", answer),
            "messages": [
                _reference("channels", answer, "messages", "answer"),
                _reference("channels", answer, "messages", "refusal"),
            ],
        },
    }


def _add_read(channels: Document, operations: Document, name: str, read: Read) -> None:
    """A read or an upload, whose answers the server or a node sends to the requester's inbox."""
    channel = _channel(read.address, {"query": f"{name}.query"})
    named = [token[1:-1] for token in read.address.split(".") if token.startswith("{")]
    channel["parameters"] = {one: _reference("components", "parameters", one) for one in named}
    channels[name] = {**channel, "description": read.answer}
    operations[f"answer.{name}"] = _operation("receive", name, "query")


def _channel(address: str, messages: dict[str, str]) -> Document:
    return {
        "address": address,
        "parameters": {
            name: _reference("components", "parameters", name) for name in ("realm", "key")
        },
        "messages": {
            name: _reference("components", "messages", message)
            for name, message in messages.items()
        },
    }


def _operation(action: str, channel: str, message: str) -> Document:
    return {
        "action": action,
        "channel": _reference("channels", channel),
        "messages": [_reference("channels", channel, "messages", message)],
    }


def _message(schema: str, summary: str, trait: str = "") -> Document:
    payload = _reference("components", "schemas", schema)
    message: Document = {"summary": summary, "payload": payload}
    if trait:
        message["traits"] = [_reference("components", "messageTraits", trait)]
    return message


def _reply_of(verb: str) -> Any:
    if verb not in REPLIES:
        raise ValueError(f"the verb {verb} has no reply: add it to REPLIES in schemas/replies.py")
    return REPLIES[verb]


def _reply_message(answer: Any) -> Document:
    return _one_of(_members(answer))


def _one_of(structs: Sequence[type[msgspec.Struct]]) -> Document:
    if len(structs) == 1:
        return _message(structs[0].__name__, _summary(structs[0]))
    payloads = [_reference("components", "schemas", struct.__name__) for struct in structs]
    return {
        "summary": "One of: " + ", ".join(struct.__name__ for struct in structs) + ".",
        "payload": {"anyOf": payloads},
    }


def _refusal() -> Document:
    text = {"type": "string"}
    rejection = {
        "type": "object",
        "description": "Of an input a machine does not take.",
        "properties": {"kind": text, "context": text, "reason": text},
    }
    error = {"allOf": [_reference("components", "schemas", "ErrorObject"), rejection]}
    return {
        "summary": "Why the request was refused, or what failed.",
        "payload": {"type": "object", "properties": {"error": error}, "required": ["error"]},
        "traits": [_reference("components", "messageTraits", "refusal")],
    }


_ENTITY_SUMMARIES: Final = {
    "turn": "The facts of one decision about a run and its calls, in order.",
    "hook": "Changes of the realm's hooks. What hooks answer is in the messages of their turn.",
    "tool": "Older facts of calls. Newer ones are in the messages of their turn.",
}


def _facts_message(family: str) -> Document:
    facts = [_reference("components", "schemas", name) for name in wire_names(ENTITIES[family])]
    sealed = _reference("components", "schemas", "Sealed")
    return {
        "summary": _ENTITY_SUMMARIES.get(family, f"The {family} facts of one decision, in order."),
        "payload": {
            "oneOf": [
                {"type": "array", "minItems": 1, "items": {"oneOf": facts}},
                {"type": "object", "properties": {"sealed": sealed}, "required": ["sealed"]},
            ]
        },
        "traits": [_reference("components", "messageTraits", "facts")],
    }


_SIGNED_HEADERS: Final[Document] = {
    "Nats-Msg-Id": {"type": "string", "description": "The id in the envelope."},
    "Rookery-Signature": {
        "type": "string",
        "pattern": "^[0-9a-f]{128}$",
        "description": "Ed25519 by the key in the envelope, over 'rookery.envelope.v1', a line "
        "feed and the body.",
    },
    "Rookery-Vouch": {
        "type": "string",
        "description": "The word of the sender's realm that the key is the sender's.",
    },
}


def _traits() -> Document:
    text = {"type": "string"}
    message_id = {**text, "description": "Idempotency key within the subject's key."}
    command = {
        "Nats-Msg-Id": {**message_id, "pattern": "^[\\x21-\\x7e]{1,128}$"},
        "Rookery-Mode": {**text, "enum": [mode.value for mode in Mode], "default": Mode.QUEUE},
        "Rookery-Input-Source": {**text, "enum": [source.value for source in InputSource]},
        "traceparent": {**text, "description": "W3C trace context, carried into the facts."},
        "Content-Type": {**text, "enum": [JSON, MSGPACK], "default": JSON},
    }
    reply = {**text, "description": "Subject that gets the terminal answer."}
    count = "Of a view that no fact of this request changed: how many facts of the entity it has."
    headers = {
        "durable": {**command, "Rookery-Reply": reply},
        "request": command,
        "signed": _SIGNED_HEADERS,
        "facts": {
            "Nats-Msg-Id": {**text, "description": "Unique for ever, names the append."},
            "Rookery-Chain": {
                **text,
                "description": "SHA3-256 over the previous one and the body.",
            },
            "Rookery-Facts": {
                **text,
                "description": "Names of the facts, separated by commas, each once.",
            },
        },
        "view": {"Rookery-Fact-Count": {"type": "integer", "minimum": 0, "description": count}},
        "refusal": {
            "Nats-Service-Error": {**text, "description": "What the code means, for people."},
            "Nats-Service-Error-Code": {**text, "enum": ["400", "503"]},
            "Rookery-Code": {**text, "enum": sorted(CODES)},
        },
    }
    return {
        name: {"headers": {"type": "object", "properties": properties}}
        for name, properties in headers.items()
    }


def _parameters() -> Document:
    return {
        "realm": {"description": "A tenant: ^[A-Za-z0-9_-]{1,32}$.", "default": "default"},
        "key": {
            "description": "What the entity is found by: a session, a lease's key, or a node for "
            "its facts."
        },
        "digest": {"description": "SHA3-256 of a blob or a memory image, 64 hex digits."},
        "n": {"description": "The number of a chunk, from 0."},
        "id": {"description": "Of an upload: 32 hex digits, chosen at random."},
    }


def _reference(*path: str) -> Document:
    return {"$ref": "#/" + "/".join(path)}


def _members(answer: Any) -> tuple[type[msgspec.Struct], ...]:
    """The members of a union, or the struct itself."""
    return get_args(answer) or (answer,)


def _summary(kind: type) -> str:
    return cleandoc(kind.__doc__ or kind.__name__).partition("\n")[0]


# --- command line ---------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Write the documents, or list the outdated ones; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="rookery.schemas.export", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check = parser.parse_args(arguments).check
    drifted = []
    for name, text in documents().items():
        path = FOLDER / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        drifted.append(name)
        if not check:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
    if drifted:
        sys.stdout.write(f"{'out of date' if check else 'written'}: {', '.join(drifted)}\n")
    return 1 if check and drifted else 0


if __name__ == "__main__":
    sys.exit(main())
