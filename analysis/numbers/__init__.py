"""Launches and their intervals; numbers of points, of pairs of points, and of scores."""
