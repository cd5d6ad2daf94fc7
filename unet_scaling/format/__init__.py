"""What is written of a run, how it is read again, and which facts of runs must agree."""
