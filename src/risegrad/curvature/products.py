"""Symmetric curvature matrices that multiply vectors: of networks through curvlinops, or dense."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from risegrad.common.checks import check_choice, check_positive_int
from risegrad.common.imports import need
from risegrad.curvature.objective import Objective, measuring
from risegrad.curvature.space import Space

Kind = Literal["hessian", "ggn", "empirical-fisher", "fisher"]
KINDS: tuple[Kind, ...] = ("hessian", "ggn", "empirical-fisher", "fisher")
FISHER_LOSSES = (nn.CrossEntropyLoss, nn.MSELoss, nn.BCEWithLogitsLoss)


class Operator(ABC):
    """``operator @ v`` for a vector (d,) or columns (d, K); counts its products."""

    def __init__(self, space: Space, columns: int = 1) -> None:
        self.space = space
        self.columns = check_positive_int("columns", columns)
        self.products = 0

    @abstractmethod
    def _multiply(self, vectors: Tensor) -> Tensor:
        """(d, K) to (d, K), with K at most ``columns``."""

    def __matmul__(self, v: Tensor) -> Tensor:
        if v.ndim not in (1, 2) or v.shape[0] != self.space.d:
            raise ValueError(
                f"a vector must have shape ({self.space.d},) or ({self.space.d}, K), "
                f"got {tuple(v.shape)}"
            )
        matrix = (v if v.ndim == 2 else v[:, None]).to(self.space.device, self.space.dtype)
        parts = [self._multiply(part) for part in torch.split(matrix, self.columns, dim=1)]
        self.products += matrix.shape[1]
        product = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        # A sum is not finite if any entry is not: one pass and no mask of the vector's size.
        if not bool(product.sum().isfinite()) and not bool(product.isfinite().all()):
            raise FloatingPointError(
                "NaN or infinity in a curvature product: look at the historical batches and the "
                "weights, or use float64"
            )
        return product if v.ndim == 2 else product[:, 0]

    @property
    def parts(self) -> int:
        """How many batches the matrix is a sum over, where it is known."""
        return 1

    def bends(self, columns: Tensor, parts: Sequence[int] | None = None) -> Tensor:
        """``x'Hx`` of every column of (d, K), by batches (P, K): their sum over P is the whole's.

        It costs K products, and says how far the batches agree. With ``parts``, of these batches.
        """
        return (columns.double() * (self @ columns).double()).sum(0).cpu()[None]

    def rated(self, x: Tensor) -> Tensor:
        """A displacement in its own coordinates, which a learning rate per group may scale."""
        return x


@final
class DenseOperator(Operator):
    """A matrix given as such: quadratics with known curvature, and the reference of tests."""

    def __init__(self, matrix: Tensor, space: Space, columns: int = 1) -> None:
        super().__init__(space, columns)
        if tuple(matrix.shape) != (space.d, space.d):
            raise ValueError(
                f"matrix must have shape ({space.d}, {space.d}), got {tuple(matrix.shape)}"
            )
        self.matrix = matrix.to(space.device, space.dtype)

    def _multiply(self, vectors: Tensor) -> Tensor:
        return self.matrix @ vectors


@final
class NetworkOperator(Operator):
    """Curvature of an objective over named parameters, matrix-free.

    ``hessian`` is exact; ``ggn`` drops the curvature of the network itself and is never negative;
    ``empirical-fisher`` averages outer products of the gradients that the labels give, ``fisher``
    those of labels drawn from the model (``samples`` for each prediction, fixed by ``seed``).
    Predictions, not sequences, are the units of both Fishers.
    """

    def __init__(
        self,
        objective: Objective,
        space: Space,
        parameters: Mapping[str, Tensor],
        kind: Kind = "ggn",
        columns: int = 1,
        samples: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(space, columns)
        check_kind(kind, objective)
        self.objective, self.kind, self._parameters = objective, kind, parameters
        self._by_batch: list[NetworkOperator] = []
        options: dict[str, Any] = {"num_data": sum(objective.sizes), "check_deterministic": False}
        if kind == "fisher":
            options |= {"mc_samples": check_positive_int("samples", samples), "seed": seed}
        self._linear = _curvlinops_class(kind)(
            objective.predictor,
            objective.loss,
            [parameters[name] for name in space.names],
            objective.data(),
            batch_size_fn=lambda item: item["size"],
            **options,
        )

    def _multiply(self, vectors: Tensor) -> Tensor:
        with measuring(self.objective.model):
            product: Tensor = self._linear @ self.space.widened(vectors)
        return self.space.narrowed(product)

    @property
    def parts(self) -> int:
        """One for each batch."""
        return len(self.objective.batches)

    def bends(self, columns: Tensor, parts: Sequence[int] | None = None) -> Tensor:
        """By batches, each with its weight in the loss."""
        if self.parts == 1:
            return super().bends(columns)
        if not self._by_batch:
            self._by_batch = [self._of(number) for number in range(self.parts)]
        chosen = range(self.parts) if parts is None else parts
        found = [self.objective.weights[n] * self._by_batch[n].bends(columns)[0] for n in chosen]
        # Parts of the batches are parts of a product: whoever has the first one counts it.
        self.products += columns.shape[1] if 0 in chosen else 0
        return torch.stack(found)

    def _of(self, number: int) -> NetworkOperator:
        alone = self.objective.only(number)
        return NetworkOperator(alone, self.space, self._parameters, self.kind, self.columns)


def check_kind(kind: str, objective: Objective) -> None:
    """A known kind, and a loss that it can be made of."""
    check_choice("curvature", kind, KINDS)
    if "fisher" in kind and not isinstance(objective.loss, FISHER_LOSSES):
        names = ", ".join(loss.__name__ for loss in FISHER_LOSSES)
        raise ValueError(
            f"curvature {kind!r} needs a loss that is a likelihood, one of {names}; "
            f"got {type(objective.loss).__name__}"
        )


def _curvlinops_class(kind: Kind) -> Any:
    curvlinops = need("curvlinops", "curvature", "curvature products")
    return {
        "hessian": curvlinops.HessianLinearOperator,
        "ggn": curvlinops.GGNLinearOperator,
        "empirical-fisher": curvlinops.EFLinearOperator,
        "fisher": curvlinops.FisherMCLinearOperator,
    }[kind]
