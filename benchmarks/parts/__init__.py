"""One module a part of the measurements. `work` runs in a contestant's own process, `plan` says which processes run."""
