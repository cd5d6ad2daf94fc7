"""Throughput at larger worker counts, fitted on the smaller ones, and how wrong that was."""
