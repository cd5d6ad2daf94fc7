"""Whether a comparison is fair, how far to trust it, what to decide, and the answer in a sentence.

decide.py also says whether more repeats must follow; the launcher asks it.
"""
