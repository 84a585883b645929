"""The tuner: it measures and predicts how fast a run would be and chooses its settings; no part of a run itself."""
