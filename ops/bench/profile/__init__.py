"""The profile of a run: what one ``1+1`` and one tool call cost each part of the system."""

from rookery.ops.bench.profile.profile import (
    CALL,
    RUN,
    CostRow,
    Profile,
    measure_profile,
)

__all__ = ["CALL", "RUN", "CostRow", "Profile", "measure_profile"]
