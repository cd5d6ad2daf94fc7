"""Workers that wait instead of computing, on a machine that is slowed (optional)."""
