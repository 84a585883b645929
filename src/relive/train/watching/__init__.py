"""What a run shows and keeps: progress, profile, results, checkpoints and loggers; no learning and no acting."""
