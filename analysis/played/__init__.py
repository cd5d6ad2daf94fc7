"""Runs that trained as more workers than they had: up to how many the score is kept."""
