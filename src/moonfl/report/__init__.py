"""Reports: HTML pages, tables and figures of finished runs."""

from .build import compare, write

__all__ = ["compare", "write"]
