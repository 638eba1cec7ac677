"""Known processes: sources of letters whose true probabilities are known, so that quality has an oracle."""
