"""Where the time of a step goes, what costs efficiency, and what to try."""
