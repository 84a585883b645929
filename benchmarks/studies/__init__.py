"""What studies of many runs share: their statistics, and a runner that goes on where it was stopped."""
