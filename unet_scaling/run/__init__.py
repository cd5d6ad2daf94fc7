"""One attempt of a run and what it leaves: its folder, its claim, its record, its checkpoints."""
