"""Datasets: readers, preparation, partitions. `datasets.py` lists them by name."""
