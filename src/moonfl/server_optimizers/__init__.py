"""Server optimizers: how the server applies the aggregated model. `table.py` lists them by name."""

from .average import Average
from .base import ServerOptimizer
from .fedopt import Adam, Yogi
from .momentum import Momentum
from .table import SERVERS

__all__ = ["SERVERS", "Adam", "Average", "Momentum", "ServerOptimizer", "Yogi"]
