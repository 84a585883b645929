"""`relive inspect`: a table while it is in use, in the terminal or as a page; no change of the table."""
