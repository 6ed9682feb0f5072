"""Federated learning methods, one file per paper. `table.py` lists them by name."""

from .base import Algorithm
from .composed import (
    Composed,
    compose,
    has_own_model,
    overrides_deployed,
    part_key,
    replaces_aggregation,
    stores_state,
)
from .ditto import Ditto
from .fedavg import FedAvg
from .feddecorr import FedDecorr
from .feddyn import FedDyn
from .fedexp import FedExP
from .fedlc import FedLC
from .fednova import FedNova
from .fedntd import FedNTD
from .fedprox import FedProx
from .fedrep import FedRep
from .fedrs import FedRS
from .fedsam import FedSAM
from .moon import MOON
from .perfedavg import PerFedAvg
from .qfedavg import QFedAvg
from .scaffold import Scaffold
from .solo import Solo
from .table import ALGORITHMS

__all__ = [
    "ALGORITHMS",
    "MOON",
    "Algorithm",
    "Composed",
    "Ditto",
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
    "PerFedAvg",
    "QFedAvg",
    "Scaffold",
    "Solo",
    "compose",
    "has_own_model",
    "overrides_deployed",
    "part_key",
    "replaces_aggregation",
    "stores_state",
]
