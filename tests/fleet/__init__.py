"""Tests of one table over several shards."""
