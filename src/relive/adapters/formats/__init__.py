"""File formats of recorded experience, each a pair of functions over whole episodes; no table and no writer."""
