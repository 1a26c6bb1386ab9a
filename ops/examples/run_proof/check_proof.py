"""Check the proof of a run by `rookery runs prove RUN FILE`: `check_proof.py FILE [KEY...]`.

It uses pycryptodome for Ed25519 and nothing of Rookery. KEY is the realm's root key, in hex, from
which nodes and approvers must descend, or its issuer of credentials, `A...`, from which nodes must
descend through an operator. Without keys the first ones are trusted, and printed.
"""

import json
import re
import sys
from base64 import b32decode
from collections.abc import Iterable
from hashlib import sha3_256
from typing import Any

from Crypto.Signature import eddsa

__all__ = ["descends", "main", "root_of"]

Fields = dict[str, Any]
CHECKPOINT = "node number start sequence messages root previous uncertain key_id"
NKEY = 56
ANSWER = "approval_id decision actor request_digest answered_at_ms reason key_id tool_digest"


def require(holds: object, fault: str) -> None:
    if not holds:
        sys.exit(f"NOT PROVEN: {fault}")


def is_signed(signed: object, signature: str, key: str) -> bool:
    """`key`: in hex, or as NATS writes keys, which is base32 with a prefix and a checksum."""
    text = json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        raw = b32decode(key)[1:-2] if len(key) == NKEY else bytes.fromhex(key)
        public = eddsa.import_public_key(raw)
        eddsa.new(public, "rfc8032").verify(text.encode(), bytes.fromhex(signature))
    except ValueError:
        return False
    return True


def read(file: Iterable[bytes]) -> list[Fields]:
    """The records; each line is sealed together with the line before."""
    seal, records = "", []
    for number, line in enumerate(file, 1):
        parts = re.fullmatch(rb'(\{.*),"seal":"([0-9a-f]{64})"\}\n', line, re.DOTALL)
        is_whole = parts and sha3_256(seal.encode() + parts[1]).hexdigest() == parts[2].decode()
        require(is_whole, f"line {number} was changed, lost or moved: {line[:60]!r}")
        assert parts is not None
        seal = parts[2].decode()
        records.append(json.loads(parts[1] + b"}"))
    is_end = records and records[-1] == {"kind": "end", "lines": len(records) - 1}
    require(is_end, "the end of the file is missing")
    return records


def check_chains(messages: list[Fields]) -> dict[str, str]:
    """The digest of each entity's last message; each is over the one before and the body."""
    ends: dict[str, str] = {}
    for one in messages:
        entity, before = one["entity"], one["previous"]
        name = f"message {one['sequence']} of {entity}"
        chain = sha3_256(bytes.fromhex(before) + one["body"].encode()).hexdigest()
        require(chain == one["chain"], f"{name} does not have its digest")
        follows = ends.get(entity, before) == before or entity.startswith("node/")
        require(follows, f"{name} does not follow the one before")
        ends[entity] = chain
    return ends


def root_of(one: Fields) -> str:
    """The root to which an entity's head leads."""
    node = sha3_256(b"\0" + f"{one['entity']} {one['chain']}".encode()).digest()
    for step in one["path"]:
        sibling = bytes.fromhex(step[1:])
        node = sha3_256(b"\1" + (sibling + node if step[0] == "l" else node + sibling)).digest()
    return node.hex()


def descends(realm: str, fact: Fields, root_key: str, issuer: str) -> bool:
    """Whether the root key, or an operator that the issuer certifies, signed the node's key."""
    voucher = fact.get("voucher") or {"signature": ""}
    signer, operator = root_key, voucher.get("operator")
    if operator:
        named = ["rookery.credential.v1", realm, operator["name"], "operator", ""]
        signer = operator["public_key"]
        if not is_signed([*named, signer], operator["certificate"], issuer):
            return False
    domain = {"domain": "rookery.node.key.v1", "realm": realm}
    return is_signed({**domain, "public_key": fact["public_key"]}, voucher["signature"], signer)


def check_nodes(realm: str, facts: list[tuple[int, Fields]], *known: str) -> dict[int, Fields]:
    """The checkpoints, all signed by a key that counts."""
    signed, keys = {}, {}
    for at, fact in facts:
        node = fact.get("node", "")
        if fact["type"].startswith("node.started."):
            counts = not any(known) or descends(realm, fact, *known)
            require(counts, f"none of the given keys vouches for {node}")
            keys[node] = fact["public_key"]
        elif fact["type"].startswith("node.checkpoint."):
            fields = {"previous": "", "uncertain": []} | fact
            fields = {name: fields[name] for name in CHECKPOINT.split()}
            fields |= {"domain": "rookery.node.checkpoint.v1", "realm": realm}
            is_valid = is_signed(fields, fact["signature"], keys.get(node, ""))
            require(is_valid, f"checkpoint {at} is not signed by {node}")
            signed[at] = {**fact, "key": keys[node]}
    return signed


def check_covered(records: list[Fields], ends: dict[str, str], signed: dict[int, Fields]) -> None:
    """Each entity of the run leads to a root that a node has signed."""
    covered = {one["entity"]: one for one in records if one["kind"] == "covered"}
    for entity in (name for name in ends if not re.match("node/|approval/_", name)):
        one = covered.get(entity, {"chain": ""})
        require(one["chain"] == ends[entity], f"no checkpoint covers {entity}")
        checkpoint = signed.get(one["checkpoint"], {"root": ""})
        require(root_of(one) == checkpoint["root"], f"no checkpoint signs what {entity} holds")


class Approvals:
    """Approvers that descend from the first key, their answers, and the calls these release."""

    def __init__(self, realm: str, root_key: str) -> None:
        self.realm, self.root_key, self.count, self.required = realm, root_key, 0, False
        self.keys: dict[str, str] = {}
        self.released: dict[str, str] = {}

    def add(self, at: int, fact: Fields) -> None:
        match fact["type"].split(".")[1]:
            case "started":
                self.required |= fact.get("require_keys", False)
            case "approver_added" | "approver_revoked":
                self.change(fact)
            case "answered" if fact.get("signature"):
                fields = {name: fact[name] for name in ANSWER.split() if name in fact}
                fields |= {"domain": "rookery.approval.answer.v1", "realm": self.realm}
                is_valid = is_signed(fields, fact["signature"], self.keys.get(fact["key_id"], ""))
                require(is_valid, f"the answer in message {at} is forged")
                self.released[fact["approval_id"]] = f"signed by {fact['actor']}"
            case "auto_allowed":
                self.released[fact["approval_id"]] = "allowed by a rule, or for the session"
            case "grant_consumed" if self.required:
                is_released = fact["approval_id"] in self.released
                require(is_released, f"no signed answer releases {fact['approval_id']}")

    def change(self, fact: Fields) -> None:
        """Apply a change of approvers that continues the line; others are forged."""
        text = fact.get("signed_key") or fact.get("public_key", "")
        fields = {"name": fact["name"], "public_key": text, "change": fact["change"]}
        fields |= {"domain": "rookery.approver.naming.v1", "realm": self.realm}
        fields["key_id"] = by = fact["signed_by"]
        is_first = not (self.keys or self.root_key)
        key = self.keys.get(by) or self.root_key or (fact["root_key"] if is_first else "")
        is_valid = is_signed(fields, fact["signature"], key)
        is_next = fact["change"] == self.count + 1 or "public_key" not in fact
        if (is_valid and is_next) or (is_first and not fact["signature"]):
            self.count += 1
            self.root_key = self.root_key or (fact["root_key"] if is_first else "")
            self.keys.pop(fact["key_id"], None)
            if "public_key" in fact:
                self.keys[fact["key_id"]] = fact["public_key"]


def main(file: str, *known: str) -> None:
    root_key = next((key for key in known if len(key) != NKEY), "")
    issuer = next((key for key in known if len(key) == NKEY), "")
    with open(file, "rb") as lines:
        head, *records = read(lines)
    messages = sorted((one for one in records if "body" in one), key=lambda one: one["sequence"])
    facts = [(one["sequence"], fact) for one in messages for fact in json.loads(one["body"])]
    signed = check_nodes(head["realm"], facts, root_key, issuer)
    check_covered(records, check_chains(messages), signed)
    approvals = Approvals(head["realm"], root_key)
    for at, fact in facts:
        approvals.add(at, fact)
    of_run = sum(fact.get("run") == head["run"] for _, fact in facts)
    require(of_run, "the file has no fact of the run")
    shown = [f"proven: {of_run} facts of run {head['run']}"]
    shown += [f"node {one['node']}: key {one['key']}" for one in signed.values()]
    shown += [f"approval {name}: {how}" for name, how in approvals.released.items()]
    sys.stdout.write("\n".join(shown) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: check_proof.py FILE [KEY...]")
    main(*sys.argv[1:])
