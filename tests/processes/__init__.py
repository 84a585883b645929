"""Many processes on one shared table: written, read, killed and forked."""
