"""A prompt set is made by its arguments alone, and a file of it is read back whole or refused by its line."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from generators import (
    GeneratorError,
    Prompt,
    PromptTokenizer,
    laptop_specs,
    make_prompts,
    read_prompts,
    seeded_specs,
    write_prompts,
)
from generators.records import Format

BUDGETS = [256, 512, 1024]


def _set(
    tokenizer: PromptTokenizer, *, form: Format = "completion", one_source: bool = False, **of: Any
) -> list[Prompt]:
    arguments: dict[str, Any] = {"seed": 7, "budgets": BUDGETS, "contexts": [1024], "depths": [0.25]} | of
    return list(make_prompts(seeded_specs(form, **arguments), tokenizer, form, one_source=one_source))


@pytest.fixture(scope="module")
def rows(gemma: PromptTokenizer) -> list[str]:
    """The lines of a good set of three prompts."""
    return [prompt.model_dump_json() for prompt in _set(gemma)]


def test_prompts_of_one_seed_share_their_records_whatever_budget_depth_and_format(gemma: PromptTokenizer) -> None:
    made = _set(gemma, depths=[0.1, 0.9]) + _set(gemma, form="chat", depths=[0.5])
    longest = max(made, key=lambda prompt: prompt.records).codes()
    assert len({prompt.records for prompt in made}) >= 3
    for prompt in made:
        assert prompt.codes() == longest[: prompt.records]
        assert prompt.first_draw == 0


def test_a_shorter_completion_is_a_longer_one_cut_short_but_for_its_question(gemma: PromptTokenizer) -> None:
    short, _, long = (prompt.text or "" for prompt in _set(gemma))
    records, _, _ = short.rpartition("Record ")
    assert long.startswith(records)


def test_a_set_of_one_source_draws_on_and_a_record_that_did_not_fit_has_taken_its_draw(gemma: PromptTokenizer) -> None:
    made = _set(gemma, one_source=True, contexts=[1024, 2048])
    assert [prompt.context for prompt in made] == [1024] * 3 + [2048] * 3
    for before, prompt in pairwise(made):
        if prompt.order > 1:
            assert prompt.first_draw == before.first_draw + before.records + 1
    assert [prompt.first_draw for prompt in made[:3]] == [prompt.first_draw for prompt in made[3:]]
    (first,) = _set(gemma, budgets=[4096], contexts=[4096])
    for prompt in made:
        assert prompt.codes() == first.codes()[prompt.first_draw : prompt.first_draw + prompt.records]


def test_each_seed_of_a_set_of_one_source_has_a_source_of_its_own(gemma: PromptTokenizer) -> None:
    made = _set(gemma, one_source=True, budgets=[256, 512], count=2)
    assert [prompt.seed for prompt in made] == [7, 8, 7, 8]
    assert [prompt.first_draw for prompt in made] == [0, 0, made[0].records + 1, made[1].records + 1]


def test_a_set_holds_every_context_budget_asked_record_and_seed_in_order() -> None:
    specs = seeded_specs(
        "chat", seed=3, budgets=[512, 256], contexts=[512, 1024], depths=[0.5], records=[2], count=2, answer_room=9
    )
    assert [spec.id for spec in specs[:8]] == [
        "chat-s3-c512-b512-d0.5",
        "chat-s4-c512-b512-d0.5",
        "chat-s3-c512-b512-r2",
        "chat-s4-c512-b512-r2",
        "chat-s3-c512-b256-d0.5",
        "chat-s4-c512-b256-d0.5",
        "chat-s3-c512-b256-r2",
        "chat-s4-c512-b256-r2",
    ]
    assert len(specs) == 16
    assert [spec.order for spec in specs] == [*range(1, 9), *range(1, 9)]
    assert {spec.answer_room for spec in specs} == {9}
    assert {(spec.depth, spec.record) for spec in specs} == {(0.5, None), (None, 2)}


@pytest.mark.parametrize(("budget", "context"), [(256, 256), (257, 512), (4081, 4096), (4096, 4096)])
def test_without_a_context_it_is_the_budget_up_to_a_multiple_of_256(budget: int, context: int) -> None:
    specs = seeded_specs("chat", seed=0, budgets=[128, budget], contexts=[], depths=[0.25])
    assert {spec.context for spec in specs} == {context}


def test_the_laptop_set_in_completion_format_has_ids_of_its_own() -> None:
    assert not {spec.id for spec in laptop_specs("chat")} & {spec.id for spec in laptop_specs("completion")}


# Of files of prompts made with the demo tokenizer: these bytes are a promise.
GOLDEN = {
    "chat": "2c8b8e1c655db84c98d7bf4b3a0327b5dcbaf2488c1ea5b3cdae06716ca6af94",
    "completion": "4bbc5ce02650b7913f5831dc1967f79995218158fb758aa103cd0b0933ab0183",
}


@pytest.mark.parametrize("form", ["chat", "completion"])
def test_the_same_arguments_give_the_same_bytes_as_ever(gemma: PromptTokenizer, tmp_path: Path, form: Format) -> None:
    write_prompts(tmp_path / "set.jsonl", _set(gemma, form=form, depths=[0.25, 1.0], records=[3], count=2))
    assert hashlib.sha256((tmp_path / "set.jsonl").read_bytes()).hexdigest() == GOLDEN[form]


def test_another_process_with_another_hash_seed_writes_the_same_bytes(byte_folder: Path, tmp_path: Path) -> None:
    options = ["--seed", "7", "--budget", "512", "--budget", "1024", "--tokenizer", str(byte_folder)]
    files = []
    for hash_seed in ("1", "2"):
        files.append(tmp_path / f"{hash_seed}.jsonl")
        command = [sys.executable, "-m", "recall", "generate", *options, "-o", str(files[-1])]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": hash_seed}, capture_output=True)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_hugging_faces_datasets_reads_a_set(gemma: PromptTokenizer, tmp_path: Path) -> None:
    # Not `import datasets`: a type checker takes our folder of that name for it.
    datasets: Any = import_module("datasets")
    made = [*_set(gemma), *_set(gemma, form="chat", records=[2], depths=[])]
    write_prompts(tmp_path / "set.jsonl", made)
    table = datasets.load_dataset(
        "json", data_files=str(tmp_path / "set.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert table["id"] == [prompt.id for prompt in made]
    assert table["text"] == [prompt.text for prompt in made]
    assert [Prompt.model_validate_json(json.dumps(row)) for row in table] == made


@pytest.mark.parametrize(
    ("of", "sentence"),
    [
        ({"budgets": []}, "no --budget given: say how many tokens"),
        ({"seed": -1}, "--seed -1: give 0 or more"),
        ({"count": 0}, "--count 0: give 1 or more"),
        ({"depths": [1.5]}, r"--depth 1\.5: give a share of the way in, from 0 to 1"),
        ({"depths": [-0.1]}, r"--depth -0\.1: give a share"),
        ({"depths": [float("nan")]}, "--depth nan: give a share"),
        ({"records": [0]}, "--record 0: records are numbered from 1"),
        ({"contexts": [1023]}, "--budget 1024 does not fit into --context 1023"),
        ({"budgets": [512, 512]}, "given twice: give each value once"),
        ({"depths": [0.5, 0.50]}, "given twice"),
        ({"records": [2, 2]}, "given twice"),
        ({"contexts": [1024, 1024]}, "given twice"),
        ({"budgets": [90]}, r"--budget 90 is too small for one record: tokenizer 'demo' needs 5\d tokens"),
        ({"budgets": [256], "records": [9]}, r"--record 9: a prompt of --budget 256 holds 5 records"),
    ],
)
def test_arguments_that_make_no_set_are_refused_in_one_sentence(
    gemma: PromptTokenizer, of: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(GeneratorError, match=sentence) as refused:
        _set(gemma, **of)
    assert "\n" not in str(refused.value)


def _changed(line: str, **fields: Any) -> str:
    return json.dumps(json.loads(line) | fields)


def _without(line: str, field: str) -> str:
    return json.dumps({name: value for name, value in json.loads(line).items() if name != field})


@pytest.mark.parametrize(
    ("break_row", "sentence"),
    [
        (lambda line: line[: len(line) // 2], r"not a prompt row \(the line: Invalid JSON"),
        (lambda line: _changed(line, colour="red"), r"not a prompt row \(colour: Extra inputs"),
        (lambda line: _without(line, "code"), r"not a prompt row \(code: Field required"),
        (lambda line: _changed(line, code="12345"), r"not a prompt row \(code: "),
        (lambda line: _changed(line, code="123456\n"), r"not a prompt row \(code: "),
        (lambda line: _changed(line, records="9"), r"not a prompt row \(records: "),
        (lambda line: _changed(line, record=0), r"not a prompt row \(record: "),
        (lambda line: _changed(line, format="essay"), r"not a prompt row \(format: "),
        (lambda line: _changed(line, sha256="0" * 63), r"not a prompt row \(sha256: "),
        (lambda line: _changed(line, tokenizer={"name": "demo"}), r"not a prompt row \(tokenizer.fingerprint: Field"),
        (lambda line: "[]", "not a prompt row"),
        (lambda line: _changed(line, seed=8), r"seed 8 does not draw code \d{6} for record 3 of 14"),
        (lambda line: _changed(line, first_draw=1), r"seed 7 does not draw code \d{6} for record 3 of 14"),
        (lambda line: _changed(line, code="123456"), "seed 7 does not draw code 123456 for record 3 of 14"),
        (lambda line: _changed(line, records=2), r"seed 7 does not draw code \d{6} for record 3 of 2"),
    ],
)
def test_a_row_that_is_no_prompt_is_refused_with_file_and_line(
    rows: list[str], tmp_path: Path, break_row: Any, sentence: str
) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join([rows[0], break_row(rows[1]), rows[2]]) + "\n", encoding="utf-8")
    with pytest.raises(GeneratorError, match=sentence) as refused:
        read_prompts(path)
    assert str(refused.value).startswith(f"{path}, line 2: ")
    assert "\n" not in str(refused.value)


def test_an_id_that_came_before_is_refused_with_file_and_line(rows: list[str], tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join([rows[0], rows[1], "", rows[0]]), encoding="utf-8")
    with pytest.raises(GeneratorError, match=r"line 4: id 'completion-s7-c1024-b256-d0.25' came before"):
        read_prompts(path)


def test_a_row_with_other_line_separators_in_its_text_is_one_row(rows: list[str], tmp_path: Path) -> None:
    text = "a\u2028b\u0085c\x1cd"
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(json.loads(rows[0]) | {"text": text}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [prompt.text for prompt in read_prompts(path)] == [text]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"", "holds no prompts"), (b"\n\n", "holds no prompts"), (b"\xff\xfe\x00", "is not UTF-8 text")],
)
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "set.jsonl").write_bytes(content)
    with pytest.raises(GeneratorError, match=sentence):
        read_prompts(tmp_path / "set.jsonl")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GeneratorError, match=r"none\.jsonl: cannot be read \(No such file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(GeneratorError, match="cannot be read"):
        read_prompts(tmp_path)


def test_a_set_that_fails_in_the_middle_leaves_no_file(rows: list[str], tmp_path: Path) -> None:
    def prompts() -> Iterator[Prompt]:
        yield Prompt.model_validate_json(rows[0])
        raise GeneratorError("no more")

    with pytest.raises(GeneratorError, match="no more"):
        write_prompts(tmp_path / "set.jsonl", prompts())
    assert list(tmp_path.iterdir()) == []


def test_a_set_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GeneratorError, match=r"cannot be written \(No such file or directory\); give another -o"):
        write_prompts(tmp_path / "none" / "set.jsonl", [])


def test_a_manifest_is_the_set_without_its_texts(rows: list[str], tmp_path: Path) -> None:
    prompts = [Prompt.model_validate_json(row) for row in rows]
    write_prompts(tmp_path / "manifest.jsonl", (prompt.manifest_line() for prompt in prompts))
    lines = (tmp_path / "manifest.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [json.loads(_without(row, "text")) for row in rows]
