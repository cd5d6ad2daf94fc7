"""Saliency maps: how fast they are made, how faithful they are, and whether equal weights give equal maps."""
