"""What a launch needs, on this machine or a cluster: the study's folder, checks, estimates, processes."""
