"""Training: actor processes, the learner, parameter publication, evaluation, checkpoints, progress."""
