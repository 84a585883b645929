"""Training beside Stable-Baselines3 at equal work: what both sides do, and a programme for each."""
