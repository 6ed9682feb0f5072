"""The server steps by name. A new one is a file beside these and a line in this table."""

from .average import Average
from .fedopt import Adam, Yogi
from .momentum import Momentum

SERVERS: dict[str, type[Average]] = {"average": Average, "momentum": Momentum, "adam": Adam, "yogi": Yogi}

__all__ = ["SERVERS", "Adam", "Average", "Momentum", "Yogi"]
