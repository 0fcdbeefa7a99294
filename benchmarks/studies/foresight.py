"""python -m benchmarks.studies.foresight EXPERIMENT [--only ROW] [--seeds 0,1] [--set KEY=VALUE]

Does the first step foretell what a session does, and do the paper's block scores tell where
shaping helps? Runs are learned as `rise run` does. Before each session a row's first step is taken
a few times and undone; it goes on in a straight line: the mean of the steps adds up, their scatter
adds up as independent draws do, and the historical loss is quadratic. Then single blocks are shaped
alone. Results: experiments/records/foresight; tables of them: benchmarks/foresight_tables.py.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from risegrad.common.files import write_json
from risegrad.core.coverage import plain_name
from risegrad.core.draws import mix, numbered_generator
from risegrad.core.shapers import Rise, shape
from risegrad.curvature.diagnosis.diagnose import diagnose_operator
from risegrad.curvature.diagnosis.report import BlockReport, plain
from risegrad.curvature.objective import Objective
from risegrad.curvature.space import Block, Space
from riselab.commands.arguments import add_experiment, overrides
from riselab.common.settings import as_plain
from riselab.continual.devices import Devices
from riselab.continual.learning import made_additions
from riselab.continual.runs import make_host, read_config
from riselab.experiments.cells import RunCell, choose, expand
from riselab.experiments.file import load_experiment
from riselab.foresight.local_updates import Bench, step_sizes_for
from riselab.foresight.local_validation import rank_correlation
from riselab.foresight.reached_point import ReachedPoint, state_of
from riselab.foresight.session import SessionProblem, measurement_of, rise_of
from riselab.foresight.settings import DiagnosisSettings, ValidationSettings, read_sections
from riselab.records.record import provenance

END = 0
"""Stands for the end of the session among the numbers of steps."""
DAMAGE, STEPS = 0.05, (1, 8)
"""Of FO's whole walk with single blocks, in parts of the historical loss; and its lengths."""
RESAMPLES, FEWEST = 1000, 8
"""Fewer pairs are in order by chance too often, and drawn anew they are in order again."""


@dataclass(frozen=True)
class Moment:
    """So many steps into a session: the change of the historical loss, foretold and true."""

    steps: int
    predicted: float
    damage: float
    true: float


@dataclass(frozen=True)
class FollowedSession:
    """One session of one run."""

    method: str
    label: str
    seed: int
    task: int
    rate: float
    length: int
    historical_loss: float
    moments: tuple[Moment, ...]
    forgetting: float
    """points of accuracy that the earlier tasks lost in this session, on average"""
    learned: float


@dataclass(frozen=True)
class BlockBenefit:
    """One block shaped alone: its scores beforehand, and what shaping it then did."""

    name: str
    d: int
    S: float
    D: float
    R: float | None
    C: float | None
    steps: int
    benefit: float
    """true historical loss after FO less after shaping this block alone, at equal length"""
    beyond: float
    """the same against the block shortened to the same mean progress: no mere smaller step"""
    error: float


def shaped_blocks(settings: Any, others: Sequence[Any]) -> Rise:
    """The blocks of the run's own rule, or of the first that shapes, if it does not."""
    shaping = (one for one in (settings, *others) if one.rule.name not in ("", "fo", "zo"))
    return rise_of(next(shaping, settings))


def values_of(training: Any, space: Space) -> Tensor:
    named = {plain_name(n): p for n, p in training.session.module.named_parameters()}
    return space.flat([named[name] for name in space.names])


def first_steps(point: ReachedPoint, space: Space, draws: int, seed: int) -> Tensor:
    """The displacements (d, K) of the first step, on other batches each time."""
    found = []
    for draw in range(draws):
        with torch.random.fork_rng(devices=range(torch.accelerator.device_count())):
            training = point.training(seed=mix(seed, 5, draw) % 2**31)
            before = values_of(training, space)
            next(iter(training.steps(0)))
            found.append(values_of(training, space) - before)
    return torch.stack(found, 1)


def follow(cell: RunCell, how: DiagnosisSettings, horizons: Sequence[int]) -> Iterator[Any]:
    """Learn the whole stream as the run does, and look ahead before every session but the first."""
    settings = read_config(cell.settings)
    devices = Devices(settings.loop.precision, settings.loop.device)
    host: Any = make_host(settings, devices)
    additions = made_additions(settings)
    point = ReachedPoint(settings, host, devices, additions, 0, state_of(host, additions))
    scores: list[Any] = []
    for task in range(point.tasks):
        point.task = task
        look = Look(point, how) if task else None
        training = point.training()
        taken = 0
        for epoch in range(training.session.epochs):
            for _ in training.steps(epoch):
                taken += 1
                if look and taken in horizons:
                    look.at(training, taken)
                    training.session.module.train()
        if look:
            look.at(training, END)
        training.session.module.eval()
        for addition in additions:
            addition.end(training)
        host.finish(task)
        before, scores = scores, host.score(range(task + 1))[host.main_score]
        point.state = state_of(host, additions)
        if look:
            lost = [b.percent - a.percent for b, a in zip(before, scores, strict=False)]
            yield FollowedSession(
                cell.row.method or cell.row.label, cell.row.label, settings.seed, task + 1,
                look.problem.rate, taken, look.loss, look.moments(taken),
                sum(lost) / len(lost), scores[task].percent,
            )  # fmt: skip


class Look:
    """One session: its prediction, and looks at the historical loss on the way."""

    def __init__(self, point: ReachedPoint, how: DiagnosisSettings) -> None:
        shaper = rise_of(point.settings)
        space = SessionProblem.of(point, shaper, how).space
        steps = first_steps(point, space, how.draws, how.seed).double()
        # The steps were taken in the session's place: it is opened again.
        self.problem = problem = SessionProblem.of(point, shaper, how)
        kind = measurement_of(how)
        operator = problem.operator(kind.curvature, kind.budget.columns, how.seed)
        self._gram = (steps.mT @ (operator @ steps.to(space.dtype)).double()).cpu()
        self._linear = (problem.past_gradient.double() @ steps).mean().item()
        self.loss, self._true = problem.kept.value(), dict[int, float]()

    def at(self, training: Any, steps: int) -> None:
        """The true change of the historical loss by now."""
        reader = replace(self.problem.reader, session=training.session)
        module, kept = training.session.module, self.problem.kept
        with torch.no_grad():
            now = Objective(module, kept.batches, None, reader.answers).value()
        self._true[steps] = now - self.loss

    def moments(self, length: int) -> tuple[Moment, ...]:
        """In a straight line, at the rates of the schedule."""
        b, found = self.problem.training.session.groups[0].budget, []
        per_epoch, count = max(1, length // max(1, b.epochs)), len(self._gram)
        own = self._gram.diagonal().mean().item()
        mean = own if count < 2 else (self._gram.sum().item() - count * own) / (count**2 - count)
        for steps, true in self._true.items():
            epochs = [min(step // per_epoch, b.epochs - 1) for step in range(steps or length)]
            rates = [b.lr_at(epoch) / b.lr_at(0) for epoch in epochs]
            whole, squares = sum(rates), sum(rate**2 for rate in rates)
            damage = (whole**2 * mean + squares * (own - mean)) / 2
            found.append(Moment(steps, whole * self._linear + damage, damage, true))
        return tuple(found)


def block_benefits(
    problem: SessionProblem, how: DiagnosisSettings, validation: ValidationSettings
) -> Iterator[BlockBenefit]:
    """Scores of some blocks, spread over S, and the benefit of shaping each of them alone."""
    measurement = measurement_of(replace(how, dampings=()))
    plain_operator = problem.operator(measurement.curvature, measurement.budget.columns, how.seed)
    operator, g, h = problem.in_steps(plain_operator)
    scores = diagnose_operator(operator, g, h, measurement=measurement).blocks
    if not scores:
        raise SystemExit("there are too many blocks for scores: set validation.whole_tensors=true")
    rates = None if problem.scale is None else problem.space.spread(problem.scale.square())
    bench = Bench.of(problem.kept, problem.new, problem.space, problem.parameters,
                     [measurement.curvature], how.seed, rates=rates)  # fmt: skip
    (eta,) = step_sizes_for(bench, problem.gradient, [DAMAGE])
    order = sorted(range(len(scores)), key=lambda number: scores[number].S.value)
    count = min(validation.blocks, len(order))
    chosen = {order[round(k * (len(order) - 1) / max(1, count - 1))] for k in range(count)}
    for number in sorted(chosen, key=order.index):
        seeds = [mix(how.seed, 11, number, draw) for draw in range(validation.block_draws)]
        for steps in STEPS:
            yield _benefit(bench, number, scores[number], eta / max(STEPS), steps, seeds)


def _benefit(
    bench: Bench, number: int, report: BlockReport, eta: float, steps: int, seeds: Sequence[int]
) -> BlockBenefit:
    block = bench.space.blocks[number]
    fo, shorter = _after(bench, eta, steps), _after(bench, eta, steps, block)
    drawn = [_after(bench, eta, steps, block, own) for own in seeds]
    spread = torch.tensor(drawn, dtype=torch.float64).std().item() if len(drawn) > 1 else 0.0
    middle = None if report.R is None else (report.R.lower + report.R.upper) / 2
    return BlockBenefit(
        report.name, report.d, report.S.value, report.lambda_avg.value, middle,
        None if report.C is None else report.C.value, steps,
        fo - fmean(drawn), shorter - fmean(drawn), spread / len(drawn) ** 0.5,
    )  # fmt: skip


def _after(
    bench: Bench, eta: float, steps: int, block: Block | None = None, seed: int | None = None
) -> float:
    """The historical loss after some steps of descent, with one block shaped or shortened."""
    total = torch.zeros(bench.space.d, dtype=bench.space.dtype, device=bench.space.device)
    for step in range(steps):
        with bench.moved(total):
            g = bench.gradient()
        if block is not None:
            part = block.mean_factor * g[block.at]
            if seed is not None:
                draws = numbered_generator(mix(seed, step), 0, g.device)
                part = shape(g[block.at], block.q, draws)
            g = torch.cat([g[: block.start], part, g[block.stop :]])
        total = total - eta * bench.direction("FO", g, 0)
    with bench.moved(total):
        return bench.kept.value()


def ranked(a: Sequence[float], b: Sequence[float]) -> dict[str, Any]:
    """Spearman's correlation and a 95 % interval from resampled pairs."""
    value = rank_correlation(a, b) if len(a) > 2 else None
    found = {"value": value, "low": None, "high": None, "count": len(a)}
    if value is None or len(a) < FEWEST:
        return found
    draws, known = torch.Generator().manual_seed(0), []
    for chosen in torch.randint(len(a), (RESAMPLES, len(a)), generator=draws).tolist():
        one = rank_correlation([a[i] for i in chosen], [b[i] for i in chosen])
        known += [] if one is None else [one]
    if len(known) < RESAMPLES // 2:
        return found
    known.sort()
    low, high = (known[int(part * (len(known) - 1))] for part in (0.025, 0.975))
    return found | {"low": low, "high": high}


def horizons_of(sessions: Sequence[FollowedSession]) -> Iterator[dict[str, Any]]:
    """All sessions, so many steps ahead; the session's end last."""
    for steps in [*sorted({m.steps for s in sessions for m in s.moments} - {END}), END]:
        found = [(s, m) for s in sessions for m in s.moments if m.steps == steps]
        predicted = [m.predicted for _, m in found]
        right = [
            (a.predicted < b.predicted) == (a.true < b.true)
            for (one, a), (two, b) in combinations(found, 2)
            if (one.seed, one.task) == (two.seed, two.task) and one.method != two.method
        ]
        ratios = [m.predicted / m.true for _, m in found if m.true]
        yield {
            "steps": steps,
            "correlation": ranked(predicted, [m.true for _, m in found]),
            "forgetting": ranked(predicted, [s.forgetting for s, _ in found]),
            "ordered": sum(right) / len(right) if right else None,
            "ratio": median(ratios) if ratios else None,
        }


def scores_of(blocks: Sequence[BlockBenefit]) -> Iterator[dict[str, Any]]:
    """The paper's open question: does a score tell which blocks are worth shaping?"""
    for steps in sorted({block.steps for block in blocks}):
        for name in "SDRC":
            rows = [b for b in blocks if b.steps == steps and getattr(b, name) is not None]
            score = [getattr(b, name) for b in rows]
            yield {
                "score": name,
                "steps": steps,
                "benefit": ranked(score, [b.benefit for b in rows]),
                "beyond": ranked(score, [b.beyond for b in rows]),
            }


def study(args: argparse.Namespace, tell: Callable[[str], None] = print) -> dict[str, Any]:
    """Follow every run, then shape single blocks at the second session of the first run."""
    experiment = load_experiment(args.experiment, overrides(args))
    sections = {"diagnosis": experiment.diagnosis, "validation": experiment.validation}
    diagnosis, validation = read_sections(sections)
    cells = sorted(choose(expand(experiment, read_config), args.only), key=lambda c: c.seed)
    began, sessions = time.perf_counter(), []
    for number, cell in enumerate(cells, 1):
        tell(f"{number}/{len(cells)}: {cell.title}")
        sessions += list(follow(cell, diagnosis, validation.horizons))
    first, *others = (read_config(cell.settings) for cell in cells)
    point = ReachedPoint.reach(first, 2, None, args.out / experiment.name / "foresight" / "point")
    whole = validation.whole_tensors
    shaper = Rise(q=first.rule.q) if whole else shaped_blocks(first, others)
    blocks = list(
        block_benefits(SessionProblem.of(point, shaper, diagnosis), diagnosis, validation)
    )
    found: dict[str, Any] = plain({
        "experiment": experiment.name,
        "title": experiment.title,
        "settings": {"diagnosis": as_plain(diagnosis), "validation": as_plain(validation)},
        "sessions": [asdict(session) for session in sessions],
        "blocks": [asdict(block) for block in blocks],
        "seconds": round(time.perf_counter() - began, 1),
        "environment": provenance(),
        "horizons": list(horizons_of(sessions)),
        "scores": list(scores_of(blocks)),
    })  # fmt: skip
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_experiment(parser)
    args = parser.parse_args(words)
    found = study(args)
    path = args.out / found["experiment"] / "foresight" / "foresight.json"
    write_json(path, found)
    print(json.dumps({name: found[name] for name in ("horizons", "scores")}, indent=1))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
