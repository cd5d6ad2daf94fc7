"""Steps that exchange something else than the gradients of every step: an optional capability."""
