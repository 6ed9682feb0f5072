"""The same algorithms over real sites, on Flower. The only package that imports flwr."""

from . import environment

__all__ = ["environment"]
