"""The way from a draw to a batch: draws, sources, batches, rewards and priorities; no table and no writer."""
