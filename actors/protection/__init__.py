"""Rights, checked before each intent: which calls a run may make; and what facts must not show:
sensitive values of calls, and credentials.

The effective rights of a call are those of its run, frozen when it started, those of its session,
and what was revoked in its session or in one that the session's memory is from.

Sensitive arguments and results are sealed before they are recorded, and opened for the program, the
tool and nobody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.protection.checks import (
        CallSubject,
        check_count,
        check_rights,
        hide_tools,
        is_ever_allowed,
        missing_right,
    )
    from rookery.actors.protection.revocations import (
        LeftRights,
        Revocations,
        RightsRevoker,
        nothing_revoked,
    )
    from rookery.actors.protection.scrubber import (
        ScrubbedStream,
        Scrubber,
        scrubbed_output,
        scrubber_of,
    )
    from rookery.actors.protection.sensitive_values import (
        NO_SEAL,
        CallSeal,
        SensitiveParts,
        forked_field,
        is_sealed,
        sensitive_parts,
        shown_arguments,
        visible_arguments,
    )

__all__ = [
    "NO_SEAL",
    "CallSeal",
    "CallSubject",
    "LeftRights",
    "Revocations",
    "RightsRevoker",
    "ScrubbedStream",
    "Scrubber",
    "SensitiveParts",
    "check_count",
    "check_rights",
    "forked_field",
    "hide_tools",
    "is_ever_allowed",
    "is_sealed",
    "missing_right",
    "nothing_revoked",
    "scrubbed_output",
    "scrubber_of",
    "sensitive_parts",
    "shown_arguments",
    "visible_arguments",
]

__getattr__ = lazy_names(
    __name__,
    {
        "checks": (
            "CallSubject",
            "check_count",
            "check_rights",
            "hide_tools",
            "is_ever_allowed",
            "missing_right",
        ),
        "revocations": ("LeftRights", "Revocations", "RightsRevoker", "nothing_revoked"),
        "scrubber": ("ScrubbedStream", "Scrubber", "scrubbed_output", "scrubber_of"),
        "sensitive_values": (
            "CallSeal",
            "NO_SEAL",
            "SensitiveParts",
            "forked_field",
            "is_sealed",
            "sensitive_parts",
            "shown_arguments",
            "visible_arguments",
        ),
    },
)
