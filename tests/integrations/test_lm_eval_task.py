"""lm-eval's tasks in the meter: a task and a model whose scores are known by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from risegrad.integrations.forgetting_meter import ForgettingMeter
from risegrad.integrations.kept_scores import KeptScore
from risegrad.integrations.lm_eval_task import LmEvalTask
from riselab.records.record import read_record

pytest.importorskip("lm_eval")
transformers = pytest.importorskip("transformers")
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments  # noqa: E402
from transformers.modeling_outputs import CausalLMOutput  # noqa: E402

from continual.chat.tiny_chat import tokenizer  # noqa: E402
from risegrad.integrations.transformers import ForgettingCallback  # noqa: E402

TOKENS = tokenizer()
SIZE = len(TOKENS)
FOLLOWS = {"a": "b", "b": "c", "c": "e", "d": "e"}
CHANGED = FOLLOWS | {"a": "c"}

# The right option is the first. Of the last question "ee" is likelier than "a" per character only,
# as its second letter is an unlikely one.
CHOICES = [
    {"question": "a", "options": ["b", "c"], "answer": 0},
    {"question": "b", "options": ["c", "d"], "answer": 0},
    {"question": "c", "options": ["d", "e"], "answer": 0},
    {"question": "d", "options": ["ee", "a"], "answer": 0},
]
WRITTEN = [{"question": "a", "answer": "bce"}, {"question": "b", "answer": "ce"}]
LETTERS = """
task: letters
tag: both
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/letters.jsonl}, cache_dir: FOLDER/cache}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{options}}"
doc_to_target: answer
target_delimiter: ""
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
  - {metric: brier_score, aggregation: brier_score, higher_is_better: false}
"""
SPELLED = """
task: spelled
tag: both
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/spelled.jsonl}, cache_dir: FOLDER/cache}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: answer
generation_kwargs: {until: ["\\n"], max_gen_toks: 8, do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""


class Letters(LlamaForCausalLM):
    """Each letter says how likely every next one is: 0.9 for one of them, the rest alike."""

    def __init__(self, follows: dict[str, str], most: float = 0.9) -> None:
        super().__init__(LlamaConfig(
            vocab_size=SIZE, hidden_size=4, intermediate_size=4, num_hidden_layers=1,
            num_attention_heads=1, eos_token_id=TOKENS.eos_token_id, pad_token_id=0,
        ))  # fmt: skip
        chances = torch.full((SIZE, SIZE), (1 - most) / (SIZE - 1))
        for token in range(SIZE):
            follower = follows.get(TOKENS.convert_ids_to_tokens(token))
            chances[token, TOKENS.eos_token_id if follower is None else letter(follower)] = most
        self.table = nn.Parameter(chances.log())

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **_: Any) -> Any:
        logits = self.table[input_ids]
        if labels is None:
            return CausalLMOutput(logits=logits)
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)


def letter(text: str) -> int:
    found: int = TOKENS.convert_tokens_to_ids(text)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    made: Path = tmp_path_factory.mktemp("tasks")
    for name, rows, text in (("letters", CHOICES, LETTERS), ("spelled", WRITTEN, SPELLED)):
        (made / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (made / f"{name}.yaml").write_text(text.replace("FOLDER", str(made)))
    return made


def percent(task: LmEvalTask, follows: dict[str, str]) -> float:
    found = task.score(Letters(follows))
    assert found.loss is None
    return found.percent


def test_a_case_that_is_known_by_hand(folder: Path) -> None:
    """Before, the third question is wrong; after the change, the first one, too."""
    task = LmEvalTask("letters", TOKENS, folder=folder)
    assert [percent(task, FOLLOWS), percent(task, CHANGED)] == [75, 50]
    assert task.examples == 4
    plain = LmEvalTask("letters", TOKENS, metric="acc", folder=folder, batch_size=3)
    assert [percent(plain, FOLLOWS), percent(plain, CHANGED)] == [50, 25]
    two = LmEvalTask("letters", TOKENS, metric="acc,none", limit=2, folder=folder)
    assert [percent(two, FOLLOWS), percent(two, CHANGED)] == [100, 50]
    assert two.examples == 2


def test_written_answers(folder: Path) -> None:
    """After the change "a" goes on with "ce"."""
    task = LmEvalTask("spelled", TOKENS, folder=folder)
    assert [percent(task, FOLLOWS), percent(task, CHANGED)] == [100, 50]


def test_measuring_leaves_everything_as_it_is(folder: Path) -> None:
    bare = tokenizer()
    bare.pad_token = None
    model, task = Letters(FOLLOWS).train(), LmEvalTask("letters", bare, folder=folder)
    model.lm_head.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    asked = {name: p.requires_grad for name, p in model.named_parameters()}
    state = torch.get_rng_state()
    inside = nn.ModuleDict({"model": model})  # such as a LightningModule
    assert task.score(inside) == task.score(model) == KeptScore(None, 75.0)
    assert torch.equal(state, torch.get_rng_state())
    assert all(module.training for module in model.modules())
    assert {name: p.requires_grad for name, p in model.named_parameters()} == asked
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert torch.is_grad_enabled()
    assert bare.pad_token is None
    assert "tie_weights" not in vars(model)


def test_a_model_that_diverged_gets_nothing_right(folder: Path) -> None:
    model = Letters(FOLLOWS)
    model.table.data.fill_(torch.nan)
    assert LmEvalTask("letters", TOKENS, folder=folder).score(model).percent == 0


def test_in_a_trainer(folder: Path, tmp_path: Path) -> None:
    """It learns that "c" follows "a"; the log, the record and a resumed run have the cost."""

    def trained(resume: str | None = None) -> tuple[Any, ForgettingMeter]:
        pair = torch.tensor([letter("a"), letter("c")])
        rows = [{"input_ids": pair, "labels": pair}] * 4
        kept = {"letters": LmEvalTask("letters", TOKENS, folder=folder)}
        callback = ForgettingCallback(kept, new={"pair": rows}, every=2)
        arguments = TrainingArguments(
            str(tmp_path), optim="sgd", learning_rate=10.0, lr_scheduler_type="constant",
            max_grad_norm=0.0, max_steps=2, per_device_train_batch_size=2, use_cpu=True,
            save_steps=1, report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        model = Letters(FOLLOWS)
        training = Trainer(model, arguments, train_dataset=rows, callbacks=[callback])
        training.train(resume_from_checkpoint=resume)
        assert callback.meter is not None
        return training.state, callback.meter

    state, meter = trained()
    logged = {
        entry["step"]: entry for entry in state.log_history if "eval_kept_letters_score" in entry
    }
    assert [logged[step]["eval_kept_letters_score"] for step in (0, 2)] == [75, 50]
    assert [logged[step]["eval_new_pair_score"] for step in (0, 2)] == [0, 100]
    assert "eval_kept_letters_loss" not in logged[2]
    assert str(meter.last).startswith("step 2: letters 50.0 %, pair 100.0 % (loss ")
    record = read_record(tmp_path / "record.json")
    assert [(task.name, task.test) for task in record.result.tasks] == [("letters", 4), ("pair", 4)]
    assert record.result.metrics["forgetting"] == 25
    assert set(record.result.scores) == {"score"}
    start, end = json.loads((tmp_path / "risegrad.json").read_text())["forgetting"]
    assert [start["scores"]["letters"], end["scores"]["letters"]] == [
        {"percent": 75.0},
        {"percent": 50.0},
    ]
    again = trained(str(tmp_path / "checkpoint-1"))[1]
    assert again.start.scores == meter.start.scores
    assert again.last.scores["letters"] == meter.last.scores["letters"]


def test_what_cannot_be_measured(folder: Path) -> None:
    def task(name: str, **more: Any) -> LmEvalTask:
        return LmEvalTask(name, TOKENS, folder=folder, **more)

    with pytest.raises(ValueError, match=r"name must be a task of .* \(letters\), got 'leters'"):
        task("leters")
    with pytest.raises(ValueError, match=r"'both' stands for several tasks .*letters.*spelled"):
        task("both")
    with pytest.raises(ValueError, match=r"limit must be an integer >= 1, got 0"):
        task("letters", limit=0)
    known = r"one of acc,none, acc_norm,none, brier_score,none for lm-eval's 'letters', got 'f1'"
    with pytest.raises(ValueError, match=known):
        task("letters", metric="f1").score(Letters(FOLLOWS))
    with pytest.raises(ValueError, match=r"more of it better; 'brier_score,none' of lm-eval's"):
        task("letters", metric="brier_score").score(Letters(FOLLOWS))
    with pytest.raises(TypeError, match=r"a model of transformers that writes text, got Linear"):
        task("letters").score(nn.Linear(2, 2))
