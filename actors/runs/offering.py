"""What a node gives to the runs it starts: a guest, chance, limits and tools.

It is decided when a run starts and stands in the run's first fact; whoever goes on with the run
has to have the same tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rookery.actors.sandbox.validate import limits_in_force
from rookery.schemas.calls import Offer, OfferedTool
from rookery.schemas.errors import Refused
from rookery.schemas.run import Language, RunRequest, SessionLimits

__all__ = ["NodeOffers"]

SEED_BYTES = 32


class NodeOffers:
    """One a node; called on any thread."""

    def __init__(
        self,
        *,
        builds: Mapping[Language, str],
        tools: tuple[OfferedTool, ...],
        catalogue: str,
        defaults: SessionLimits,
        limits_max: SessionLimits,
        entropy: Callable[[int], bytes],
    ) -> None:
        """``limits_max`` caps whatever a request asks for."""
        self._builds, self._tools, self._catalogue = dict(builds), tools, catalogue
        self._defaults, self._max, self._entropy = defaults, limits_max, entropy
        self._digests = {tool.name: tool.schema_digest for tool in tools}

    def __call__(self, request: RunRequest) -> Offer:
        build = self._builds.get(request.language)
        if build is None:
            known = ", ".join(sorted(self._builds))
            raise Refused(
                "UNSUPPORTED_FEATURE",
                f"there is no {request.language} here",
                hint=f"languages: {known}",
            )
        return Offer(
            language=request.language,
            build=build,
            seed=self._entropy(SEED_BYTES).hex(),
            limits=self._capped(limits_in_force(request, self._defaults)),
            tools=self._tools,
            catalogue=self._catalogue,
        )

    def check(self, offer: Offer) -> None:
        """Whether a run that was given this can go on here."""
        for tool in offer.tools:
            if self._digests.get(tool.name) != tool.schema_digest:
                raise Refused(
                    "SNAPSHOT_CAPABILITY_MISMATCH",
                    f"the run was given a tool {tool.name} with other schemas than there are now",
                    hint="go on with it where it was started, or start it anew",
                )

    def _capped(self, limits: SessionLimits) -> SessionLimits:
        names = SessionLimits.__struct_fields__
        least = {name: min(getattr(limits, name), getattr(self._max, name)) for name in names}
        return SessionLimits(**least)
