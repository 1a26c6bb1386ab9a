"""What travels: structs, wire names, codes and codecs.

It imports msgspec and the standard library only. ``actors`` has the rules, ``bus`` the transport.
"""

from rookery.schemas.calls import Capability, CapabilityLimits
from rookery.schemas.codec import FactCodec, decode_command, encode_facts
from rookery.schemas.digest import canonical_json, digest_bytes, digest_json
from rookery.schemas.envelope import Command, EntityId, Fact, Mode
from rookery.schemas.errors import CODES, CodedError, Failed, Refused
from rookery.schemas.run import ErrorObject, Language, RunRequest, RunResult, SessionLimits

__all__ = [
    "CODES",
    "Capability",
    "CapabilityLimits",
    "CodedError",
    "Command",
    "EntityId",
    "ErrorObject",
    "Fact",
    "FactCodec",
    "Failed",
    "Language",
    "Mode",
    "Refused",
    "RunRequest",
    "RunResult",
    "SessionLimits",
    "canonical_json",
    "decode_command",
    "digest_bytes",
    "digest_json",
    "encode_facts",
]
