"""``kvoracle schema``: the JSON Schemas of the documents that kvoracle reads and writes."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from fuzz.commands.common import json_option, print_json
from fuzz.findings import FindingFile
from oracle.trace import schemas

_DOCUMENTS = ("scenario", "header", "records", "finding")


@click.command()
@click.argument("document", type=click.Choice(_DOCUMENTS), required=False)
@json_option
def schema(document: str | None, as_json: bool) -> None:
    """Print the JSON Schema of a document (or of all of them, by name).

    A trace is JSON lines: one header, then one line of records per message. The output is JSON with and
    without --json.
    """
    every: dict[str, Any] = {**schemas(), "finding": msgspec.json.schema(FindingFile)}
    print_json(every[document] if document else every)
