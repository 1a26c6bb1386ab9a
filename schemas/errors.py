"""The table of all error codes, and the two exceptions that carry them.

``Refused``: the caller can correct the request. ``Failed``: the node or its surroundings failed.
Codes are stable: codes are added, never renamed or reused. Texts may change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

__all__ = ["CODES", "Code", "CodedError", "Failed", "Refused"]


class Code(NamedTuple):
    """One line of the table."""

    meaning: str
    retryable: bool = False
    """Whether the same request, with the same id, may succeed later without a change."""


CODES: Final[dict[str, Code]] = {
    # The request itself.
    "INVALID_JSON": Code("the body is not valid JSON or MessagePack"),
    "INVALID_ARGUMENT": Code("a field is missing, has the wrong type or is out of range"),
    "UNKNOWN_FIELD": Code("the body has a field that this command does not have"),
    "INVALID_SESSION_ID": Code("a session id is 1 to 64 letters, digits, '-' or '_'"),
    "INVALID_SUBJECT": Code(
        "the subject does not have the form rookery.<realm>.<door>.<verb>.<key>"
    ),
    "UNKNOWN_VERB": Code("this node does not serve the verb"),
    "UNSUPPORTED_CONTENT_TYPE": Code("the body is neither JSON nor MessagePack"),
    "PAYLOAD_TOO_LARGE": Code("the body is larger than the limit"),
    "IDEMPOTENCY_KEY_REUSED": Code("this message id was already used with another body"),
    "UNSUPPORTED_FEATURE": Code("this version does not support the request"),
    "UNAUTHORIZED": Code("the server requires a credential, or refused this one"),
    "NOT_PERMITTED": Code("the role of this credential does not allow the request"),
    "CREDENTIAL_EXISTS": Code("the realm has a credential of this name"),
    "CREDENTIAL_NOT_FOUND": Code("the realm has no credential of this name"),
    # State.
    "GUARD_REJECTED": Code("the rules refuse this input in the present state"),
    "NO_MATCHING_TRANSITION": Code("no rule is declared for this input"),
    "SESSION_NOT_FOUND": Code("no such session"),
    "SESSION_IDENTITY_IN_USE": Code("the session identity is already claimed"),
    "SESSION_CLOSED": Code("the session was closed before this input ended"),
    "INPUT_NOT_FOUND": Code("no such input or run in this session"),
    "NODE_NOT_FOUND": Code("no such node serves this realm just now"),
    "RUN_NOT_FOUND": Code("no run of this id in this realm"),
    "CALL_NOT_FOUND": Code("no such call in this run, or its record has expired"),
    "EFFECTS_REMAIN": Code("tools of the runs have acted, which to undo the runs does not undo"),
    "CALL_MAY_STILL_ACT": Code(
        "the tool may still act on the last attempt of this call", retryable=True
    ),
    # What a parked run waits for: `error.code` of its interim result.
    "WAITING_FOR_APPROVAL": Code("a call of the run waits for an approver"),
    "WAITING_FOR_TIMER": Code("a call of the run waits for a time"),
    "WAITING_FOR_LEASE": Code("a call of the run waits for a fresh credential"),
    "WAITING_FOR_TASK": Code("a call of the run goes on as a task of its surface"),
    "WAITING_FOR_MODEL": Code("the model of the run is asked again at a time"),
    "WAITING_FOR_AGENT": Code("a call of the run waits for the run of an agent"),
    "WAITING_FOR_PEER": Code("a call of the run waits for an envelope of a peer"),
    "LEASE_UNAVAILABLE": Code("the credential that a call needs cannot be had"),
    "LEASE_REAUTH_REQUIRED": Code("a call of the run needs a credential that only a login renews"),
    "CREDENTIAL_REJECTED": Code("a service refused the credential of a call"),
    "CREDENTIAL_EXPOSED": Code("a worker stored the credential of a call with its answer"),
    "LOGIN_NOT_FOUND": Code("no such login is open, or it has ended"),
    "LOGIN_FAILED": Code("the login led to no credential"),
    "RECOVERY_REQUIRED": Code("a call of the run has an unknown outcome: an operator resolves it"),
    # Approvals.
    "APPROVAL_NOT_FOUND": Code("no such approval in this session"),
    "APPROVAL_CLOSED": Code("the approval was answered, has expired, or was withdrawn"),
    "APPROVAL_MISMATCH": Code("the answer is for other arguments than the approval's"),
    "DECISION_UNKNOWN": Code("an answer is approved, approved_for_session or denied"),
    "APPROVER_UNKNOWN": Code("no approver has this key, or it was revoked"),
    "SIGNATURE_INVALID": Code("the signature is not that of this answer with this key"),
    "SIGNATURE_REQUIRED": Code("this realm requires an answer signed by an approver's key"),
    "SELF_APPROVAL": Code("the requester of an approval cannot answer it"),
    "GRANT_NOT_FOUND": Code("no such grant in this session"),
    # Peers. No fact and no reply says that an envelope was refused: its sender is not verified.
    "ENVELOPE_TOO_LARGE": Code("an envelope has at most 256 KiB"),
    "ENVELOPE_UNSIGNED": Code("an envelope has no signature of 128 lower-case hex digits"),
    "ENVELOPE_INVALID": Code("the envelope does not have the form of one"),
    "ENVELOPE_WRONG_RECIPIENT": Code("the envelope is for another session or another realm"),
    "ENVELOPE_UNKNOWN_KEY": Code("the roster does not have the key of the envelope's sender"),
    "ENVELOPE_KEY_REVOKED": Code("the key of the envelope's sender was revoked, or has expired"),
    "ENVELOPE_EXPIRED": Code("the envelope arrived after its time"),
    "ENVELOPE_FROM_FUTURE": Code("the envelope was made after it arrived, by its sender's clock"),
    "ENVELOPE_REPLAYED": Code("the number of the envelope was used before"),
    "ENVELOPE_VOUCH_INVALID": Code("its realm does not vouch for the key of the sender"),
    "ENVELOPE_FORGED": Code("the signature is not that of the envelope with its sender's key"),
    "PEER_REVOKED": Code("the peer is not trusted any more"),
    "PEER_INTENT_NOT_ALLOWED": Code("the peer may not request this"),
    "PEER_QUEUE_FULL": Code("the session owes too many responses", retryable=True),
    "PEER_CYCLE": Code("the session waits for a response on the way to this request"),
    "PEER_PARAMS_INVALID": Code("the parameters of the request do not match their schema"),
    "PEER_TOO_DEEP": Code("too many peers would wait for the request"),
    "PEER_REQUEST_ID_TAKEN": Code("another open request has this id"),
    "PEER_NOT_ATTENDED": Code("no session of this name takes envelopes"),
    "PEER_RATE_EXCEEDED": Code(
        "too many requests to sessions that are not there wait for an answer"
    ),
    "PEER_REQUEST_NOT_FOUND": Code("the session owes no response to a request of this id"),
    "PEER_ALREADY_REPLIED": Code("the request has its last response"),
    "PEER_FAILED": Code("the peer could not do what was requested"),
    "PEER_DECLINED": Code("the peer did not take the request"),
    "PEER_TIMED_OUT": Code("the response did not arrive in time"),
    "PEER_SEND_FAILED": Code("no inbox took the envelope before its time was over"),
    "PEER_STREAM_NOT_FOUND": Code("the request has no stream that waits for a reader"),
    "PEER_STREAM_TAKEN": Code("the stream of the request has another reader"),
    "PEER_EXPIRED": Code("the time of the peer's entry in the roster is over"),
    "PEER_REJECTED": Code("the agent elsewhere did not take the message"),
    "PEER_CARD_CHANGED": Code("the card of the agent is not the one that was accepted"),
    "PEER_OUTCOME_UNKNOWN": Code("it is not known whether the agent elsewhere has the message"),
    "AGENT_UNREACHABLE": Code("the agent elsewhere does not answer", retryable=True),
    "PEER_UNKNOWN": Code("the roster has no peer of this name"),
    "PEER_ALIAS_TAKEN": Code("the roster has another peer under this alias, or this key"),
    "VAULT_KEY_MISSING": Code("the realm's secrets lack the secret of its peers' keys"),
    "RIGHT_MISSING": Code("the rights of the run do not cover this call, or no longer do"),
    "RULE_INVALID": Code(
        "the rule of an approval, or a condition of a right or hook, does not parse"
    ),
    # Hooks.
    "HOOK_INVALID": Code("a rule for hooks refuses this registration; the text names the rule"),
    "HOOK_ANSWER_INVALID": Code("a hook answered with something else than a response"),
    "HOOK_FAILED": Code("a hook failed whose failure policy is that its run fails"),
    "HOOK_DENIED": Code("a hook, or the failure of one, ended the run"),
    "HOOK_INTERRUPTED": Code("a hook failed, and the run is parked until it is resumed"),
    "HOOK_REPAIR_NEEDED": Code("a hook did not let the run complete, or wanted a further retry"),
    "HOOK_NOT_FOUND": Code("the realm has no such hook"),
    "HOOK_EXECUTOR_MISSING": Code(
        "nothing here can invoke the hook: a trial, or a run, has waited"
    ),
    "HOOK_POINT_NOT_LIVE": Code("nothing calls this point, or not a hook of this kind"),
    # Quotas.
    "QUOTA_EXCEEDED": Code("a quota of the realm is used up", retryable=True),
    # Programs: how a run may end, and what a program may meet.
    "SYNTAX_ERROR": Code("the source is not a program of its language"),
    "TYPE_ERROR": Code("an argument has the wrong type"),
    "UNKNOWN_TOOL": Code("no tool has this name here"),
    "INVALID_TOOL_NAME": Code("a tool's name must be an identifier of its own"),
    "TOOL_CHANGED": Code("the tool is not the one that the call was recorded, or approved, for"),
    "WORKER_UNAVAILABLE": Code("no worker took the call, and nothing was executed", retryable=True),
    "SURFACE_NOT_FOUND": Code("the catalogue has no such surface"),
    "SURFACE_DRAINING": Code("the surface of the call is being removed, and takes no new calls"),
    "SURFACE_UNAVAILABLE": Code(
        "the surface of the call was removed, or cannot be reached", retryable=True
    ),
    "TOOL_NAME_CONFLICT": Code("two tools would have the same name here"),
    "RESULT_NOT_SERIALIZABLE": Code("the result is not plain JSON"),
    "SERIALIZE_ERROR": Code("the tool's result is not JSON"),
    "INVALID_RESULT": Code("the tool's result does not match its output schema"),
    "RUNTIME_ERROR": Code("the program raised an exception it did not catch"),
    "TOOL_ERROR": Code("a tool failed, and the program did not catch it"),
    "PERMISSION_DENIED": Code("the rules or a person denied this call"),
    "FILE_NOT_FOUND": Code("there is no such file or folder"),
    "RESOURCE_URI_INVALID": Code("the URI of a resource is not written as its scheme has it"),
    "RESOURCE_SCHEME_UNKNOWN": Code("this node resolves no resources of this scheme"),
    "RESOURCE_NOT_FOUND": Code("there is no such resource"),
    "RESOURCE_TOO_LARGE": Code("the request is for more bytes of a resource than the limit"),
    "FILES_FULL": Code("the files of the session have no room for this"),
    "CANCELLED": Code("the run was cancelled"),
    "TIMEOUT_WALL": Code("the run took longer than its limit"),
    "TIMEOUT_CPU": Code("the program computed longer than its limit"),
    "TIMEOUT_TOOL": Code("a tool took longer than its limit"),
    "MEMORY_EXCEEDED": Code("the program requested more memory than its limit"),
    "STACK_OVERFLOW": Code("the program recursed deeper than its limit"),
    "EXTERNAL_CALLS_EXCEEDED": Code("the run requested more calls than its limit"),
    "STDOUT_EXCEEDED": Code("the output was cut at its limit; a warning, not an end"),
    "REPLAY_DIVERGED": Code("the replayed run requested a call that its record does not have"),
    "SNAPSHOT_CORRUPT": Code("the snapshot was damaged, or sealed with another key"),
    "SNAPSHOT_VERSION_MISMATCH": Code("the snapshot has another version than is read here"),
    "SNAPSHOT_FOREIGN_BUILD": Code("the snapshot was taken from another guest build"),
    "SNAPSHOT_CAPABILITY_MISMATCH": Code("a tool of the snapshot is not available"),
    "GUEST_BUILD_FAILED": Code("the guest could not be built or linked"),
    # Models: how a run with a prompt may be refused or end.
    "MODEL_UNKNOWN": Code("the node's configuration has no model of this name"),
    "MODEL_FAILED": Code("the model of a run gave no answer"),
    "MODEL_REFUSED": Code("the provider of a model refused to answer"),
    "MODEL_MISBEHAVED": Code("a model wanted nothing that it may have, three times in a row"),
    "MODEL_OUTPUT_CUT": Code("a model's answer was cut at its limit; a warning, not an end"),
    "AGENT_NOT_FOUND": Code("this node has no agent of this name"),
    "AGENT_FAILED": Code("the function of an agent wrote no instructions"),
    "CHILDREN_EXCEEDED": Code("the run called more agents than its limit"),
    "DEPTH_EXCEEDED": Code("agents would call each other deeper than the limit"),
    "TURN_LIMIT": Code("the model was asked as often as the run allows"),
    "BUDGET_EXHAUSTED": Code("the next question to a model is beyond a budget of tokens or cost"),
    "OUTPUT_INVALID": Code("the last answer of a model does not fit the schema of the result"),
    "NO_PROGRESS": Code("a model made the same call with the same outcome again and again"),
    "TOO_MANY_CALLS": Code("a model wanted more calls at once than one answer may want"),
    "RECOVERY_WORK_EXCEEDED": Code(
        "the answers to one question were lost too often: an operator resolves it"
    ),
    # Facts and exports.
    "FACT_INVALID": Code("a stored fact cannot be decoded"),
    "FACT_UNKNOWN": Code("a stored fact has a type this version does not know"),
    "FACT_VERSION_UNSUPPORTED": Code("a stored fact was written by a newer version"),
    "SEALED_UNSUPPORTED": Code("the body is sealed, and this version cannot open sealed bodies"),
    "SEALING_KEY_MISSING": Code(
        "the node lacks a key of the realm's secrets, or of a sensitive value"
    ),
    "SEALING_KEY_INVALID": Code("the keys of the realm's secrets cannot be read or used"),
    "SEALED_VALUE_CORRUPT": Code("a sensitive value was changed, or moved from another place"),
    "SECRET_NOT_FOUND": Code("the realm has no secret of this name"),
    "SECRET_CORRUPT": Code("a stored secret was changed, or moved from another place"),
    "NOT_CANONICAL": Code("the value has no canonical form (NaN and infinity are not JSON)"),
    "CHAIN_BROKEN": Code("a journal message does not continue its entity's digest chain"),
    "EXPORT_CORRUPT": Code("a line of the export was changed"),
    "FACT_FORGED": Code("no valid signature proves what a fact says"),
    "HISTORY_CHANGED": Code("the journal is not what a node signed, or an anchor saw"),
    "ANCHOR_INVALID": Code("the file is no anchor of this realm's journal"),
    # The node and its surroundings.
    "CONFLICT": Code("the entity changed meanwhile, three times in a row", retryable=True),
    "COMMAND_QUARANTINED": Code("the command made its actor fail three times and was set aside"),
    "PARTITION_UNOWNED": Code("no node owns this session's partition just now", retryable=True),
    "NODE_DRAINING": Code("the node is stopping and takes no new work", retryable=True),
    "NODE_NAME_IN_USE": Code("another process serves the realm under this node's name"),
    "NODE_OVERLOADED": Code("the node has no capacity for another request", retryable=True),
    "NODE_FAILED": Code("the node failed while working on the command", retryable=True),
    "UNKNOWN_CODE": Code("a newer node replied with a code this version does not have"),
    "LISTS_BEHIND": Code("the node still reads the journal for its lists", retryable=True),
    "NO_ANSWER": Code("no reply came in time; the request may still be executed", retryable=True),
    "JOURNAL_FULL": Code(
        "the journal is out of space; work waits until there is room", retryable=True
    ),
    "SERVER_UNREACHABLE": Code("the NATS server cannot be reached", retryable=True),
    "SERVER_NOT_FOUND": Code("no nats-server binary was found"),
    "NODE_START_FAILED": Code("a process of the node ended while the node started"),
    "SERVER_START_FAILED": Code("the embedded server did not become ready"),
    "STORE_IN_USE": Code("another process uses this store directory"),
    "REALM_UPGRADE_REQUIRED": Code("the realm's streams are of an older version"),
    "REALM_TOO_NEW": Code("the realm's streams are of a newer version"),
    "REALM_IN_USE": Code("nodes serve the realm, and it is to be changed under them"),
    "STREAM_MISMATCH": Code("a stream exists with settings that would lose or reorder data"),
    "DURABILITY_UNKNOWN": Code("the server does not report whether it syncs before it acks"),
    "DURABILITY_UNSAFE": Code("the server acks before data is on disk"),
    "CLAIM_LOST": Code("another holder has taken the claim"),
    "BLOB_NOT_FOUND": Code("no blob has this digest"),
    "BLOB_CORRUPT": Code("the stored bytes do not have the digest they are named by"),
    "CURSOR_SCOPE_MISMATCH": Code("the cursor is of another filter, which never continues from it"),
    "FEED_GAP": Code("facts between the cursor and the next message are gone"),
    "TIMER_INVALID": Code("the due time of a timer cannot be scheduled"),
    "DEAD_LETTER_NOT_FOUND": Code("no such dead letter"),
    "EXTRA_MISSING": Code("an optional part of Rookery is not installed"),
    "CONFIG_UNKNOWN_KEY": Code("the configuration has an unknown key"),
    "CONFIG_INVALID": Code("a configured value has the wrong type or is out of range"),
}


class CodedError(Exception):
    """Base of ``Refused`` and ``Failed``: a stable code, a text, a next step."""

    details: Mapping[str, str] = MappingProxyType({})
    """Further values for programs, sent with the code."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        if code not in CODES:
            raise ValueError(f"{code} is not in the table of codes")
        super().__init__(f"{code}: {message}" + (f" ({hint})" if hint else ""))
        self.code, self.message, self.hint = code, message, hint

    def __reduce__(self) -> tuple[object, ...]:
        return (_revive, (type(self), self.code, self.message, self.hint))


class Refused(CodedError):
    """The caller can correct it. ``message`` says what happened, ``hint`` what to type next."""


class Failed(CodedError):
    """The request was valid; the node or its surroundings failed."""


def _revive(kind: type[CodedError], code: str, message: str, hint: str) -> CodedError:
    return kind(code, message, hint=hint)
