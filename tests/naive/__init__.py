"""A replay memory so simple that it can only be right, and the programmes that compare a table with it."""
