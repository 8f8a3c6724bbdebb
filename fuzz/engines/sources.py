"""Where an engine's Python sources lie: for reading them, without an environment to run them in."""

from __future__ import annotations

from pathlib import Path

from fuzz.engines.cache import ProvisionError, Say
from fuzz.engines.names import EngineNameError, parse_engine_name
from fuzz.engines.provision import announce, ask_python, missing_parts, provision_sources, release_folder

_QUESTION = (
    "import importlib.util; found = importlib.util.find_spec('vllm');"
    " print(found.submodule_search_locations[0] if found and found.submodule_search_locations else '')"
)
"""Asks where a package lies, which does not import it."""


def source_tree(engine_name: str, *, say: Say = print) -> Path:
    """The folder that holds the ``vllm`` package of the engine that a user calls ``engine_name``.

    The sources of a release are downloaded where they are missing, without torch or any dependency; a
    checkout is its own folder; an interpreter is asked. ``say`` gets one line at a time.

    Raises EngineNameError for a name that means no vLLM build, ProvisionError if the sources cannot be had.
    """
    name = parse_engine_name(engine_name)
    if name.kind == "release":
        missing = [part for part in missing_parts(name.target) if part.folder == release_folder(name.target)]
        if missing:
            announce(missing, say)
        return provision_sources(name.target, say=say)
    if name.kind == "checkout":
        return Path(name.target)
    if name.kind == "interpreter":
        return _installed_in(name.target)
    raise EngineNameError(f"{name.typed} is no vLLM build, so it has no sources of vLLM")


def _installed_in(python: str) -> Path:
    answer = ask_python(python, _QUESTION)
    lines = answer.stdout.strip().splitlines()
    package = Path(lines[-1]) if lines else None
    if answer.returncode or package is None or not (package / "__init__.py").is_file():
        raise ProvisionError(f"{python} has no vLLM; install it there with: {python} -m pip install vllm")
    return package.parent
