"""Gradients of workers with known noise and signal, and the norms that a run samples of them."""

import numpy as np

from analysis.arrays import Array

WEIGHTS = 50


def sampled_norms(
    random: np.random.Generator, workers: int, noise: float, signal: Array
) -> tuple[Array, Array]:
    """What is sampled of gradients with this variance per worker, and this squared norm at each step.

    The mean over the workers of the squared norm of their own, and the squared norm of their mean.
    """
    gradients = random.normal(0, np.sqrt(noise / WEIGHTS), (len(signal), workers, WEIGHTS))
    gradients[:, :, 0] += np.sqrt(signal)[:, None]
    return (gradients**2).sum(axis=2).mean(axis=1), (gradients.mean(axis=1) ** 2).sum(axis=1)
