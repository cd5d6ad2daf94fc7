"""Saliency maps: what in an image a trained network answers to."""
