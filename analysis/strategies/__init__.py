"""Strategies of exchange against gradients averaged at every step."""
