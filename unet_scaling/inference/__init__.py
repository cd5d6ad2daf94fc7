"""Use of the network of a complete run: an optional capability."""
