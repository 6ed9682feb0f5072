"""Encoders and the network around them. `encoders.py` lists them by name."""
