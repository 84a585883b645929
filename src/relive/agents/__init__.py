"""Agents that learn through a table: one file an algorithm, on relive's public interface only."""
