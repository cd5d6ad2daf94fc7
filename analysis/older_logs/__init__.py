"""Logs in the older layout of CSV files."""
