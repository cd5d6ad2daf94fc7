"""A real Slurm of several hosts on one Linux machine, each host in namespaces of its own."""
