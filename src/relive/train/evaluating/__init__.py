"""Trained policies: loading, evaluating and playing them; no training."""
