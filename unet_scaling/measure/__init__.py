"""What is measured around training: epochs with their phases, the machine, and the network."""
