"""Everything a run leaves on disk: records, checkpoints, party states, final analysis."""
