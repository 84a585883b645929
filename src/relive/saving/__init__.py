"""Contains saves of tables: the folder, the files, copying and loading; contains no code that knows a row or an item."""
