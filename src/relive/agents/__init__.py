"""Agents, one file for each algorithm, on relive's public interface; no processes and no training loop."""
