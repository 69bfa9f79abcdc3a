"""Runs `recall doctor` for tests: what each check found, by its name."""

import json
from pathlib import Path
from typing import Any

from tests.conftest import run_recall


class Doctored:
    """How one call ended: its exit code, and the findings of each check."""

    def __init__(self, *arguments: object) -> None:
        ended = run_recall("doctor", *arguments, "--json")
        assert ended.out, ended.err
        told = json.loads(ended.out)
        self.code = ended.code
        self.findings: list[dict[str, Any]] = told["findings"]

    @property
    def checks(self) -> set[str]:
        return {finding["check"] for finding in self.findings}

    @property
    def flawed(self) -> list[str]:
        """The checks that did not end with ok."""
        return [finding["check"] for finding in self.findings if finding["verdict"] != "ok"]

    def of(self, check: str, verdict: str) -> str:
        """Return what is said, with the mend, by the one finding of a check with a verdict."""
        (finding,) = [
            finding for finding in self.findings if (finding["check"], finding["verdict"]) == (check, verdict)
        ]
        return f"{finding['says']}; {finding['mend']}"


def prompt_set(file: Path, tokenizer: Path, *more: object, form: str = "completion") -> Path:
    """Make a set of two prompts, of at most 512 and 1024 tokens."""
    sizes = ["--budget", 512, "--budget", 1024, "--context", 1280, "--depth", 0.5]
    made = run_recall("generate", "--tokenizer", tokenizer, "--format", form, *sizes, *more, "-o", file)
    assert made.code == 0, made.err
    return file
