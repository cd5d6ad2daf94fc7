"""What is written of a run, how it is read again, its state, whether it was disturbed, what must agree."""
