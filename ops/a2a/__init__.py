"""Sessions as A2A agents: ``rookery a2a``. It needs the extra ``rookery[a2a]``.

A task of the protocol is a request to the session, which its responder executes: all that is known
of it is in the journal. This package keeps nothing, so any gateway answers for any other.

    http_gateway.py    addresses, tokens, streams
    handler.py         the protocol's operations, each a command or a read
    task_facts.py      tasks, folded from facts; task_book.py: those of a session, followed
    messages.py        tasks and events in the protocol's words; task_lists.py: pages of them
    cards.py           agent cards, signed by the realm's key
    push.py            push notifications: their targets, and who has which event
"""

from rookery.ops.a2a.http_gateway import A2aGateway
from rookery.ops.a2a.push import PushNetworks

__all__ = ["A2aGateway", "PushNetworks"]
