"""A seeded simulation of faults, with the guarantees that must hold in spite of them.

Goal: no seed breaks a guarantee. Method: up to three nodes on one realm in memory, on the virtual
clock. Chance delays every step, kills nodes and actors, cuts nodes off from the server or only from
their claims, lets rivals write first and moves partitions, while clients send and retry. Guarantees
of single steps are checked at once, the others after the faults have stopped and every client has
its reply. A seed always gives the same run.

``python -m tests.kernel.simulation --seeds 1000`` searches further than the suite.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections import Counter
from collections.abc import Callable

import msgspec

from rookery.bus.journal_audit import ChainAudit
from rookery.bus.ports import AppendRequest, ReplyMessage, StoredMessage
from rookery.schemas.errors import CODES
from tests.kernel.clients import SentRequest
from tests.kernel.tally import Added, Closed, Total
from tests.kernel.world import CODECS, Node, World

KEYS = ("a", "b", "k7", "k12")
STEPS = 40
NODES_MAX = 3
DEATHS_MAX = 4
PATIENCE_S = 4.0
RECOVERY_S = 240.0
"""Simulated time after the last fault within which every client has its reply."""


class Ledger:
    """The journal's facts, read as it grows."""

    def __init__(self, world: World) -> None:
        self._world, self._read = world, 0
        self._audit = ChainAudit()
        self.added: dict[str, list[tuple[str, int]]] = {key: [] for key in KEYS}
        """Command id and number, per key."""
        self.heard: dict[str, list[int]] = {key: [] for key in KEYS}
        self.bells: set[str] = set()
        """Facts with an effect that a rival did not write."""
        self.standing: set[str] = set()
        world.server.realm("default").log.on_grown.append(self.look)

    def numbers(self, key: str) -> tuple[int, ...]:
        return tuple(amount for _, amount in self.added[key])

    def look(self) -> None:
        for stored in self._world.server.realm("default").log.page(self._read, 1 << 30):
            self._read = stored.sequence
            self._audit.add(stored)
            self._enter(stored)

    def _enter(self, stored: StoredMessage) -> None:
        family, key = stored.entity
        if family == "node":
            return
        before = len(self.added[key]) if family == "tally" else len(self.heard[key])
        for number, fact in enumerate(CODECS[family].decode(stored.body), before + 1):
            assert fact.id == f"{family}.{key}.{number}", "facts are numbered without a hole"
            assert not isinstance(fact, Closed)
            if family == "tally":
                self._enter_sum(key, fact)
            else:
                self.heard[key].append(fact.amount)
        sums = self.numbers(key)
        echo = tuple(self.heard[key])
        assert echo == sums[: len(echo)], "reactions happen in order, once, and to what stands"

    def _enter_sum(self, key: str, fact: Added) -> None:
        (cause,) = fact.cause
        self.added[key].append((cause, fact.amount))
        self.standing.add(fact.id)
        if fact.source != "rival":
            assert fact.total == sum(self.numbers(key)), "it was decided on what stands"
            if fact.total % 10 == 0:
                self.bells.add(fact.id)


class Client:
    """One command, sent until it is committed."""

    def __init__(
        self, story: Simulation, verb: str, key: str, amount: int, *, durable: bool
    ) -> None:
        self.story, self.verb, self.key, self.amount = story, verb, key, amount
        self.id = f"{verb}-{len(story.clients)}"
        self.durable, self.done, self.asked_s = durable, False, 0.0
        self.must_see = story.acknowledged[key]
        self.ask()

    def ask(self) -> None:
        self.asked_s = self.story.now_s
        body = {"amount": self.amount} if self.verb == "add" else {}
        if self.durable:
            subject = f"durable.{self.id}"
            self.story.world.listen_with(subject, self.hear)
            self.story.world.submit(self.verb, self.key, self.id, subject, **body)
        else:
            self.story.world.ask(self.verb, self.key, self.id, self._hear_last, **body)

    def _hear_last(self, asked: SentRequest) -> None:
        self.hear(asked.answers[-1])

    def hear(self, answer: ReplyMessage) -> None:
        if answer.code:
            assert CODES[answer.code].retryable, f"{self.id} was answered {answer.code}"
            self.asked_s = -PATIENCE_S  # Send again at the next look.
            return
        told = msgspec.json.decode(answer.body, type=Total).numbers
        stands = self.story.ledger.added[self.key]
        assert told == self.story.ledger.numbers(self.key)[: len(told)], "it tells what stands"
        if self.verb == "add":
            known = [command for command, _ in stands[: len(told)]]
            assert known.count(self.id) == 1, "what is acknowledged stands, and once"
        if self.story.orderly:
            assert len(told) >= self.must_see, "who asks sees what was acknowledged before"
        acknowledged = self.story.acknowledged
        acknowledged[self.key] = max(acknowledged[self.key], len(told))
        self.done = True


class Simulation:
    """One seed."""

    def __init__(self, seed: int, world: World) -> None:
        self.chance, self.world = random.Random(seed), world
        self.ledger = Ledger(world)
        self.acknowledged: Counter[str] = Counter()
        self.clients: list[Client] = []
        self.deaths = 0
        self.orderly = self.chance.random() < 0.3
        """No message sent long ago arrives after a partition has moved. Otherwise a reader may get
        an outdated reply until the new owner writes."""
        self._pauses_s = [0.0] * 5 + [0.001, 0.01, self.chance.choice((0.02, 0.2, 0.6))]
        self._rivalry = self.chance.choice((0.0, 0.0, 0.02, 0.1))
        world.on_ring = self._rung

    @property
    def now_s(self) -> float:
        return self.world.loop.time()

    @property
    def up(self) -> list[Node]:
        return [node for node in self.world.nodes if node.weather.up]

    def tell(self) -> None:
        """Faults for a while, then none; every guarantee must hold at the end."""
        self.start_node()
        actions: list[tuple[Callable[[], None], int]] = [
            (self.ask_much, 20), (self.start_node, 4), (self.crash_node, 3), (self.stop_node, 2),
            (self.kill_actor, 1), (self.passivate, 2), (self.lose_snapshots, 2),
        ]  # fmt: skip
        if not self.orderly:
            actions += [
                (self.cut_off, 3), (self.cut_claims, 3), (self.hold_acks, 3), (self.restore, 5),
            ]  # fmt: skip
        calls, weights = zip(*actions, strict=True)
        for _ in range(STEPS):
            self.chance.choices(calls, weights)[0]()
            self.world.pass_s(self.chance.choice((0.0, 0.01, 0.3, 1.0, 3.0)))
            self.insist()
            self.world.raise_errors()
        self.calm_down()
        self.check()

    # --- what happens ---------------------------------------------------------------------------

    def ask_much(self) -> None:
        for _ in range(self.chance.randint(1, 12)):
            verb = self.chance.choice(("add", "add", "add", "look"))
            durable = self.chance.random() < 0.3
            amount = self.chance.randint(1, 9)
            key = self.chance.choice(KEYS)
            self.clients.append(Client(self, verb, key, amount, durable=durable))

    def start_node(self) -> None:
        if len(self.up) >= NODES_MAX:
            return
        node = self.world.node(drain_timeout_s=3.0).start()
        node.weather.pause_s = lambda: self.chance.choice(self._pauses_s)
        node.journal.before_append = self._rival

    def crash_node(self) -> None:
        if self.up and self.deaths < DEATHS_MAX:
            self.deaths += 1
            node = self.chance.choice(self.up)
            node.weather.stray = self.chance.random() < 0.5
            node.crash()

    def stop_node(self) -> None:
        if len(self.up) > 1:
            node = self.chance.choice(self.up)
            node.stop()
            node.weather.up = False

    def cut_off(self) -> None:
        if self.up:
            self.chance.choice(self.up).weather.away = True

    def cut_claims(self) -> None:
        if self.up:
            self.chance.choice(self.up).bus.claims.cut = True

    def hold_acks(self) -> None:
        if self.up:
            self.chance.choice(self.up).journal.hold_acks()

    def restore(self) -> None:
        for node in self.up:
            node.weather.away = node.bus.claims.cut = False
            node.release()

    def kill_actor(self) -> None:
        if self.up:
            mailboxes = self.chance.choice(self.up).kernel._mailboxes
            mailboxes[self.chance.choice(("tally", "echo"))].post(object())

    def passivate(self) -> None:
        for node in self.up:
            node.passivate()

    def lose_snapshots(self) -> None:
        """Snapshots may vanish at any time: the journal is the truth."""
        newest = self.world.server.realm("default").snapshots._newest
        for entity in [e for e in newest if e.family != "kernel" or self.chance.random() < 0.3]:
            newest.pop(entity)

    def insist(self) -> None:
        for client in self.clients:
            if not client.done and client.asked_s < self.now_s - PATIENCE_S:
                client.ask()

    def _rival(self, append: AppendRequest) -> None:
        if append.entity.family == "tally" and self.chance.random() < self._rivalry:
            total = sum(self.ledger.numbers(append.entity.key)) + 1
            self.world.write_now([Added(amount=1, total=total)], append.entity)

    def _rung(self, fact_id: str) -> None:
        assert fact_id in self.ledger.standing, "effects start only because of what stands"

    # --- the end --------------------------------------------------------------------------------

    def calm_down(self) -> None:
        self._rivalry, self._pauses_s = 0.0, [0.0, 0.001]
        self.restore()
        if not self.up:
            self.start_node()
        self.served()
        for key in KEYS:
            self.clients.append(Client(self, "add", key, 1, durable=False))
        self.served()
        self.world.until(self.caught_up, RECOVERY_S)

    def served(self) -> None:
        """Every client gets its reply within its patience."""
        end_s = self.now_s + RECOVERY_S
        while not all(client.done for client in self.clients):
            open_ = [client.id for client in self.clients if not client.done]
            assert self.now_s < end_s, f"no answer to {open_}"
            self.world.pass_s(0.5)
            self.insist()
            self.world.raise_errors()

    def caught_up(self) -> bool:
        ledger = self.ledger
        rung = {effect.key for _, effect in self.world.rings}
        echoed = all(ledger.heard[key] == list(ledger.numbers(key)) for key in KEYS)
        return echoed and ledger.bells <= rung

    def check(self) -> None:
        self.world.pass_s(2.0)
        for node in self.up:
            assert node.stop(), "a node at rest stops at once"
        for letter in self.world.dead():
            assert letter.message.startswith("its node died"), "no other command is set aside"
        for key in KEYS:
            commands = [command for command, _ in self.ledger.added[key]]
            ours = [command for command in commands if not command.startswith("rival")]
            assert len(set(ours)) == len(ours), "no command is worked off twice"
            wanted = {c.id for c in self.clients if c.verb == "add" and c.key == key}
            assert wanted == set(ours), "every command is worked off"


def run(seed: int) -> Simulation:
    """Run one seed; a broken guarantee is raised with the command that repeats it."""
    try:
        with World() as world:
            story = Simulation(seed, world)
            story.tell()
            return story
    except BaseException as error:
        error.add_note(f"again: python -m tests.kernel.simulation --seed {seed}")
        raise


def main() -> None:
    parser = argparse.ArgumentParser(description="Look for seeds that break a promise.")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="this one only, with its log")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO if arguments.seed is not None else logging.CRITICAL)
    first = arguments.seed if arguments.seed is not None else arguments.first
    facts = commands = 0
    hours = 0.0
    for seed in range(first, first + (1 if arguments.seed is not None else arguments.seeds)):
        story = run(seed)
        facts += sum(map(len, story.ledger.added.values()))
        commands += len(story.clients)
        hours += story.now_s / 3600
    print(f"{commands} commands, {facts} sums, {hours:.1f} simulated hours: every promise kept")


if __name__ == "__main__":
    main()
