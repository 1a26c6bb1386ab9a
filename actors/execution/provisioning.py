"""``RunProvisioner``: the environment of the runs that a node starts: guest, seed, limits and
tools.

It is decided when a run starts and stored in the run's first fact. A node that continues the run
must have the same tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import UNSET, UnsetType

from rookery.actors.kernel import NotExecutableHere
from rookery.actors.sandbox import check_new_request, limits_in_force
from rookery.schemas.calls import AvailableTool, RunEnvironment
from rookery.schemas.errors import Refused
from rookery.schemas.run import Language, RunRequest, SessionLimits

__all__ = ["RunProvisioner"]

SEED_BYTES = 32


class RunProvisioner:
    """One per node; called on any thread."""

    def __init__(
        self,
        *,
        builds: Mapping[Language, str],
        tools: tuple[AvailableTool, ...],
        catalogue: str,
        limits_max: SessionLimits,
        entropy: Callable[[int], bytes],
    ) -> None:
        """``limits_max`` caps the limits of requests and sessions."""
        self._builds, self._tools, self._catalogue = dict(builds), tools, catalogue
        self._max, self._entropy = limits_max, entropy
        self._digests = {tool.name: tool.schema_digest for tool in tools}

    def validate(self, request: RunRequest) -> None:
        """Raise ``Refused`` if this node could execute the request in no session."""
        check_new_request(request)
        self._build(request.language)

    def __call__(
        self, request: RunRequest, session_limits: SessionLimits | UnsetType = UNSET
    ) -> RunEnvironment:
        session = SessionLimits() if session_limits is UNSET else session_limits
        return RunEnvironment(
            language=request.language,
            build=self._build(request.language),
            seed=self._entropy(SEED_BYTES).hex(),
            limits=self._cap(limits_in_force(request, session)),
            session_limits=session_limits,
            tools=self._tools,
            catalogue=self._catalogue,
        )

    def require_tools(self, environment: RunEnvironment) -> None:
        """Check the tools before a run continues: ``NotExecutableHere`` for a missing tool,
        ``Refused`` for a tool with another schema."""
        if missing := [tool.name for tool in environment.tools if tool.name not in self._digests]:
            raise NotExecutableHere(
                f"a run needs tools that this node lacks: {', '.join(missing)[:400]}"
            )
        self.require_same_schemas(environment)

    def require_same_schemas(self, environment: RunEnvironment) -> None:
        """Raise ``Refused`` if a tool is missing or has another schema."""
        for tool in environment.tools:
            if self._digests.get(tool.name) != tool.schema_digest:
                raise Refused(
                    "SNAPSHOT_CAPABILITY_MISMATCH",
                    f"tool {tool.name} has other schemas than when the run started",
                    hint="continue it on a node with the old schemas, or start a new run",
                )

    def _build(self, language: Language) -> str:
        build = self._builds.get(language)
        if build is None:
            raise Refused(
                "UNSUPPORTED_FEATURE",
                f"this node does not execute {language}",
                hint=f"languages: {', '.join(sorted(self._builds))}",
            )
        return build

    def _cap(self, limits: SessionLimits) -> SessionLimits:
        names = SessionLimits.__struct_fields__
        least = {name: min(getattr(limits, name), getattr(self._max, name)) for name in names}
        return SessionLimits(**least)
