"""The binding itself, and the ten points that the layout must allow from the first day."""
