"""Answers: unreadable ones, foreign ones, late ones, error replies."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Error, Message
from google.protobuf.message import DecodeError

import moonfl
from helpers.equality import same
from helpers.flower_deployment import (
    MOON3,
    Deployment,
)
from helpers.flower_grid import InProcessGrid
from moonfl.flower.messaging import poll
from moonfl.flower.protocol import (
    pack,
)


def test_an_unreadable_answer_is_reported(deployment: Deployment) -> None:
    class Broken(InProcessGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            raise DecodeError("garbage")

    grid = Broken(deployment.grid.app, deployment.grid.configs)
    assert poll(grid, "1") == "its answer cannot be read (DecodeError)"


def test_a_message_that_replies_to_nothing_is_ignored(deployment: Deployment) -> None:
    """Flower returns every message to the server, and a site may send any."""

    class Crowded(InProcessGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            return [Message(pack({"party": 1}), 1, "train"), *super().pull_messages(message_ids)]

    deployment.grid = Crowded(deployment.grid.app, deployment.grid.configs)
    assert same(deployment.serve().models, moonfl.run(MOON3, workers=1).models)


def test_a_slow_answer_does_not_make_others_late(deployment: Deployment) -> None:
    """Flower waits for the rest of an answer whose upload has begun."""

    class Slow(InProcessGrid):
        polls = 0

        def pull_messages(self, message_ids: Any) -> Any:
            asked = next(m for m in self.sent if m.metadata.message_id == message_ids[0])
            if asked.metadata.message_type == "train" and asked.metadata.dst_node_id == 1:
                self.polls += 1
                if self.polls == 1:
                    return []
            if asked.metadata.message_type == "train" and asked.metadata.dst_node_id == 3:
                time.sleep(0.5)
            return super().pull_messages(message_ids)

    deployment.grid = Slow(deployment.grid.app, deployment.grid.configs)
    deployment.exp = replace(MOON3, rounds=1)
    assert not any(
        "missing" in party for party in deployment.serve(deadline=0.3).rounds[0]["parties"]
    )
    assert deployment.grid.polls == 2


def test_unreadable_answers_and_error_replies_are_refused(deployment: Deployment) -> None:
    def intercept(request: Message, reply: Message) -> Message:
        if request.metadata.message_type != "train":
            return reply
        if request.metadata.dst_node_id == 2:
            raise_when_read = Message(Error(5, "x"), reply_to=request)
            raise_when_read.__dict__["_error"] = 3
            return raise_when_read
        return (
            reply
            if request.metadata.dst_node_id == 1
            else Message(Error(5, "node\nunavailable"), reply_to=request)
        )

    deployment.grid.intercept = intercept
    result = deployment.serve(min_parties=1)
    missing = {p["party"]: p["missing"] for p in result.rounds[0]["parties"] if "missing" in p}
    assert missing == {1: "its answer cannot be read (AttributeError)", 2: "failed (unavailable)"}


REPEATED_CHUNK = """
import resource

import numpy as np
from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body, get_all_nested_objects, get_object_body,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from helpers.flower_grid import InProcessGrid
from moonfl.flower.messaging import poll

array = Array(np.zeros(2**20, np.float32))
array.object_id
metadata = get_object_body(array.deflate(), Array).replace(b"[0]", b"[" + b"0," * 10**4 + b"0]")
content = add_header_to_object_body(metadata, array)
chunks = {key: item.deflate() for key, item in get_all_nested_objects(array).items()}
chunks["array"] = content


class Site(InProcessGrid):
    def pull_messages(self, message_ids):
        inflate_object_from_contents("array", chunks)


grid = Site(None, [])
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 10**9, used + 10**9))
print(poll(grid, "1"))
"""


def test_an_array_beyond_the_memory_limit_is_refused() -> None:
    """Flower assembles 40 GB from one chunk of 4 MB; with a memory limit the server survives."""
    done = subprocess.run(
        [sys.executable, "-c", REPEATED_CHUNK],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "its answer cannot be read (MemoryError)\n", done.stderr
