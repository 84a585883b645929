"""What a card does with a table: reads, draws, and the same work by plain torch and by TorchRL."""
