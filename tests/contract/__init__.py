"""One suite for every table there is: it uses the public face only, through the fixture `make_table`."""
