"""The overhead budget: the parts of 1 - efficiency, the same for both frameworks, and their diagnosis."""
