"""The command line: parser, commands and console output."""

from .main import main

__all__ = ["main"]
