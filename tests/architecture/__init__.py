"""The shape of the house."""
