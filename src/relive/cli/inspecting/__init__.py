"""`relive inspect`: a table while it is in use, in the terminal or as a page; it reads and changes nothing."""
