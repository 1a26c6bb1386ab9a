"""The tools a node offers, by the names programs call them, with their checks: its own, which are
fixed when it starts, and those of the surfaces in the realm's catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.messages import RequestApproval
from rookery.actors.policy import PolicySubject
from rookery.actors.protection.checks import CallSubject, missing_right
from rookery.actors.tools.authoring.registry import ToolRegistry
from rookery.actors.tools.catalogue.visible_tools import ToolSet, VisibleTool
from rookery.actors.tools.validation.capability_checks import (
    CapabilityChecks,
    fault,
    fault_of,
    schema_digest,
)
from rookery.bus.ports import IN_FACT_BYTES_MAX
from rookery.schemas.agent_tools import AgentView
from rookery.schemas.calls import (
    ApprovalMode,
    AvailableTool,
    CallArguments,
    Capability,
    RecordMode,
    ToolFault,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import canonical_json, digest_bytes
from rookery.schemas.envelope import DEFAULT_CLASSES, FactClasses
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.machines.lease import AuthBindingRef
from rookery.schemas.protection.rights import RightsSet
from rookery.schemas.surfaces import (
    LOCAL,
    RESOURCES,
    SurfaceKind,
    SurfaceTool,
    check_surface,
    ends_with_node,
)

if TYPE_CHECKING:
    from rookery.actors.tools.state import ToolCall

__all__ = [
    "ApprovalSubject",
    "CatalogueTool",
    "ToolCatalogue",
    "approval_subject",
    "check_value",
]


class NumberedCall(Protocol):
    """A call, requested or about to be."""

    @property
    def number(self) -> int: ...

    @property
    def arguments(self) -> CallArguments | UnsetType:
        """Unset if they are in the blob store."""


class CatalogueTool(NamedTuple):
    """One tool as programs see it."""

    surface: str
    available: AvailableTool
    capability: Capability
    """Its name is the visible one."""
    checks: CapabilityChecks
    subject: PolicySubject
    """What policies see of it."""
    waits_for: str = ""
    """What its calls wait for instead of an attempt; empty for a tool that is called."""
    agent: AgentView | None = None
    """Set if a call of it runs an agent."""

    @classmethod
    def of(
        cls,
        surface: str,
        capability: Capability,
        *,
        awaited: bool,
        kind: SurfaceKind = SurfaceKind.LOCAL,
    ) -> CatalogueTool:
        """The tool of a surface. Calls of workers are recorded before they are made, because a
        worker recognises a repeated call by its attempt, and so are calls with a credential."""
        if not ends_with_node(surface):
            check_surface(surface)
        if capability.binding is not UNSET:
            AuthBindingRef.parse(surface, capability.binding)
        if surface != LOCAL or capability.binding is not UNSET:
            capability = replace(capability, record=UNSET)
        offered = AvailableTool(
            name=capability.name,
            schema_digest=schema_digest(capability),
            side_effect=capability.side_effect,
            awaited=awaited,
        )
        subject = PolicySubject.of(surface, kind, capability, by_scheme=surface == RESOURCES)
        return cls(surface, offered, capability, CapabilityChecks(capability), subject)

    @property
    def binding(self) -> str:
        """Of the credential that its calls need; empty if they need none."""
        return "" if self.capability.binding is UNSET else self.capability.binding

    @property
    def only_waits(self) -> bool:
        """Whether its calls wait and nothing of them acts; what is sent to a peer does."""
        return bool(self.waits_for) and self.capability.only_reads

    @property
    def requires_approval(self) -> bool:
        """Whether its calls need an approval."""
        return self.capability.approval_policy is not ApprovalMode.NONE

    def check_arguments(self, arguments: CallArguments) -> None:
        """Refuse arguments that do not match the schema or are too large."""
        self.checks.check_arguments(arguments.args, arguments.kwargs)
        self.checks.encode_request(arguments.args, arguments.kwargs)

    def can_check(self, call: NumberedCall) -> bool:
        """Whether the arguments are at hand as the program wrote them."""
        return call.arguments is not UNSET and not self.checks.sensitive.arguments

    def visible_arguments(self, call: NumberedCall) -> Any:
        """The arguments as rules see them: by name, or a list, without sensitive ones; ``None`` if
        they are in the blob store."""
        given = call.arguments
        return None if given is UNSET else self.checks.visible(given.args, given.kwargs)

    def require_right(
        self,
        rights: RightsSet,
        session: str,
        call: NumberedCall,
        now_ms: int,
        *,
        ordinal: int,
    ) -> None:
        """Refuse a valid call that the rights do not cover; ``ordinal``: its number in the
        session."""
        subject = CallSubject(
            name=self.available.name,
            surface=self.surface,
            side_effect=self.capability.side_effect,
            idempotent=self.capability.idempotent,
            session=session,
            number=call.number,
            ordinal=ordinal,
            arguments=self.visible_arguments(call),
            sensitive=self.checks.sensitive.arguments,
            risk=self.subject.risk.value,
        )
        if reason := missing_right(rights, subject, now_ms=now_ms):
            raise Refused("RIGHT_MISSING", reason, hint="list_tools() says what the run may call")


class ToolCatalogue:
    """Tools by name, sorted."""

    def __init__(self, tools: Iterable[CatalogueTool] = ()) -> None:
        self._tools: dict[str, CatalogueTool] = {}
        for tool in sorted(tools, key=lambda tool: tool.available.name):
            if (other := self._tools.get(tool.available.name)) is not None:
                raise Refused(
                    "TOOL_NAME_CONFLICT",
                    f"{other.surface} and {tool.surface} both have a tool {tool.available.name}",
                    hint="rename one of them",
                )
            self._tools[tool.available.name] = tool
        self._own = dict(self._tools)
        self.has_agents = any(tool.agent is not None for tool in self._own.values())
        """Whether some of them are agents."""
        self._removed: frozenset[str] = frozenset()

    @classmethod
    def local(
        cls, registry: ToolRegistry, record_reads: RecordMode = RecordMode.AFTER
    ) -> ToolCatalogue:
        """The tools of a registry in the node's own process."""
        return cls(
            CatalogueTool.of(
                LOCAL,
                tool.capability
                if record_reads is RecordMode.AFTER
                else replace(tool.capability, record=UNSET),
                awaited=tool.async_mode,
            )
            for tool in registry
        )

    def set_surfaces(
        self, tools: Iterable[CatalogueTool], removed: frozenset[str] = frozenset()
    ) -> None:
        """Offer these tools beside the node's own, instead of earlier ones of surfaces.
        ``removed``: the surfaces that were removed from the realm's catalogue."""
        offered = {tool.available.name: tool for tool in tools} | self._own
        self._tools, self._removed = dict(sorted(offered.items())), removed

    def expect(self, tools: Iterable[CatalogueTool]) -> None:
        """Offer these, too, until the surfaces are set again: the realm's catalogue shall have
        them, and calls of a former process may have to go on before it does."""
        expected = {tool.available.name: tool for tool in tools} | self._tools
        self._tools = dict(sorted(expected.items()))

    def is_removed(self, surface: str) -> bool:
        """Whether the realm has removed the surface, so that no node offers its tools."""
        return surface in self._removed

    def is_own(self, name: str) -> bool:
        """Whether the node offered the tool when it started."""
        return name in self._own

    def is_function(self, name: str) -> bool:
        """Whether the tool is a function of the node's own process: of the surface ``local``, which
        an operator may remove, and no built-in tool that only waits."""
        tool = self._own.get(name)
        return tool is not None and tool.surface == LOCAL and not tool.waits_for

    @property
    def functions(self) -> tuple[SurfaceTool, ...]:
        """The tools of the surface ``local``, as other surfaces list theirs."""
        return tuple(
            SurfaceTool(capability=tool.capability, awaited=tool.available.awaited, served_as=name)
            for name, tool in self._own.items()
            if self.is_function(name)
        )

    def is_withdrawn(self, tool: CatalogueTool) -> bool:
        """Whether the realm has removed the surface of the tool, which this node still has."""
        return tool.surface in self._removed and not tool.waits_for

    def on_surfaces(self, offered: Iterable[AvailableTool]) -> ToolSet:
        """Those that this node does not have itself, as a run was offered them: with an older
        version the tools of ``--workers`` were the node's own."""
        found: ToolSet = {}
        for one in offered:
            if one.name not in self._own and (tool := self._tools.get(one.name)) is not None:
                seen = SurfaceTool(capability=tool.capability, awaited=one.awaited)
                found = {**found, one.name: VisibleTool(tool.surface, "", one, seen)}
        return found

    def get(self, name: str) -> CatalogueTool | None:
        return self._tools.get(name)

    def binding_of(self, name: str) -> str:
        """The binding whose credential the tool gets; empty for a tool without one."""
        tool = self._tools.get(name)
        return "" if tool is None else tool.binding

    def require(self, name: str) -> CatalogueTool:
        """The tool called ``name``; raises ``UNKNOWN_TOOL``."""
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            raise Refused(
                "UNKNOWN_TOOL", f"no tool is called {name[:80]!r}", hint=f"known: {known[:400]}"
            )
        return tool

    def check_call(self, name: str, arguments: CallArguments) -> None:
        """Refuse a call whose tool is unknown, or does not accept the arguments."""
        self.require(name).check_arguments(arguments)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[CatalogueTool]:
        return iter(self._tools.values())

    @property
    def available_tools(self) -> tuple[AvailableTool, ...]:
        """The tools a run can call."""
        return tuple(tool.available for tool in self)

    @property
    def catalogue_bytes(self) -> bytes:
        """The capabilities, as the blob of ``RunEnvironment.catalogue``."""
        return encode_json([tool.capability for tool in self])  # Keeps the order of properties.


def check_value(tool: CatalogueTool | None, value: Any) -> str:
    """The digest of an operator's value; refuses one that is too large, or that is invalid for the
    tool, if the node offers it."""
    text = canonical_json(value)
    if len(text) > IN_FACT_BYTES_MAX:
        raise Refused(
            "PAYLOAD_TOO_LARGE",
            f"the value has {len(text)} bytes, the limit is {IN_FACT_BYTES_MAX}",
            hint="try the call again, or let it fail",
        )
    if tool is not None:
        if tool.checks.sensitive.result:
            raise Refused(
                "GUARD_REJECTED",
                f"the result of {tool.available.name} is sensitive, and this one would be shown",
                hint="try the call again, or let it fail",
            )
        try:
            tool.checks.check_result(value)
        except Failed as failure:
            raise Refused(failure.code, failure.message) from None
    return digest_bytes(text)


# --- approvals ------------------------------------------------------------------------------------


class ApprovalSubject(NamedTuple):
    """The approval request of a call, with the arguments recorded for it."""

    request: RequestApproval
    text: bytes
    """Its canonical arguments, whose digest the approval is bound to; sensitive ones are hidden."""

    def hidden(self, shown: CallArguments, digests: dict[str, str]) -> ApprovalSubject:
        """With the digests of sensitive arguments in their place."""
        text = canonical_json({"args": shown.args, "kwargs": shown.kwargs})
        reference = f"blob:{digest_bytes(text)}"
        return ApprovalSubject(replace(self.request, arguments_ref=reference, hidden=digests), text)


def approval_subject(
    tool: CatalogueTool,
    call: ToolCall,
    arguments: CallArguments,
    package_fingerprint: str = "",
    classes: FactClasses = DEFAULT_CLASSES,
) -> ApprovalSubject | ToolFault:
    """The approval request of a call, or the fault of its arguments. ``package_fingerprint``: of
    its run; ``classes``: of its session."""
    try:
        bound = tool.checks.check_arguments(arguments.args, arguments.kwargs)
        text = tool.checks.encode_request(arguments.args, arguments.kwargs)
    except CodedError as error:
        return fault_of(error)
    if digest_bytes(text) != call.approved_digest or call.approval is UNSET:
        return fault("INVALID_ARGUMENT", f"these are not the arguments {call.name} was called with")
    request = RequestApproval(
        operation_id=call.operation_id,
        run_id=call.run,
        generation=call.generation,
        name=call.name,
        surface=call.surface,
        side_effect=tool.capability.side_effect,
        idempotent=call.idempotent,
        schema_digest=call.schema_digest,
        policy=call.approval,
        terms=call.terms,
        request_digest=call.approved_digest,
        arguments=bound,
        arguments_ref=f"blob:{call.approved_digest}",
        changed_by=call.changed_by,
        risk=call.risk,
        allowed_decisions=call.allowed_decisions,
        package_fingerprint=package_fingerprint,
        classes=classes,
    )
    return ApprovalSubject(request, text)
