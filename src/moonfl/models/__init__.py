"""Encoders, and the network built around them. `encoders.py` lists them by name."""
