"""The own tests of the libraries on our classes: a pytest plugin for each library (scripts/test_adapters.py)."""
