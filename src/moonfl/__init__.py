"""moonfl: federated learning on non-IID data with MOON and the methods around it."""

from importlib import metadata

from .algorithms import MOON, FedAvg, FedDyn, FedNova, FedProx, Scaffold, Solo
from .api import run
from .errors import InputError, RunError
from .experiment import Experiment
from .record import Result
from .servers import Adam, Average, Momentum, Yogi

__version__ = metadata.version("moonfl")
__all__ = [
    "MOON", "Adam", "Average", "Experiment", "FedAvg", "FedDyn", "FedNova", "FedProx", "InputError", "Momentum",
    "Result", "RunError", "Scaffold", "Solo", "Yogi", "run",
]  # fmt: skip
