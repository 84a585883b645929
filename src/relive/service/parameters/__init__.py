"""Published sets of model parameters as bytes, and the store of the newest version; no network."""
