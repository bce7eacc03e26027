"""What a rank of a job has found, for the test that has started it."""

import json
import os
from pathlib import Path

FOLDER = "TEST_REPORTS_FOLDER"


def add(rank: int, report: dict) -> None:
    """One line in the rank's own file, as the lines that ranks print come out mixed."""
    with open(Path(os.environ[FOLDER]) / str(rank), "a") as file:
        file.write(json.dumps(report | {"rank": rank}) + "\n")


def read(folder: str) -> list[dict]:
    """All reports, those of rank 0 first."""
    files = sorted(Path(folder).iterdir(), key=lambda path: int(path.name))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
