"""Native CPU kernels with a torch fallback."""

from .library import in_use

__all__ = ["in_use"]
