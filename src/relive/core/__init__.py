"""The interfaces of tables and their cores, and the code that closes open handles; no implementation of a table."""
