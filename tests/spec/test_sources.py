"""An engine's sources are found where they lie, or fetched without an environment to run them in."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from fuzz.engines.cache import ProvisionError
from fuzz.engines.names import EngineNameError
from fuzz.engines.sources import source_tree


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "site" / "vllm"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    return folder


def interpreter(path: Path, answer: str) -> Path:
    """A program that answers whatever it is asked."""
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


def test_a_release_needs_its_wheel_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("KVORACLE_CACHE", str(tmp_path / "cache"))
    with zipfile.ZipFile(tmp_path / "vllm-0.31.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("vllm/__init__.py", "")
        wheel.writestr("vllm-0.31.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.0\n")
        wheel.writestr("vllm-0.31.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("vllm-0.31.0.dist-info/RECORD", "")
    said: list[str] = []
    folder = source_tree("vllm==0.31.0", say=said.append)
    assert (folder / "vllm" / "__init__.py").is_file()
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == ["vllm-0.31.0"]
    assert "MB to download" in said[1]
    said.clear()
    assert source_tree("vllm==0.31.0", say=said.append) == folder
    assert said == []


def test_a_checkout_is_its_own_folder(package: Path) -> None:
    assert source_tree(str(package.parent)) == package.parent


def test_an_interpreter_is_asked(package: Path, tmp_path: Path) -> None:
    assert source_tree(f"python:{interpreter(tmp_path / 'python', str(package))}") == package.parent
    with pytest.raises(ProvisionError, match="has no vLLM"):
        source_tree(f"python:{interpreter(tmp_path / 'other', '')}")


@pytest.mark.parametrize("name", ["reference", "planted:anything"])
def test_what_is_no_build_of_vllm_has_no_sources(name: str) -> None:
    with pytest.raises(EngineNameError, match="no vLLM build"):
        source_tree(name)
