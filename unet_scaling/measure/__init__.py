"""What measures a run: its epochs with their phases, the machine, and the network."""
