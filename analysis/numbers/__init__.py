"""Launches and their intervals; numbers of points, pairs and scores, and what each interval shows."""
