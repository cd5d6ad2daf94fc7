"""A table of workers and seconds, or throughput, that somebody else measured."""
