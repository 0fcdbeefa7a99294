"""What ``rise foresight`` found: sessions of runs, single blocks, and how far predictions held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from risegrad.common.settings import read
from risegrad.foresight.diagnosis_report import plain
from risegrad.foresight.followed_run import FollowedSession
from risegrad.foresight.foresight_agreement import (
    BlockBenefit,
    HorizonAgreement,
    ScoreAgreement,
    horizon_agreements,
    score_agreements,
)


@dataclass(frozen=True)
class ForesightResult:
    """Predictions made before sessions of an experiment's runs, and what came true."""

    experiment: str
    title: str
    settings: dict[str, Any]
    sessions: tuple[FollowedSession, ...]
    blocks: tuple[BlockBenefit, ...]
    seconds: float
    environment: dict[str, Any] = field(default_factory=dict)
    """the commit and the machine's software"""

    @property
    def methods(self) -> list[str]:
        """In the order of the experiment."""
        return list(dict.fromkeys(session.method for session in self.sessions))

    @cached_property
    def horizons(self) -> list[HorizonAgreement]:
        """By number of steps ahead, the session's end last."""
        return horizon_agreements(self.sessions)

    @cached_property
    def scores(self) -> list[ScoreAgreement]:
        """Block scores against the benefit of shaping single blocks."""
        return score_agreements(self.blocks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the agreements beside what they follow from."""
        content: dict[str, Any] = plain(asdict(self))
        return content | {
            "horizons": plain([asdict(row) for row in self.horizons]),
            "scores": plain([asdict(row) for row in self.scores]),
        }

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> ForesightResult:
        """What ``to_dict`` gave, from a file."""
        derived = ("horizons", "scores")
        return read(ForesightResult, {k: v for k, v in content.items() if k not in derived})
