"""The output of a run: progress, profile, results, checkpoints, loggers and callbacks; no learning and no acting."""
