"""Adam in NumPy, as its paper states it (Kingma and Ba, 2015)."""

from __future__ import annotations

import numpy as np


def algorithm_1(weights, gradients, rates, early_epsilon=False):
    """Algorithm 1; or in the quicker order of section 2, where epsilon is added before the moment is corrected."""
    b1, b2, eps = 0.9, 0.98, 1e-9
    first, second, weights = np.zeros_like(weights), np.zeros_like(weights), weights.astype(np.float64)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        first, second = b1 * first + (1 - b1) * g, b2 * second + (1 - b2) * g**2
        correction = np.sqrt(1 - b2**t)
        root = (np.sqrt(second) + eps) / correction if early_epsilon else np.sqrt(second) / correction + eps
        weights = weights - rate * first / (1 - b1**t) / root
    return weights
