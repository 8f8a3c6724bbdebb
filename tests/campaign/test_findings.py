"""Finding files and the known-findings file: whole or refused with one line."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from fuzz.findings import (
    BadFinding,
    EngineFacts,
    FindingFile,
    Origin,
    check_writable,
    decode_finding,
    finding_path,
    store,
)
from fuzz.known import BadKnown, load_known
from fuzz.smoke import SCENARIO
from oracle.scenario import Limits, Request, Scenario, Step
from oracle.validate import decode_scenario
from oracle.verdict import Finding

SMALL = Scenario(SCENARIO.geometry, Limits(4, 1), (Step(0, (Request("r0", ("a:4",)),)),))
DOCUMENT = FindingFile(
    kvoracle="0.1.0",
    signature=("S2", "split", "full+mamba"),
    sentence="A chunk ends where it may.",
    finding=Finding("S2", "split", "full+mamba", 0, 3, "because", "r0"),
    scenario=SMALL,
    original=SCENARIO,
    engine=EngineFacts("vllm==0.33.0", "0.33.0", "v1", "0.33.0"),
    origin=Origin(1, 2),
)


def test_what_is_stored_is_what_is_read(tmp_path: Path) -> None:
    path = finding_path(tmp_path, "vllm==0.33.0", DOCUMENT.signature)
    store(path, DOCUMENT)
    assert decode_finding(path.read_bytes(), "f") == DOCUMENT
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_smaller_one_of_the_same_build_is_kept(tmp_path: Path) -> None:
    path, larger = tmp_path / "f.json", replace(DOCUMENT, scenario=SCENARIO)
    store(path, DOCUMENT)
    store(path, larger)
    assert decode_finding(path.read_bytes(), "f") == DOCUMENT
    other_build = replace(larger, engine=replace(DOCUMENT.engine, version="0.32.0"))
    store(path, other_build)
    assert decode_finding(path.read_bytes(), "f") == other_build


def test_of_two_of_the_same_size_the_one_that_was_shrunk_to_the_end_is_kept(tmp_path: Path) -> None:
    path, shrunk = tmp_path / "f.json", replace(DOCUMENT, shrunk=True, attempts=40)
    store(path, shrunk)
    store(path, replace(DOCUMENT, attempts=3))
    assert decode_finding(path.read_bytes(), "f") == shrunk
    counted = replace(shrunk, count=7)
    store(path, counted)
    assert decode_finding(path.read_bytes(), "f") == counted


def test_a_stored_scenario_names_its_format(tmp_path: Path) -> None:
    store(tmp_path / "f.json", DOCUMENT)
    document = msgspec.json.decode((tmp_path / "f.json").read_bytes())
    for name in ("scenario", "original"):
        assert document[name]["kvoracle_scenario"] == 1
    assert decode_scenario(msgspec.json.encode(document["scenario"]), "s") == SMALL


def test_a_folder_is_probed_without_being_made(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(BadFinding, match=r"^cannot write to [^\n]+; name another --folder$"):
        check_writable(tmp_path / "file" / "a")


def test_an_engine_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    path = finding_path(tmp_path, "../../etc/vllm", ("P3", "exception a/b:c", "full/eagle"))
    assert path.parent.parent == tmp_path
    assert path.resolve().is_relative_to(tmp_path.resolve())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"kvoracle_finding": 1}', b'{"kvoracle_finding": 9}', b"\xff"])
def test_what_is_no_finding_is_told_in_one_line(data: bytes) -> None:
    with pytest.raises(BadFinding, match=r"^somewhere: [^\n]+$"):
        decode_finding(data, "somewhere")


ENTRY = """[[known]]
signature = ["S2", "split", "full+mamba"]
scenario = "s.json"
reason = "fixed in 0.27"
report = "https://example.org/1"
expires = 2026-12-31
"""


def known_file(folder: Path, text: str) -> Path:
    (folder / "s.json").write_bytes(msgspec.json.encode(SMALL))
    path = folder / "known.toml"
    path.write_text(text)
    return path


def test_a_known_file_is_read(tmp_path: Path) -> None:
    inline = ENTRY.replace("full+mamba", "mamba").replace('"s.json"', f"'''{msgspec.json.encode(SMALL).decode()}'''")
    first, second = load_known(known_file(tmp_path, ENTRY + inline))
    assert first.scenario == second.scenario == SMALL
    assert first.expires == datetime.date(2026, 12, 31)
    assert not first.expired(datetime.date(2026, 12, 30))
    assert first.expired(datetime.date(2026, 12, 31))


def test_the_scenario_may_be_a_finding_file(tmp_path: Path) -> None:
    path = known_file(tmp_path, ENTRY)
    store(tmp_path / "s.json", DOCUMENT)
    assert load_known(path)[0].scenario == SMALL


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[known]", "not TOML"),
        ("x = 1", "nothing else"),
        ("known = 1", "nothing else"),
        (ENTRY.replace("reason", "reasons"), "did you mean reason"),
        (ENTRY.replace('reason = "fixed in 0.27"\n', ""), "reason missing"),
        (ENTRY.replace('"fixed in 0.27"', '" "'), "reason must be a text"),
        (ENTRY.replace("2026-12-31", '"soon"'), "expires must be a date"),
        (ENTRY.replace("2026-12-31", "2026-12-31T00:00:00"), "expires must be a date"),
        (ENTRY.replace('"S2", ', ""), "signature must be"),
        (ENTRY.replace('"S2"', '"S22"'), "did you mean S2"),
        (ENTRY.replace("s.json", "gone.json"), "No such file"),
        (ENTRY.replace("s.json", "{"), "JSON"),
        (ENTRY + ENTRY, "twice"),
    ],
)
def test_a_malformed_known_file_is_told_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadKnown, match=r"^[^\n]+$") as caught:
        load_known(known_file(tmp_path, text))
    assert says in str(caught.value)
    assert "known.toml" in str(caught.value)
