"""Validation of arguments and results against the declarations of tools, and the faults it finds.

``schema_validator`` says in plain words how a value fails to match; ``schema_acceptor`` is a quick
test before it, of the keywords that most schemas have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.validation.capability_checks import CapabilityChecks, fault, fault_of
    from rookery.actors.tools.validation.schema_validator import validator_of

__all__ = ["CapabilityChecks", "fault", "fault_of", "validator_of"]

__getattr__ = lazy_names(
    __name__,
    {
        "capability_checks": (
            "CapabilityChecks",
            "fault",
            "fault_of",
        ),
        "schema_validator": ("validator_of",),
    },
)
