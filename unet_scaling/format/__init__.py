"""What is written of a run, how it is read again, the state that it shows, and what must agree."""
