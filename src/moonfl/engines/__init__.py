"""Engines: where the parties of a round are trained. All of them give the same bits."""

from typing import Protocol

from ..task import Score
from ..types import Server, Update


class Engine(Protocol):
    def train(self, server: Server, chosen: list[int], t: int) -> list[Update]: ...

    def evaluate(self, server: Server) -> dict[str, Score]: ...
