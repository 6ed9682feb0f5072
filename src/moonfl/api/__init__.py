"""The Python interface: run and resume experiments, and train custom models on custom data."""
