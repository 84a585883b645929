"""Short runs of every example: each learns, stops, continues and keeps to the form of an example."""
