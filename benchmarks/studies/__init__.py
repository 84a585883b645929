"""Code that studies of many runs share: their statistics, and a runner that continues where it was stopped."""
