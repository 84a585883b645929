"""The frozen values that a table is built from, down to the columns of a step; no running object and no storage."""
