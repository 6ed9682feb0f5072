"""Everything a run leaves on disk: run directory, round records, checkpoints, party states, final analysis."""
