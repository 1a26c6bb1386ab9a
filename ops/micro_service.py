"""A node as a NATS micro service: its verbs with their schemas, and its statistics."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from typing import Any, get_args

import msgspec

from rookery.bus.commands import Endpoint, MicroService
from rookery.ops.metrics import NodeMetrics
from rookery.schemas import typed_ids
from rookery.schemas.codec import encode_json, strict
from rookery.schemas.commands import COMMANDS, audience_of
from rookery.schemas.machines.inputs import inputs_of_verb
from rookery.schemas.replies import REPLIES

__all__ = ["build_service"]


def build_service(
    node: str, version: str, verbs: Iterable[str], metrics: NodeMetrics, *, now_ms: int
) -> MicroService:
    """The description of this node as a service."""
    return MicroService(
        node=node,
        version=version,
        started=datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(),
        endpoints=tuple(_endpoint(verb) for verb in sorted(verbs)),
        stats_of=metrics.endpoint_stats,
    )


@cache
def _endpoint(verb: str) -> Endpoint:
    audience = audience_of(verb).value
    request, response = _schema(strict(COMMANDS[verb])), _schema(REPLIES[verb])
    return Endpoint(verb, request, response, audience, inputs_of_verb(verb))


def _schema(kind: Any) -> str:
    """The JSON Schema of a struct, or of a union, which msgspec cannot express in one schema."""
    kinds = get_args(kind) or (kind,)
    schemas, made = msgspec.json.schema_components(
        kinds, schema_hook=typed_ids.typed_text_schema, ref_template="#/$defs/{name}"
    )
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return encode_json({**schema, "$defs": made}).decode()
