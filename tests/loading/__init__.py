"""Tests of tables as datasets of torch."""
