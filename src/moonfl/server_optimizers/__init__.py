"""Server optimizers: how the server applies the aggregated model. `table.py` lists them by name."""

from .average import Average
from .base import ServerOptimizer
from .fedopt import Adagrad, Adam, Yogi
from .momentum import Momentum
from .table import SERVERS

__all__ = ["SERVERS", "Adagrad", "Adam", "Average", "Momentum", "ServerOptimizer", "Yogi"]
