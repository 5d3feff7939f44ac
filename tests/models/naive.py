"""HSTU in float64 with loops over rows, heads and dimensions: the formulas of the paper, and nothing of the product.

u, v, q, k = split(SiLU(linear(norm(x))));  o_i = sum_j SiLU(q_i . k_j) v_j / N;  x = x + linear(norm(o * u))
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Weights = Mapping[str, npt.NDArray[np.float64]]


def silu(value: float) -> float:
    return value / (1.0 + math.exp(-value))


def norm(x: Vector, weight: Vector, bias: Vector, eps: float) -> Vector:
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return np.array([(x[i] - mean) / math.sqrt(variance + eps) * weight[i] + bias[i] for i in range(len(x))])


def linear(x: Vector, weight: Vector, bias: Vector) -> Vector:
    return np.array([sum(weight[o, i] * x[i] for i in range(len(x))) + bias[o] for o in range(len(bias))])


def attend(row: int, seen: Sequence[int], q: Vector, k: Vector, v: Vector, heads: int) -> Vector:
    """Of one row over the rows it sees, head by head."""
    dim = q.shape[1] // heads
    out = np.zeros(heads * dim)
    for head in range(heads):
        for other in seen:
            product = sum(q[row, head * dim + d] * k[other, head * dim + d] for d in range(dim))
            for d in range(dim):
                out[head * dim + d] += silu(product) * v[other, head * dim + d]
    return out


def encode(
    weights: Weights,
    layers: int,
    heads: int,
    n: int,
    eps: float,
    history: Sequence[tuple[int, int]],
    candidates: Sequence[int],
) -> Vector:
    """Outputs of the history's rows, then of the candidates', each of which sees the history and itself only."""
    rows = [
        weights["item_embedding.weight"][item]
        + weights["action_embedding.weight"][action]
        + weights["position_embedding.weight"][position]
        for position, (item, action) in enumerate(history)
    ]
    rows += [
        weights["item_embedding.weight"][item] + weights["position_embedding.weight"][len(history)]
        for item in candidates
    ]
    x = np.array(rows)
    for layer in range(layers):

        def of(name: str, layer: int = layer) -> Vector:
            return weights[f"layers.{layer}.{name}"]

        normed_rows = [norm(row, of("input_norm.weight"), of("input_norm.bias"), eps) for row in x]
        mixed = np.array(
            [[silu(value) for value in linear(row, of("uvqk.weight"), of("uvqk.bias"))] for row in normed_rows]
        )
        u, v, q, k = np.split(mixed, 4, axis=1)
        after = []
        for row in range(len(x)):
            seen = list(range(row + 1)) if row < len(history) else [*range(len(history)), row]
            gated = attend(row, seen, q, k, v, heads) / n * u[row]
            normed = norm(gated, of("output_norm.weight"), of("output_norm.bias"), eps)
            after.append(x[row] + linear(normed, of("output.weight"), of("output.bias")))
        x = np.array(after)
    return x


def head(weights: Weights, output: Vector) -> Vector:
    hidden = linear(output, weights["head.0.weight"], weights["head.0.bias"])
    return linear(np.array([silu(value) for value in hidden]), weights["head.2.weight"], weights["head.2.bias"])
