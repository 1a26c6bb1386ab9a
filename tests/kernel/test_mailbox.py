"""A mailbox wakes its actor once per batch, and always does."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pykka

from rookery.actors.kernel.entities.mailbox import Mailbox

THREADS = 8
ITEMS = 2_000


class Drainer(pykka.ThreadingActor):
    use_daemon_thread = True

    def __init__(self, mailbox: Mailbox, batches: queue.SimpleQueue[list[Any]]) -> None:
        super().__init__()
        self._mailbox, self._batches = mailbox, batches

    def on_receive(self, message: object) -> None:
        self._batches.put(self._mailbox.drain())


class Sleeper:
    """An actor reference without an actor; it counts the wake-ups."""

    def __init__(self) -> None:
        self.told = 0

    def tell(self, message: object) -> None:
        self.told += 1


def test_what_many_threads_post_arrives_once_and_in_each_ones_order():
    mailbox, batches = Mailbox(), queue.SimpleQueue[list[Any]]()
    actor = Drainer.start(mailbox, batches)
    mailbox.attach(actor)

    def post(thread: int) -> None:
        for number in range(ITEMS):
            mailbox.post((thread, number))

    threads = [threading.Thread(target=post, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    items: list[Any] = []
    wakes = 0
    while len(items) < THREADS * ITEMS:
        items += batches.get(timeout=30)
        wakes += 1
    for thread in threads:
        thread.join()
    actor.stop()
    for number in range(THREADS):
        assert [n for t, n in items if t == number] == list(range(ITEMS))
    assert wakes <= len(items) == THREADS * ITEMS
    assert len(mailbox) == 0


def test_a_woken_actor_is_not_woken_again_before_it_drains():
    mailbox, sleeper = Mailbox(), Sleeper()
    mailbox.attach(sleeper)  # type: ignore[arg-type]
    for item in range(100):
        mailbox.post(item)
    assert sleeper.told == 1
    assert mailbox.drain() == list(range(100))
    mailbox.post("more")
    assert sleeper.told == 2


def test_what_is_posted_before_there_is_an_actor_waits_for_it():
    mailbox, sleeper = Mailbox(), Sleeper()
    mailbox.post("early")
    mailbox.attach(sleeper)  # type: ignore[arg-type]
    assert (sleeper.told, mailbox.drain()) == (1, ["early"])


def test_a_successor_is_woken_for_the_messages_its_predecessor_left():
    mailbox, sleeper = Mailbox(), Sleeper()
    dead = Drainer.start(mailbox, queue.SimpleQueue())
    mailbox.attach(dead)
    dead.stop()
    mailbox.post("left")
    mailbox.attach(sleeper)  # type: ignore[arg-type]
    assert (sleeper.told, mailbox.drain()) == (1, ["left"])
