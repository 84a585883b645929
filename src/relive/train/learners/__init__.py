"""The code that learns from batches: update kinds, groups of learners and hosts; no acting."""
