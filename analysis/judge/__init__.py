"""Whether a comparison is fair, how far to trust it, what to decide, and the answer in a sentence."""
