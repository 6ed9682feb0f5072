"""The server optimizers by name. A new one is a file next to this one and an entry here."""

from .average import Average
from .base import ServerOptimizer
from .fedopt import Adagrad, Adam, Yogi
from .momentum import Momentum

SERVERS: dict[str, type[ServerOptimizer]] = {
    "average": Average,
    "momentum": Momentum,
    "adam": Adam,
    "yogi": Yogi,
    "adagrad": Adagrad,
}
