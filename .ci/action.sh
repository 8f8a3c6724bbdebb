#!/usr/bin/env bash
# The step of action.yml that runs the gate: bash action.sh KVORACLE FOLDER, with the inputs in the environment.
set -euo pipefail

kvoracle=$1
folder=$2
mkdir -p "$folder"

arguments=(gate --engine "$ENGINE" --baseline "$BASELINE" --time "$TIME" --folder "$folder/findings")
[ -z "${KNOWN:-}" ] || arguments+=(--known "$KNOWN")
for word in ${ACCEPT:-}; do arguments+=(--accept "$word"); done
[ "${REQUIRE_PROOF:-false}" != true ] || arguments+=(--require-proof)
arguments+=(--format github --format "text=$folder/gate.txt" --format "json=$folder/gate.json")
arguments+=(--format "html=$folder/gate.html" --format "sarif=$folder/gate.sarif" --format "junit=$folder/gate.xml")

status=0
"$kvoracle" "${arguments[@]}" || status=$?

# A run that had no verdict, such as one with a bad input, wrote no reports.
verdict="could not judge"
if [ -s "$folder/gate.json" ]; then
  verdict=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["word"])' "$folder/gate.json")
fi
if [ -n "${GITHUB_OUTPUT:-}" ]; then
  printf 'verdict=%s\nreport=%s\n' "$verdict" "$folder" >> "$GITHUB_OUTPUT"
fi
exit "$status"
