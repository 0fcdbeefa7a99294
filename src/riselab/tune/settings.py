"""What a person says to ``rise tune``, and the questions that show what a model still knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from riselab.common.settings import APART, Checked, Count, NonNegative, Positive

DREAMS = "dreams"
"""In place of a file of chats to keep: the model writes them itself."""
TASKS = ("support",)
"""Files of chats that come with the package."""
PLAIN = "-plain"
"""What is added to the folder's name for plain training, so that both stand side by side."""
SHOWN = 10
EVERYDAY = (
    "What is the capital of Portugal?",
    "How do I boil an egg so that the yolk stays soft?",
    "Explain in two sentences why the sky is blue.",
    "Write a short birthday greeting for my grandmother.",
    "What is 12 times 8?",
    "Give me three tips for falling asleep faster.",
    "Who wrote Romeo and Juliet?",
    "What should I pack for a weekend at the sea?",
    "Translate into French: Good morning, how are you?",
    "Tell me a short story about a cat and a lighthouse.",
    "Which planet is closest to the sun?",
    "How can I remove a coffee stain from a shirt?",
    "What is the difference between weather and climate?",
    "Suggest a name for a small bakery.",
    "How many days are there in a leap year?",
    "Write one sentence that thanks a colleague for her help.",
    "What does a librarian do?",
    "Name four vegetables that grow under the ground.",
    "Why do leaves change their color in autumn?",
    "How do I politely decline an invitation?",
    "What is the past tense of the verb to go?",
    "Describe a rainy day in a big city.",
    "What can I cook with rice, eggs and peas?",
    "Give an example of a simple Python function.",
)
"""Nothing is trained on these: the drift is measured on all, and a page shows the first ten."""


@dataclass(frozen=True)
class TuneSettings(Checked):
    """A model, what it learns and keeps, and for how long."""

    model: str
    """A folder in the form of transformers, or a name on the hub; of a causal chat model."""
    new: str
    """A file of chats, or the name of a task that comes with the package."""
    out: str = field(default="adapter", metadata=APART)
    """Folder of the result; plain training adds -plain to its name. The same command continues
    there where it stopped."""
    keep: str = DREAMS
    """A file of chats to keep, or dreams: chats that the model writes itself."""
    budget: NonNegative = 0.0
    """Nats per token that other answers may move, such as 0.05; 0: no budget."""
    full: bool = False
    """Train all weights, not a LoRA."""
    plain: bool = False
    """Keep nothing, for comparison."""
    minutes: Positive = field(default=20.0, metadata=APART)
    """Time for everything; the number of steps follows from it."""
    steps: Count = 0
    """Exactly so many steps, however long they take; 0: as many as fit into the time."""
    seed: int = 0
    """Seed of the adapter, the order of examples and what the model writes."""
    save_seconds: NonNegative = field(default=30.0, metadata=APART)
    """Shortest time between two checkpoints."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("model", "new", "out"):
            if not getattr(self, name):
                raise ValueError(f"{name} must be a text, got none")
        for name, default in {"keep": DREAMS, "budget": 0.0}.items():
            if self.plain and getattr(self, name) != default:
                raise ValueError(
                    f"{name} has no effect with plain, which keeps nothing: omit one of them, got "
                    f"{getattr(self, name)!r}"
                )


def model_place(model: str) -> dict[str, Any]:
    """A transformers model as the chat settings name it: a folder's ``weights``, or a ``name``."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return {"name": model}
    if not (folder / "config.json").is_file():
        raise ValueError(
            "model must be a folder in the form of transformers or a name on the hub, got "
            f"{model!r} (there is no config.json)"
        )
    return {"weights": str(folder)}
