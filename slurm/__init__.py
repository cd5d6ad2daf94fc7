"""From a study to jobs of Slurm, or processes of this machine, each once; and what follows their end."""
