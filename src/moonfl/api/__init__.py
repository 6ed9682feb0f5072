"""The Python interface: run and resume experiments, and federate a model of your own."""
