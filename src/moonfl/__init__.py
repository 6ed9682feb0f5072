"""moonfl: federated learning on non-IID data with MOON and the methods around it."""

import difflib
import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .algorithms import MOON, FedAvg, FedDyn, FedNova, FedProx, Scaffold, Solo
    from .api.experiments import resume, run
    from .api.federate import federate
    from .errors import InputError, RunError
    from .experiment import Experiment
    from .exports import export, load_model
    from .runs.recorder import Result
    from .server_optimizers import Adam, Average, Momentum, Yogi

__version__ = metadata.version("moonfl")
__all__ = [
    "MOON",
    "Adam",
    "Average",
    "Experiment",
    "FedAvg",
    "FedDyn",
    "FedNova",
    "FedProx",
    "InputError",
    "Momentum",
    "Result",
    "RunError",
    "Scaffold",
    "Solo",
    "Yogi",
    "export",
    "federate",
    "load_model",
    "resume",
    "run",
]
_HOMES = {
    "run": "api.experiments",
    "resume": "api.experiments",
    "federate": "api.federate",
    "export": "exports",
    "load_model": "exports",
    "InputError": "errors",
    "RunError": "errors",
    "Experiment": "experiment",
}
_HOMES |= {"Result": "runs.recorder"} | dict.fromkeys(
    ["Adam", "Average", "Momentum", "Yogi"], "server_optimizers"
)


def __getattr__(name: str) -> Any:
    """Names are fetched when they are used, so that what needs no torch, such as reports, does not wait for it."""
    if name not in __all__:
        near = difflib.get_close_matches(name, __all__, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise AttributeError(f"module 'moonfl' has no attribute '{name}'{hint}")
    return getattr(importlib.import_module(f".{_HOMES.get(name, 'algorithms')}", __name__), name)
