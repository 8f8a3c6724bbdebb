"""A second opinion: cvc5 answers a sample of the questions again that Z3 has answered."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spec.smt import questions

SECONDS = 20
"""How long cvc5 may take over one question."""


class NoSecondSolver(Exception):
    """cvc5 is not installed; the message is one line that says how to mend it."""


@dataclass
class Opinion:
    """What cvc5 said. ``disagree``: the scripts on which it says the opposite."""

    agree: int = 0
    unknown: int = 0
    disagree: list[str] = field(default_factory=list)

    @property
    def asked(self) -> int:
        """How many questions there were."""
        return self.agree + self.unknown + len(self.disagree)


def second_solver() -> Any:
    """The module of cvc5. Raises NoSecondSolver."""
    try:
        return importlib.import_module("cvc5")
    except ImportError:
        raise NoSecondSolver("--cvc5 needs cvc5; install it with: pip install 'kvoracle[cvc5]'") from None


def second_opinion(folder: Path, number: int) -> Opinion:
    """Ask cvc5 ``number`` questions out of a folder, spread over all that are there. Raises NoSecondSolver."""
    cvc5 = second_solver()
    every = list(questions(folder))
    chosen = [every[at * len(every) // number] for at in range(number)] if len(every) > number else every
    opinion = Opinion()
    for path, script, recorded in chosen:
        said = answer(cvc5, script)
        if said == recorded:
            opinion.agree += 1
        elif said in ("sat", "unsat"):
            opinion.disagree.append(str(path))
        else:
            opinion.unknown += 1
    return opinion


def answer(cvc5: Any, script: str) -> str:
    """What cvc5 says to a script with one question."""
    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("tlimit-per", str(SECONDS * 1000))
    parser = cvc5.InputParser(solver)
    # cvc5 refuses to answer against a status that it is told.
    asked = re.sub(r"\(set-info :status \w+\)", "", script)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, asked, "question")
    said = ""
    while not (command := parser.nextCommand()).isNull():
        said += command.invoke(solver, parser.getSymbolManager())
    return said.strip()
