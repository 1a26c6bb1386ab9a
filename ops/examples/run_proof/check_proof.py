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

# What is signed: a domain, and fields of a fact.
NAMING = "rookery.approver.naming.v1 name change public_key key_id"
CHECKPOINT = """rookery.node.checkpoint.v1
    node number start sequence messages root previous uncertain key_id"""
ANSWER = """rookery.approval.answer.v1
    approval_id decision actor request_digest answered_at_ms reason key_id tool_digest"""


def require(holds: object, fault: str) -> None:
    if not holds:
        sys.exit(f"NOT PROVEN: {fault}")


def is_signed(signed: object, signature: str, key: str) -> bool:
    text = json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    try:  # A key is in hex, or in NATS's base32 with a prefix and a checksum.
        public = bytes.fromhex(key) if len(key) == 64 else b32decode(key)[1:-2]
        eddsa.new(eddsa.import_public_key(public), "rfc8032").verify(text, bytes.fromhex(signature))
    except ValueError:
        return False
    return True


def signs(key: str, fact: dict, form: str) -> bool:
    """Whether the key has signed the fact in this form."""
    domain, *names = form.split()
    fields = {name: fact[name] for name in ("realm", *names) if name in fact}
    return is_signed(fields | {"domain": domain}, fact["signature"], key)


def read(file: str) -> list[dict]:
    """The records; each line is sealed together with the line before."""
    seal, records = b"", []
    for number, line in enumerate(Path(file).read_bytes().splitlines(keepends=True), 1):
        seal = sha3_256(seal + line[:-76]).hexdigest().encode()
        require(line[-76:] == b',"seal":"%b"}\n' % seal, f"line {number} was changed or moved")
        records.append(json.loads(line[:-76] + b"}"))
    require(records.pop() == {"kind": "end", "lines": len(records)}, "the end is missing")
    return records


def root_of(one: dict) -> str:
    """The root to which an entity's head leads."""
    node = sha3_256(b"\0" + f"{one['entity']} {one['chain']}".encode()).digest()
    for side, other in ((step[0], bytes.fromhex(step[1:])) for step in one["path"]):
        node = sha3_256(b"\1" + (other + node if side == "l" else node + other)).digest()
    return node.hex()


def check_entities(records: list[dict], messages: list[dict], roots: set[str]) -> None:
    """Each digest is over the one before and the body; the last leads to a root that is signed."""
    ends: dict[str, str] = {}
    for one in messages:
        entity, before = one["entity"], one["previous"]
        is_next = entity.startswith("node/") or ends.get(entity, before) == before
        ends[entity] = sha3_256(bytes.fromhex(before) + one["body"].encode()).hexdigest()
        require(is_next and ends[entity] == one["chain"], f"message {one['sequence']} is not next")
    signed = [one for one in records if "path" in one and root_of(one) in roots]
    for entity, _ in ends.items() - {(one["entity"], one["chain"]) for one in signed}:
        # The facts of nodes and of approvers have signatures of their own.
        require(entity.startswith(("node/", "approval/_")), f"no checkpoint signs {entity}")


def descends(fact: dict, *known: str) -> bool:
    """Whether a known key, or an operator that one certifies, has signed the node's key."""
    voucher = fact.get("voucher") or {"signature": ""}
    if operator := voucher.get("operator"):
        key = operator["public_key"]
        named = ["rookery.credential.v1", fact["realm"], operator["name"], "operator", "", key]
        known = (key,) if any(is_signed(named, operator["certificate"], k) for k in known) else ()
    return any(signs(key, voucher | fact, "rookery.node.key.v1 public_key") for key in known)


def check_nodes(facts: list[tuple[int, dict]], *known: str) -> dict[int, dict]:
    """The checkpoints, all signed by a key that counts."""
    signed, keys = {}, {}
    for at, fact in facts:
        if fact["type"].startswith("node.started."):
            require(not any(known) or descends(fact, *known), f"no key vouches for {fact['node']}")
            keys[fact["node"]] = fact["public_key"]
        elif fact["type"].startswith("node.checkpoint."):
            signed[at] = fact | {"key": keys.get(fact["node"], "")}
            require(signs(signed[at]["key"], fact, CHECKPOINT), f"checkpoint {at} is not signed")
    return signed


def check_approvals(facts: list[tuple[int, dict]], root: str) -> dict[str, str]:
    """What releases each call: approvers descend from the first key, and the answers are theirs."""
    required, count, keys, released = False, 0, dict[str, str](), dict[str, str]()
    for at, fact in facts:
        kind, asked = fact["type"].split(".")[1], fact.get("approval_id", "")
        if kind in ("approver_added", "approver_revoked"):
            first = root or ("" if keys else fact["root_key"])
            by, key = fact["signed_by"], fact.get("signed_key") or fact.get("public_key", "")
            is_next = fact["change"] == count + 1 or kind == "approver_revoked"
            is_valid = signs(keys.get(by, first), fact | {"key_id": by, "public_key": key}, NAMING)
            if (is_next and is_valid) or not (keys or root or fact["signature"]):
                count, root, keys[fact["key_id"]] = count + 1, first, fact.get("public_key", "")
        elif kind == "answered" and fact.get("signature"):
            require(signs(keys.get(fact["key_id"], ""), fact, ANSWER), f"the answer {at} is forged")
            released[asked] = f"approval {asked}: signed by {fact['actor']}"
        elif kind == "auto_allowed":
            released[asked] = f"approval {asked}: allowed by a rule, or for the session"
        elif kind == "grant_consumed":
            require(asked in released or not required, f"no signed answer releases {asked}")
        required |= fact.get("require_keys", False)
    return released


def main(file: str, *known: str) -> None:
    head, *records = read(file)
    messages = sorted((one for one in records if "body" in one), key=lambda one: one["sequence"])
    listed = [(one["sequence"], fact) for one in messages for fact in json.loads(one["body"])]
    facts = [(at, fact | {"realm": head["realm"]}) for at, fact in listed]
    signed = check_nodes(facts, *known)
    check_entities(records, messages, {one["root"] for one in signed.values()})
    released = check_approvals(facts, next((key for key in known if len(key) == 64), ""))
    require(of_run := sum(one.get("run") == head["run"] for _, one in facts), "no fact of the run")
    nodes = dict.fromkeys(f"node {one['node']}: key {one['key']}" for one in signed.values())
    print(f"proven: {of_run} facts of run {head['run']}", *nodes, *released.values(), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else sys.exit("usage: check_proof.py FILE [KEY...]")
