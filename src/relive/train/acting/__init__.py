"""The code that acts: environments, actor processes, inference, and actors of other machines; no learning."""
