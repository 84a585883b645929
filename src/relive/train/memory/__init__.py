"""The memory that the processes of a run share: parameters, counters and stopwatches; no process."""
