"""Agents: one file for each algorithm, on relive's public interface only; no process and no training loop."""
