"""Whether answers do what they were told, by IFEval's own checkers, which lm-eval brings.

IFEval's prompts contain instructions that a program can check: at least 50 words, a title, all in
small letters. An instruction that the answer "Yes" obeys (no commas) does not count: a model that
has come to answer everything in two words would obey more of those.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from risegrad.common.imports import need
from riselab.continual.chat.texts import ChatTexts, greedy

UNCHECKED = ("length_constraints:number_sentences", "change_case:capital_word_frequency")
"""These two would download data when they run."""
BATCH = 100


def checkable(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with instructions that can be checked without a network."""
    known = [row for row in rows if row.get("instruction_id_list")]
    return [row for row in known if not {*UNCHECKED} & {*row["instruction_id_list"]}]


def followed(
    model: Any, texts: ChatTexts, rows: Sequence[dict[str, Any]], most: int
) -> dict[str, float]:
    """Percent of the instructions that the model's greedy answers obey, and their mean length."""
    if not rows:
        return {}
    judge = _judge()
    ordered = sorted(rows, key=lambda row: len(row["prompt"]))
    chats = greedy(model, texts, [row["prompt"] for row in ordered], most, batch=BATCH)
    obeyed: list[bool] = []
    for row, chat in zip(ordered, chats, strict=True):
        asked = SimpleNamespace(**row)
        said = texts.tokenizer.decode(chat.tokens[-chat.answer :], skip_special_tokens=True)
        easy = judge(asked, "Yes").follow_instruction_list
        done = judge(asked, said).follow_instruction_list
        obeyed += [did for did, cheap in zip(done, easy, strict=True) if not cheap]
    found = {"answer_tokens": sum(chat.answer for chat in chats) / len(chats)}
    return found | ({"followed": 100 * sum(obeyed) / len(obeyed)} if obeyed else {})


def _judge() -> Any:
    """lm-eval's function, imported without the download that its import would begin."""
    nltk = need("nltk", "ifeval", "IFEval's checkers")
    need("langdetect", "ifeval", "IFEval's checkers").DetectorFactory.seed = 0  # else it draws
    download, nltk.download = nltk.download, lambda *_, **__: False
    try:
        checkers = need("lm_eval.tasks.ifeval.utils", "ifeval", "IFEval's checkers")
        return checkers.test_instruction_following_strict
    finally:
        nltk.download = download
