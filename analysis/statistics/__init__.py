"""Launches, blocks of epochs, and the bootstrap intervals that everything else takes from here."""
