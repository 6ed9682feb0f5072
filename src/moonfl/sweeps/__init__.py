"""Sweeps: grids and trials of settings, in ordinary run directories."""
