"""Published sets of model parameters and their store; no network."""
