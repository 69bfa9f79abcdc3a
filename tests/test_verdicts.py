"""Real engines through `recall compare`: the same model agrees, a defect of the cache is called one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import planted
from tests.conftest import run_recall


@pytest.fixture(scope="module")
def model(small_model: Callable[[str], Path]) -> Path:
    return small_model("gemma3")


@pytest.fixture(scope="module")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of prompts past the model's window, and what ring, hf and a ring whose window is one too narrow answer."""
    made = tmp_path_factory.mktemp("verdicts")
    sizes = ["--budget", 512, "--count", 20, "--format", "completion", "--tokenizer", model]
    assert run_recall("generate", *sizes, "-o", made / "set.jsonl").code == 0
    for name, engine in (("ring", "ring"), ("hf", "hf"), ("narrow", "ring")):
        with pytest.MonkeyPatch.context() as patch:
            if name == "narrow":
                planted._tables(patch, window=-1)
            scored = ["score", made / "set.jsonl", "--engine", engine, "--model", model, "--threads", 1]
            assert run_recall(*scored, "--max-new", 12, "-o", made / f"{name}.jsonl").code == 0
    return made


def _pair(folder: Path, a: str, b: str, *options: object) -> tuple[int, dict[str, Any]]:
    ended = run_recall("compare", folder / f"{a}.jsonl", folder / f"{b}.jsonl", "--json", *options)
    (pair,) = json.loads(ended.out)["pairs"]
    return ended.code, pair


def test_two_engines_over_one_model_agree_and_differ_by_less_than_rounding_explains(folder: Path) -> None:
    code, pair = _pair(folder, "ring", "hf", "--fail-below", 1)
    assert (code, pair["agreement"], pair["n"], pair["differences"]) == (0, 1.0, 20, [])
    assert pair["logprob_difference"]["max"] <= pair["logprob_difference"]["ceiling"]
    assert pair["logprob_difference"]["alarm"] is False


def test_a_window_one_too_narrow_is_called_a_defect(folder: Path) -> None:
    _, pair = _pair(folder, "narrow", "hf")
    verdicts = [difference["verdict"] for difference in pair["differences"]]
    assert "defect" in verdicts
    assert pair["logprob_difference"]["alarm"] is True
