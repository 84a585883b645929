"""Values of rollouts in shared memory, for the stores of language models; no class of another library."""
