"""The questions that are put to Z3, as SMT-LIB scripts that any solver can answer again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Export:
    """``every``: which share of the questions on paths is written, one in so many; coverage always is."""

    folder: str
    every: int = 50


@dataclass(frozen=True)
class Question:
    """``kind``: path (can this hold here?) or coverage (is there an input that no path takes?); ``answer``: Z3's."""

    kind: str
    answer: str
    script: str


class Sampler:
    """Keeps one question in so many; it is called as a solver's recorder."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.questions: list[Question] = []
        self._seen = 0

    def __call__(self, kind: str, script: Callable[[], str], answer: str) -> None:
        if kind == "coverage" or self._seen % self.every == 0:
            text = script().replace("(set-info :status unknown)", f"(set-info :status {answer})")
            self.questions.append(Question(kind, answer, text))
        self._seen += kind != "coverage"

    def write(self, folder: Path, name: str) -> None:
        """Write the questions of a task into a folder of its own: ``0001-path-unsat.smt2`` and so on."""
        inner = folder / re.sub(r"[^A-Za-z0-9.]+", "-", name)
        inner.mkdir(parents=True, exist_ok=True)
        for number, question in enumerate(self.questions, start=1):
            path = inner / f"{number:04}-{question.kind}-{question.answer}.smt2"
            path.write_text(f"; {name}: {question.kind}, Z3 says {question.answer}\n{question.script}")


def questions(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """The path, script and recorded answer of every question in a folder that was answered."""
    for path in sorted(folder.rglob("*.smt2")):
        script = path.read_text()
        status = re.search(r"\(set-info :status (sat|unsat)\)", script)
        if status is not None:
            yield path, script, status[1]
