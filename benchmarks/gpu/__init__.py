"""Measurements on a card: reads and draws of a table, and the same work by plain torch and by TorchRL."""
