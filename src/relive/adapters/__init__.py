"""Adapters to other libraries, one file for each library; no import of a library by this package itself."""
