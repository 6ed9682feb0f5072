"""Messages out and answers in, by a deadline."""

import threading
import time
from collections.abc import Callable, Iterator

from flwr.app import Message
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from ..errors import RunError
from ..types import State
from .protocol import Facts, RefusedError, clean, unpack

POLLS = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between looks for answers; the last for ever
Answer = Message | str  # or why there is none
LATE = "no answer within"  # begins the reason of one that may still be at work
GRACE = (
    60.0  # seconds that Flower keeps a message beyond its deadline: then it is ours that ends first
)


def exchange(
    grid: Grid,
    messages: Iterator[tuple[int, Message]],
    deadline: float,
    stop: threading.Event,
    done: Callable[[int, Answer], None],
) -> None:
    """Send each message; `done` is told of each answer as it comes, or why there is none by the deadline.

    The keys are the caller's. An answer belongs to the message that it replies to, whatever it says of itself.
    """
    waiting: dict[str, int] = {}
    for key, message in messages:
        number = next(iter(grid.push_messages([message])), None)
        if number:
            waiting[number] = key
        else:
            done(key, "the message to it could not be sent")
    end, looks = time.monotonic() + deadline, 0
    while waiting:
        over = (
            time.monotonic() > end
        )  # before the look: one long answer must not make those beside it late
        for number in list(waiting):
            answer = look(grid, number)
            if answer is not None:
                done(waiting.pop(number), answer)
        if over:
            break
        if waiting and stop.wait(POLLS[min(looks, len(POLLS) - 1)]):
            raise RunError("stopped")
        looks += 1
    for key in waiting.values():
        done(key, f"{LATE} {deadline:g} s")


def look(grid: Grid, number: str) -> Answer | None:
    """The answer to one message, if it is there. Flower hands over whatever is addressed to the server, and does not
    check who sent it.
    """
    try:
        pulled = grid.pull_messages([number])
        reply = next(
            (reply for reply in pulled if reply.metadata.reply_to_message_id == number), None
        )
        if reply is not None and reply.has_error():
            lines = (reply.error.reason or "").strip().splitlines()
            return f"failed ({clean(lines[-1]) if lines else f'code {reply.error.code}'})"
        return reply
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        RecursionError,
        DecodeError,
    ) as error:
        return f"its answer cannot be read ({type(error).__name__})"


def content_of(answer: Answer) -> tuple[Facts, State]:
    """What an answer says; RefusedError where there is none, or it says that something failed."""
    if isinstance(answer, str):
        raise RefusedError(answer)
    facts, tensors = unpack(answer.content)
    if "error" in facts:
        raise RefusedError(clean(str(facts["error"])))
    return facts, tensors
