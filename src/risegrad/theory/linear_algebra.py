"""The few products of batched matrices and vectors that every formula here is made of."""

import torch
from torch import Tensor


def matvec(H: Tensor, v: Tensor) -> Tensor:
    """``H v`` over leading dimensions.

    >>> matvec(torch.diag(torch.tensor([1.0, 2.0])), torch.ones(3, 2)).tolist()
    [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]
    """
    # One matrix product for a batch of vectors under one matrix, instead of one per vector.
    return v @ H.mT if H.dim() == 2 else (H @ v[..., None]).squeeze(-1)


def dot(v: Tensor, w: Tensor) -> Tensor:
    """``v . w`` over leading dimensions."""
    return (v * w).sum(-1)


def length(v: Tensor) -> Tensor:
    """``|v|`` over leading dimensions."""
    return dot(v, v).sqrt()


def quadratic(H: Tensor, v: Tensor) -> Tensor:
    """``v' H v`` over leading dimensions."""
    return dot(v, matvec(H, v))


def trace(H: Tensor) -> Tensor:
    """``tr H`` over leading dimensions."""
    return H.diagonal(dim1=-2, dim2=-1).sum(-1)


def outer(v: Tensor) -> Tensor:
    """``v v'`` over leading dimensions."""
    return v[..., :, None] * v[..., None, :]


def scaled_identity(scale: Tensor, d: int) -> Tensor:
    """``scale I`` over leading dimensions."""
    return scale[..., None, None] * torch.eye(d, dtype=scale.dtype, device=scale.device)


def operator_norm(H: Tensor) -> Tensor:
    """The largest singular value over leading dimensions."""
    norm: Tensor = torch.linalg.matrix_norm(H, ord=2)
    return norm


def top_eigenvalue(H: Tensor) -> Tensor:
    """The largest eigenvalue of a symmetric matrix over leading dimensions."""
    values: Tensor = torch.linalg.eigvalsh(H)
    return values[..., -1]


def inverse_root(H: Tensor) -> Tensor:
    """``H^(-1/2)`` of a positive definite matrix."""
    values, vectors = torch.linalg.eigh(H)
    root: Tensor = (vectors * values[..., None, :] ** -0.5) @ vectors.mT
    return root
