"""Launch a study on this machine, and what that shares with Slurm: its folder, checks, estimates, repeats."""
