"""Launch a study, on this machine or a cluster: its folder, checks before it, its time, its processes."""
