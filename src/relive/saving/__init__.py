"""Saves of tables: the folder and its files, copying and loading; no code that knows a row or an item."""
