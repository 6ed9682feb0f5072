"""moonfl: federated learning on non-IID data with MOON and related methods."""

import difflib
import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .algorithms import (
        MOON,
        Algorithm,
        Ditto,
        FedAvg,
        FedDecorr,
        FedDyn,
        FedExP,
        FedLC,
        FedNova,
        FedNTD,
        FedProx,
        FedRep,
        FedRS,
        FedSAM,
        PerFedAvg,
        QFedAvg,
        Scaffold,
        Solo,
    )
    from .api.experiments import resume, run
    from .api.federate import federate
    from .api.prediction import predict
    from .errors import InputError, RunError
    from .experiment import Experiment
    from .exports import export, load_model
    from .runs.result import Result
    from .server_optimizers import Adagrad, Adam, Average, Momentum, ServerOptimizer, Yogi

__version__ = metadata.version("moonfl")
__all__ = [
    "MOON",
    "Adagrad",
    "Adam",
    "Algorithm",
    "Average",
    "Ditto",
    "Experiment",
    "FedAvg",
    "FedDecorr",
    "FedDyn",
    "FedExP",
    "FedLC",
    "FedNTD",
    "FedNova",
    "FedProx",
    "FedRS",
    "FedRep",
    "FedSAM",
    "InputError",
    "Momentum",
    "PerFedAvg",
    "QFedAvg",
    "Result",
    "RunError",
    "Scaffold",
    "ServerOptimizer",
    "Solo",
    "Yogi",
    "export",
    "federate",
    "load_model",
    "predict",
    "resume",
    "run",
]
_MODULES = {
    "MOON": "algorithms",
    "Adagrad": "server_optimizers",
    "Adam": "server_optimizers",
    "Algorithm": "algorithms",
    "Average": "server_optimizers",
    "Ditto": "algorithms",
    "Experiment": "experiment",
    "FedAvg": "algorithms",
    "FedDecorr": "algorithms",
    "FedDyn": "algorithms",
    "FedExP": "algorithms",
    "FedLC": "algorithms",
    "FedNTD": "algorithms",
    "FedNova": "algorithms",
    "FedProx": "algorithms",
    "FedRS": "algorithms",
    "FedRep": "algorithms",
    "FedSAM": "algorithms",
    "InputError": "errors",
    "Momentum": "server_optimizers",
    "PerFedAvg": "algorithms",
    "QFedAvg": "algorithms",
    "Result": "runs.result",
    "RunError": "errors",
    "Scaffold": "algorithms",
    "ServerOptimizer": "server_optimizers",
    "Solo": "algorithms",
    "Yogi": "server_optimizers",
    "export": "exports",
    "federate": "api.federate",
    "load_model": "exports",
    "predict": "api.prediction",
    "resume": "api.experiments",
    "run": "api.experiments",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that commands without training do not load torch."""
    if name not in _MODULES:
        closest = difflib.get_close_matches(name, __all__, n=1)
        hint = f"; did you mean {closest[0]}?" if closest else ""
        raise AttributeError(f"module 'moonfl' has no attribute '{name}'{hint}")
    module = importlib.import_module(f".{_MODULES[name]}", __name__)
    return getattr(module, name)
