"""Workers that wait instead of computing, and a machine whose seconds are stretched (optional)."""
