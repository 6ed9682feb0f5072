"""Flower in one process: a Grid that passes every message, as bytes, to its node's real ClientApp.

Grid is abstract; the methods that moonfl's engine must not need raise NotImplementedError.
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from moonfl.flower.protocol import CONFIG, TENSORS
from moonfl.types import State

Intercept = Callable[[Message, Message], Message | None]
# (request, reply) -> what arrives in place of the reply; None: nothing arrives


@dataclass
class InProcessGrid(Grid):
    """A grid whose node k + 1 has config k.

    Only nodes in `online` can be reached; `intercept` may change or drop replies.
    """

    app: ClientApp
    configs: list[dict[str, object]]
    online: set[int] = field(default_factory=set)
    intercept: Intercept = lambda request, reply: reply
    sent: list[Message] = field(default_factory=list)
    replies: dict[str, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TaskIdentity.task_id = 1
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 1
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
        """Let the addressed nodes answer at once, and store what arrives of their replies."""
        message_ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            self.sent.append(message)
            message_ids.append(message.metadata.message_id)
            if message.metadata.dst_node_id not in self.online:
                continue
            reply = self.intercept(message, self._answer(message))
            if reply is not None:
                self.replies[message.metadata.message_id] = reply
        return message_ids

    def _answer(self, message: Message) -> Message:
        """Return the reply of the addressed node's ClientApp."""
        node = message.metadata.dst_node_id
        TaskIdentity.node_id = node
        try:
            return transmit(self.app(transmit(message), self.contexts[node]))
        except Exception as error:
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
        finally:
            TaskIdentity.node_id = 1

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived, and errors for expired messages."""
        wanted = set(message_ids)
        now = time.time()
        answers = []
        for message in self.sent:
            metadata = message.metadata
            unanswered = metadata.message_id in wanted - self.replies.keys()
            if unanswered and now > metadata.created_at + metadata.ttl:
                answers.append(Message(Error(3, "Message Unavailable"), reply_to=message))
        for message_id in wanted & self.replies.keys():
            answers.append(self.replies.pop(message_id))
        return answers

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError


def transmit(message: Message) -> Message:
    """Return a message after conversion to bytes and back, in the chunks that Flower makes."""
    contents = {key: item.deflate() for key, item in get_all_nested_objects(message).items()}
    received = inflate_object_from_contents(message.object_id, contents)
    received.metadata.__dict__["_message_id"] = message.object_id
    return received


def as_node(node: int, message: Message) -> Message:
    """Set the node that a message comes from."""
    message.metadata.__dict__["_src_node_id"] = node
    return message


def unpack(content: RecordDict) -> tuple[dict[str, Any], State]:
    """Return header and tensors of a message of moonfl, without any check."""
    config = content.config_records[CONFIG]
    header: dict[str, Any] = json.loads(str(config["header"]))
    names = json.loads(str(config["names"]))
    tensors = {}
    for label in names:
        arrays = content.array_records[f"{TENSORS}{label}"]
        tensors[label] = {name: torch.from_numpy(arrays[name].numpy()) for name in names[label]}
    return header, tensors
