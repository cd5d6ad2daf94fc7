"""Where 1 - efficiency went, the same for both frameworks, and what to try against it."""
