"""Flower in one process: a Grid that hands every message, as bytes, to the real ClientApp of its node.

Grid is abstract; the methods that moonfl's engine must not need are refused.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

Meddle = Callable[
    [Message, Message], Message | None
]  # (order, reply) -> what arrives; None: nothing does


@dataclass
class InProcess(Grid):
    """Node k + 1 has config k. `online` is who can be reached; `meddle` is what happens to replies on the way."""

    app: ClientApp
    configs: list[dict[str, object]]
    online: set[int] = field(default_factory=set)
    meddle: Meddle = lambda order, reply: reply
    sent: list[Message] = field(default_factory=list)
    replies: dict[str, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.contexts = {
            node: Context(1, node, config, RecordDict(), {})
            for node, config in enumerate(self.configs, 1)
        }
        self.online = set(self.contexts)

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *args: object, **kwargs: object) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = message.object_id
            self.sent.append(message)
            numbers.append(message.metadata.message_id)
            if node not in self.online:
                continue
            TaskIdentity.node_id = node
            try:
                reply = over_the_wire(self.app(over_the_wire(message), self.contexts[node]))
            except Exception as error:
                reply = Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
            finally:
                TaskIdentity.node_id = 1
            arrived = self.meddle(message, reply)
            if arrived is not None:
                self.replies[message.metadata.message_id] = arrived
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there; a message that has outlived its ttl is answered as a SuperLink does."""
        numbers, now = set(message_ids), time.time()
        asked = [m for m in self.sent if m.metadata.message_id in numbers - self.replies.keys()]
        ended = [m for m in asked if now > m.metadata.created_at + m.metadata.ttl]
        lost = [Message(Error(3, "Message Unavailable"), reply_to=message) for message in ended]
        return [*lost, *(self.replies.pop(number) for number in numbers & self.replies.keys())]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError


def over_the_wire(message: Message) -> Message:
    """As bytes and back, in the chunks that Flower makes of it."""
    contents = {number: item.deflate() for number, item in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, contents)
    arrived.metadata.__dict__["_message_id"] = message.object_id
    return arrived
