"""Export of trained models to files that need no run directory."""

from .program import TOLERANCE
from .weights import load_model
from .writer import Exported, export

__all__ = ["TOLERANCE", "Exported", "export", "load_model"]
