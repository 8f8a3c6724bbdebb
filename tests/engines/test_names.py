"""What a user may type after --engine, and what they are told when it is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuzz.engines.names import (
    NEWEST_RELEASE,
    SUPPORTED_RELEASES,
    EngineNameError,
    is_newer_than_supported,
    nearest_release,
    parse_engine_name,
)


def complaint(typed: str, planted: tuple[str, ...] | None = None) -> str:
    with pytest.raises(EngineNameError) as caught:
        parse_engine_name(typed, planted=planted)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("typed", "kind", "target"),
    [
        ("vllm", "release", NEWEST_RELEASE),
        ("vllm==0.26.0", "release", "0.26.0"),
        ("vllm==0.33", "release", "0.33.0"),
        ("vllm==v0.27.0", "release", "0.27.0"),
        ("vllm==0.34.0rc1", "release", "0.34.0rc1"),
        ("vllm==1.0.0", "release", "1.0.0"),
        ("reference", "reference", ""),
        ("planted:late-copy", "planted", "late-copy"),
    ],
)
def test_well_formed_names(typed: str, kind: str, target: str) -> None:
    name = parse_engine_name(typed)
    assert (name.typed, name.kind, name.target) == (typed, kind, target)


@pytest.mark.parametrize("typed", ["vllm==0.25.1", "vllm==0.6.3"])
def test_a_release_that_is_too_old_names_the_oldest(typed: str) -> None:
    assert "vllm==0.26.0 or newer" in complaint(typed)


@pytest.mark.parametrize("typed", ["vllm==", "vllm==latest", "vllm==0.33.0+cpu", "vllm==0.33.0.0", "vllm==-1"])
def test_a_malformed_version_shows_a_good_one(typed: str) -> None:
    assert "write it like vllm==0.33.0" in complaint(typed)


def test_a_misspelt_name_gives_close_matches() -> None:
    assert "did you mean reference?" in complaint("referense")
    assert "vllm==0.33.0" in complaint("vllm=0.33.0")
    assert "late-copy" in complaint("planted:late-coppy", ("late-copy", "lost-pin"))
    assert "an engine is vllm, vllm==VERSION" in complaint("sglang")
    assert "NAME" in complaint("planted:")
    complaint("")


def test_a_checkout_is_the_folder_that_holds_the_package(tmp_path: Path) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    assert "no vLLM checkout" in complaint(str(tmp_path))
    (package / "__init__.py").touch()
    name = parse_engine_name(str(tmp_path))
    assert (name.kind, name.target) == ("checkout", str(tmp_path))
    assert f"name the folder that holds it: {tmp_path}" in complaint(str(package))
    assert "there is no folder" in complaint(str(tmp_path / "elsewhere"))


def test_an_interpreter_is_a_file_or_a_venv_and_keeps_its_link(tmp_path: Path) -> None:
    assert "no venv" in complaint(f"python:{tmp_path}")
    interpreter = tmp_path / "bin" / "python"
    interpreter.parent.mkdir()
    interpreter.symlink_to(sys.executable)
    for typed in (f"python:{tmp_path}", f"python:{interpreter}"):
        name = parse_engine_name(typed)
        assert (name.kind, name.target) == ("interpreter", str(interpreter))
    assert f"write python:{tmp_path}" in complaint(str(tmp_path))
    assert "there is no" in complaint("python:/nowhere/at/all")
    assert "there is no path" in complaint("python:")


@pytest.mark.parametrize(
    ("version", "release"),
    [
        *((release, release) for release in SUPPORTED_RELEASES),
        ("0.27.0", "0.27.1"),
        ("0.26.5", "0.26.0"),
        ("0.33.1.dev12+g1a2b3c4", "0.33.0"),
        ("0.32.0rc1+5.g1a2b3c4", "0.32.0"),
        ("0.40.2", "0.33.0"),
        ("1.0", "0.33.0"),
    ],
)
def test_the_nearest_release(version: str, release: str) -> None:
    assert nearest_release(version) == release


def test_only_a_larger_minor_is_newer_than_supported() -> None:
    assert is_newer_than_supported("0.34.0rc1")
    assert not is_newer_than_supported("0.33.9")


@pytest.mark.parametrize("version", ["0.25.1", "dev", ""])
def test_no_release_stands_for_an_old_or_unknown_version(version: str) -> None:
    with pytest.raises(EngineNameError):
        nearest_release(version)
