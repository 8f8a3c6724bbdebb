"""The builds next to a change are found, whatever lies between, and a checkout is left as it was."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest

from fuzz.bisect import BadRange, Change, Tried, changes, commits, releases, search, title, worktree
from fuzz.replay import COULD_NOT_RUN, FIXED, NOT_REACHED, STILL_THERE

WORDS = {"+": STILL_THERE, "-": FIXED, "?": COULD_NOT_RUN}


def tried(pattern: str) -> list[Tried]:
    """Builds called 0, 1, …: ``+`` shows the finding, ``-`` lacks it, ``?`` tells nothing."""
    return [Tried(str(number), WORDS[sign]) for number, sign in enumerate(pattern)]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("++--", [Change("1", "2", False)]),
        ("--+", [Change("1", "2", True)]),
        ("-+-", [Change("0", "1", True), Change("1", "2", False)]),
        ("+??-", [Change("0", "3", False, ("1", "2"))]),
        ("+?+?", []),
        ("??", []),
        ("--", []),
    ],
)
def test_changes(pattern: str, found: list[Change]) -> None:
    assert changes(tried(pattern)) == found


def test_not_reached_tells_nothing() -> None:
    assert Tried("", NOT_REACHED).shows is None


def test_releases_between_two_are_those_that_are_supported_and_the_ends() -> None:
    assert releases("vllm==0.26.0", "vllm==0.28.0") == ["vllm==0.26.0", "vllm==0.27.1", "vllm==0.28.0"]
    assert releases("vllm==0.27.0", "vllm==0.28.1") == ["vllm==0.27.0", "vllm==0.27.1", "vllm==0.28.0", "vllm==0.28.1"]
    assert releases("vllm==0.33.0rc1", "vllm==0.33.0.post1") == [
        "vllm==0.33.0rc1",
        "vllm==0.33.0",
        "vllm==0.33.0.post1",
    ]


@pytest.mark.parametrize(
    ("first", "last", "says"),
    [
        ("vllm==0.28.0", "vllm==0.26.0", "is not before"),
        ("vllm==0.28.0", "vllm==0.28.0", "is not before"),
        ("reference", "vllm==0.28.0", "is no release"),
    ],
)
def test_what_is_no_range_of_releases(first: str, last: str, says: str) -> None:
    with pytest.raises(BadRange, match=says) as raised:
        releases(first, last)
    assert "\n" not in str(raised.value)


def searched(pattern: str) -> tuple[list[Change], int]:
    builds = tried(pattern)
    attempts = search([build.name for build in builds], lambda name: builds[int(name)])
    assert [one.name for one in attempts] == sorted({one.name for one in attempts}, key=int)
    return changes(attempts), len(attempts)


@pytest.mark.parametrize("length", range(2, 40))
def test_a_search_finds_each_place_in_few_attempts(length: int) -> None:
    for place in range(1, length):
        found, attempts = searched("+" * place + "-" * (length - place))
        assert found == [Change(str(place - 1), str(place), False)]
        assert attempts <= 2 + length.bit_length()


def test_what_tells_nothing_is_skipped_and_told() -> None:
    for unknown in itertools.product("01", repeat=6):
        inner = "".join("?" if one == "1" else sign for one, sign in zip(unknown, "+++---", strict=True))
        pattern = f"+{inner}-"
        found, _ = searched(pattern)
        assert found == changes(tried(pattern))


@pytest.mark.parametrize("pattern", ["+---+", "----", "?+--", "++-?"])
def test_nothing_is_searched_where_the_ends_do_not_differ_or_tell_nothing(pattern: str) -> None:
    assert searched(pattern)[1] == 2


# --- commits -------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Commits called one to four, and beside them one called other."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for name in ("one", "two", "three", "four"):
        (folder / "file").write_text(name)
        git(folder, "add", "file")
        git(folder, "commit", "--quiet", "--message", name)
    git(folder, "checkout", "--quiet", "-b", "other", "HEAD~2")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "other")
    git(folder, "checkout", "--quiet", "main")
    return folder


def test_commits_from_one_to_another(repository: Path) -> None:
    found = commits(repository, "HEAD~2", "main")
    assert [title(repository, commit).partition(" ")[2] for commit in found] == ["two", "three", "four"]


def test_of_a_merge_the_first_parent_counts(repository: Path) -> None:
    git(repository, "merge", "--quiet", "--no-ff", "--message", "merge", "other")
    found = commits(repository, "HEAD~3", "HEAD")
    assert [title(repository, commit).partition(" ")[2] for commit in found] == ["two", "three", "four", "merge"]


@pytest.mark.parametrize(
    ("first", "last", "says"),
    [
        ("main", "HEAD~1", "is not before"),
        ("other", "main", "is not before"),
        ("main", "main", "the same commit"),
        ("none", "main", "has no commit none"),
        ("--all", "main", "has no commit --all"),
        ("vllm==0.26.0", "main", "has no commit vllm==0.26.0"),
    ],
)
def test_what_is_no_range_of_commits(repository: Path, first: str, last: str, says: str) -> None:
    with pytest.raises(BadRange, match=says) as raised:
        commits(repository, first, last)
    assert "\n" not in str(raised.value)


def test_a_folder_that_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(BadRange, match="is it a git repository"):
        commits(tmp_path, "a", "b")


def test_a_commit_is_checked_out_beside_the_users_work_and_removed(repository: Path) -> None:
    (repository / "file").write_text("not committed")
    (first, *_) = commits(repository, "HEAD~3", "main")
    with worktree(repository, first) as folder:
        assert (folder / "file").read_text() == "one"
    assert not folder.exists()
    assert (repository / "file").read_text() == "not committed"
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_a_commit_is_removed_whatever_happens(repository: Path) -> None:
    (first, *_) = commits(repository, "HEAD~3", "main")
    with pytest.raises(KeyboardInterrupt), worktree(repository, first) as folder:
        raise KeyboardInterrupt
    assert not folder.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_a_commit_that_cannot_be_checked_out(repository: Path) -> None:
    with pytest.raises(BadRange, match="git cannot check out 012345"), worktree(repository, "0123456789"):
        pass
    assert len(git(repository, "worktree", "list").splitlines()) == 1
