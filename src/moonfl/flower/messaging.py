"""Send messages to sites and collect their answers until a deadline.

A site that is dead, unreachable or slow is noticed here: in place of an answer the caller gets the
reason why there is none. engine.py decides what happens then.
"""

import threading
import time
from collections.abc import Callable, Iterator

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from ..errors import RunError
from .refusals import RefusedError, sanitize

POLL_INTERVALS = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds; the last one repeats
GRACE = 60.0  # seconds that Flower keeps a message after our deadline, so that ours comes first
TIMED_OUT = "no answer within"  # starts the reason for a site that may still be working
Answer = Message | str  # or the reason why there is no answer
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    MemoryError,
    DecodeError,
)  # errors that Flower raises for a malformed or huge message


def exchange(
    grid: Grid,
    messages: Iterator[tuple[int, Message]],
    deadline: float,
    stop: threading.Event,
    on_answer: Callable[[int, Answer], None],
) -> None:
    """Send messages and call `on_answer` once for each, with its key and its answer.

    After `deadline` seconds the answer is the reason why there is none. An answer belongs to the
    message that it replies to, whatever it claims. `stop` ends the wait with a RunError.
    """
    pending: dict[str, int] = {}
    for key, message in messages:
        message_id = next(iter(grid.push_messages([message])), None)
        if message_id:
            pending[message_id] = key
        else:
            on_answer(key, "the message could not be sent to it")
    end = time.monotonic() + deadline
    polls = 0
    while pending:
        # Checked before polling: one long answer must not make the others late.
        expired = time.monotonic() > end
        for message_id in list(pending):
            answer = poll(grid, message_id)
            if answer is not None:
                on_answer(pending.pop(message_id), answer)
        if expired:
            break
        interval = POLL_INTERVALS[min(polls, len(POLL_INTERVALS) - 1)]
        if pending and stop.wait(interval):
            raise RunError("stopped")
        polls += 1
    for key in pending.values():
        on_answer(key, f"{TIMED_OUT} {deadline:g} s")


def poll(grid: Grid, message_id: str) -> Answer | None:
    """Return the answer to one message, or None if it has not arrived.

    Flower returns every message that is addressed to the server and does not check its sender.
    """
    try:
        for reply in grid.pull_messages([message_id]):
            if reply.metadata.reply_to_message_id == message_id:
                return describe_error(reply) if reply.has_error() else reply
    except UNREADABLE as error:
        return f"its answer cannot be read ({type(error).__name__})"
    return None


def describe_error(reply: Message) -> str:
    """Return the reason that Flower gives for a failure."""
    lines = (reply.error.reason or "").strip().splitlines()
    if lines:
        return f"failed ({sanitize(lines[-1])})"
    return f"failed (code {reply.error.code})"


def content_of(answer: Answer) -> RecordDict:
    """Return the content of an answer; raise RefusedError if there is none."""
    if isinstance(answer, str):
        raise RefusedError(answer)
    return answer.content
