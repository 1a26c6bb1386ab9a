"""Check a proof by `rookery runs prove RUN FILE`, without Rookery: `check_proof.py FILE [KEY...]`.

KEY is the realm's root key, in hex, from which nodes and approvers must descend, or its issuer of
credentials, `A...`, from which nodes must descend through an operator. Without keys the first ones
are trusted, and printed. It needs pycryptodome, for Ed25519.
"""
# mypy: disable-error-code="type-arg"

import json
import sys
from base64 import b32decode
from hashlib import sha3_256
from pathlib import Path

from Crypto.Signature import eddsa

__all__ = ["descends", "main", "root_of"]

HEX = 64  # Digits of a key; NATS writes keys as base32 with a prefix and a checksum.
CHECKPOINT = "node number start sequence messages root previous uncertain key_id"
ANSWER = "approval_id decision actor request_digest answered_at_ms reason key_id tool_digest"


def require(holds: object, fault: str) -> None:
    if not holds:
        sys.exit(f"NOT PROVEN: {fault}")


def is_signed(signed: object, signature: str, key: str) -> bool:
    text = json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    try:
        public = bytes.fromhex(key) if len(key) == HEX else b32decode(key)[1:-2]
        verifier = eddsa.new(eddsa.import_public_key(public), "rfc8032")
        verifier.verify(text, bytes.fromhex(signature))
    except ValueError:
        return False
    return True


def statement(realm: str, domain: str, fact: dict, names: str) -> dict:
    """What a signature is over."""
    fields = {name: fact[name] for name in names.split() if name in fact}
    return fields | {"domain": domain, "realm": realm}


def read(file: str) -> list[dict]:
    """The records; each line is sealed together with the line before."""
    seal, records = b"", []
    for number, line in enumerate(Path(file).read_bytes().splitlines(keepends=True), 1):
        seal = sha3_256(seal + line[:-76]).hexdigest().encode()
        is_whole = line[-76:] == b',"seal":"%b"}\n' % seal
        require(is_whole, f"line {number} was changed, lost or moved: {line[:60]!r}")
        records.append(json.loads(line[:-76] + b"}"))
    require(records.pop() == {"kind": "end", "lines": len(records)}, "the end is missing")
    return records


def root_of(one: dict) -> str:
    """The root to which an entity's head leads."""
    node = sha3_256(b"\0" + f"{one['entity']} {one['chain']}".encode()).digest()
    for side, other in ((step[0], bytes.fromhex(step[1:])) for step in one["path"]):
        node = sha3_256(b"\1" + (other + node if side == "l" else node + other)).digest()
    return node.hex()


def check_entities(records: list[dict], messages: list[dict], roots: dict[int, str]) -> None:
    """Each digest is over the one before and the body; the last leads to a root that is signed."""
    ends: dict[str, str] = {}
    for one in messages:
        entity, before = one["entity"], one["previous"]
        is_next = entity.startswith("node/") or ends.get(entity, before) == before
        ends[entity] = sha3_256(bytes.fromhex(before) + one["body"].encode()).hexdigest()
        require(is_next and ends[entity] == one["chain"], f"message {one['sequence']} is not next")
    covered = [one for one in records if one["kind"] == "covered"]
    signed = [one for one in covered if root_of(one) == roots.get(one["checkpoint"])]
    for entity, _ in ends.items() - {(one["entity"], one["chain"]) for one in signed}:
        # The facts of nodes and of approvers have signatures of their own.
        require(entity.startswith(("node/", "approval/_")), f"no checkpoint signs {entity}")


def descends(realm: str, fact: dict, root_key: str, issuer: str) -> bool:
    """Whether the root key, or an operator that the issuer certifies, signed the node's key."""
    voucher = fact.get("voucher") or {"signature": ""}
    if operator := voucher.get("operator"):
        key = operator["public_key"]
        named = ["rookery.credential.v1", realm, operator["name"], "operator", "", key]
        root_key = key if is_signed(named, operator["certificate"], issuer) else ""
    text = statement(realm, "rookery.node.key.v1", fact, "public_key")
    return is_signed(text, voucher["signature"], root_key)


def check_nodes(realm: str, facts: list[tuple[int, dict]], *known: str) -> dict[int, dict]:
    """The checkpoints, all signed by a key that counts."""
    signed, keys = {}, {}
    for at, fact in facts:
        if fact["type"].startswith("node.started."):
            is_known = not any(known) or descends(realm, fact, *known)
            require(is_known, f"none of the given keys vouches for {fact['node']}")
            keys[fact["node"]] = fact["public_key"]
        elif fact["type"].startswith("node.checkpoint."):
            signed[at] = fact | {"key": keys.get(fact["node"], "")}
            text = statement(realm, "rookery.node.checkpoint.v1", fact, CHECKPOINT)
            is_valid = is_signed(text, fact["signature"], signed[at]["key"])
            require(is_valid, f"checkpoint {at} is not signed by {fact['node']}")
    return signed


def names_approver(realm: str, fact: dict, signer: str) -> bool:
    """Whether the signer named, or revoked, the approver."""
    key = {"public_key": fact.get("signed_key") or fact.get("public_key", "")}
    text = statement(realm, "rookery.approver.naming.v1", fact, "name change")
    return is_signed(text | key | {"key_id": fact["signed_by"]}, fact["signature"], signer)


def check_approvals(realm: str, facts: list[tuple[int, dict]], root: str) -> dict[str, str]:
    """What releases each call: approvers descend from the first key, and the answers are theirs."""
    required, count, keys, released = False, 0, dict[str, str](), dict[str, str]()
    for at, fact in facts:
        kind, asked = fact["type"].split(".")[1], fact.get("approval_id", "")
        if kind in ("approver_added", "approver_revoked"):
            first = root or ("" if keys else fact["root_key"])
            is_bare = not (keys or root or fact["signature"])
            is_next = fact["change"] == count + 1 or kind == "approver_revoked"
            signer = keys.get(fact["signed_by"], first)
            if is_bare or (is_next and names_approver(realm, fact, signer)):
                count, root = count + 1, first
                keys.pop(fact["key_id"], None)
                keys |= {fact["key_id"]: fact["public_key"]} if "public_key" in fact else {}
        elif kind == "answered" and fact.get("signature"):
            text = statement(realm, "rookery.approval.answer.v1", fact, ANSWER)
            is_valid = is_signed(text, fact["signature"], keys.get(fact["key_id"], ""))
            require(is_valid, f"the answer in message {at} is forged")
            released[asked] = f"signed by {fact['actor']}"
        elif kind == "auto_allowed":
            released[asked] = "allowed by a rule, or for the session"
        elif kind == "grant_consumed":
            require(asked in released or not required, f"no signed answer releases {asked}")
        required |= fact.get("require_keys", False)
    return released


def main(file: str, *known: str) -> None:
    root, *_ = [*(key for key in known if len(key) == HEX), ""]
    issuer, *_ = [*(key for key in known if len(key) != HEX), ""]
    head, *records = read(file)
    messages = sorted((one for one in records if "body" in one), key=lambda one: one["sequence"])
    facts = [(one["sequence"], fact) for one in messages for fact in json.loads(one["body"])]
    signed = check_nodes(head["realm"], facts, root, issuer)
    check_entities(records, messages, {at: one["root"] for at, one in signed.items()})
    released = check_approvals(head["realm"], facts, root)
    of_run = sum(fact.get("run") == head["run"] for _, fact in facts)
    require(of_run, "the file has no fact of the run")
    shown = [f"node {one['node']}: key {one['key']}" for one in signed.values()]
    shown += [f"approval {name}: {how}" for name, how in released.items()]
    lines = [f"proven: {of_run} facts of run {head['run']}", *dict.fromkeys(shown), ""]
    sys.stdout.write("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit("usage: check_proof.py FILE [KEY...]")
