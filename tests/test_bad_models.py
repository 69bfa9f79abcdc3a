"""A model that is damaged, gives NaN, or brings code along: one sentence or a row of status error, never an answer."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engines import EngineError
from engines.choices import choices_of, likeliest
from generators import read_prompts
from recall.results import AnswerToken, ResultRow, read_results
from recall.scoring import answer_token
from tests.conftest import Ended, byte_tokenizer, run_recall
from tests.misbehaving import MisbehavingServer

Change = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def model(small_model: Callable[[str], Path]) -> Path:
    return small_model("llama")


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """A copy of the model, to be damaged."""
    return Path(shutil.copytree(model, tmp_path / "copy"))


@pytest.fixture(scope="module")
def prompt_set(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sets") / "set.jsonl"
    sizes = ["--budget", 400, "--budget", 900, "--answer-room", 6, "--format", "completion"]
    assert run_recall("generate", *sizes, "--tokenizer", model, "-o", file).code == 0
    return file


def _score(prompt_set: Path, engine: str, model: Path, output: Path, *more: object) -> Ended:
    return run_recall("score", prompt_set, "--engine", engine, "--model", model, "-o", output, *more)


def _refused(ended: Ended) -> str:
    assert (ended.code, ended.out) == (2, "")
    sentence = ended.err.splitlines()[-1]
    assert sentence.startswith("recall: ")
    assert sentence.isprintable()
    assert "Traceback" not in ended.err
    return sentence


def _with(**fields: object) -> Change:
    return lambda content: json.dumps(json.loads(content) | fields).encode()


DAMAGED: dict[str, tuple[str, Change]] = {
    "a tokenizer cut off": ("tokenizer.json", lambda content: content[:100]),
    "a tokenizer that is a list": ("tokenizer.json", lambda _: b"[]"),
    "a tokenizer that is empty": ("tokenizer.json", lambda _: b"{}"),
    "a tokenizer of another encoding": ("tokenizer.json", lambda _: b"\xff\xfe{"),
    "a configuration cut off": ("config.json", lambda content: content[:100]),
    "a configuration that is a list": ("config.json", lambda _: b"[]"),
    "a configuration without a type": ("config.json", lambda _: b"{}"),
    "a word for a number": ("config.json", _with(hidden_size="many")),
    "a division by zero": ("config.json", _with(num_attention_heads=0)),
    "layers fewer than none": ("config.json", _with(num_hidden_layers=-3)),
    "more memory than there is": ("config.json", _with(vocab_size=10**15)),
    "an activation that nobody knows": ("config.json", _with(hidden_act="none-such")),
    "a type that nobody knows": ("config.json", _with(model_type="none-such")),
    "weights cut off": ("model.safetensors", lambda content: content[:1000]),
    "weights cut off in a tensor": ("model.safetensors", lambda content: content[:-10]),
    "weights that are empty": ("model.safetensors", lambda _: b""),
    "weights of a bad header": ("model.safetensors", lambda content: b"\xff" * 8 + content[8:]),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("engine", ["ring", "hf"])
def test_a_damaged_model_is_refused_in_one_sentence(
    damage: str, engine: str, prompt_set: Path, copy: Path, tmp_path: Path
) -> None:
    name, change = DAMAGED[damage]
    (copy / name).write_bytes(change((copy / name).read_bytes()))
    sentence = _refused(_score(prompt_set, engine, copy, tmp_path / "new.jsonl"))
    assert "copy" in sentence or "num_hidden_layers" in sentence
    assert not (tmp_path / "new.jsonl").exists()


@pytest.mark.parametrize("damage", [name for name, (file, _) in DAMAGED.items() if file == "tokenizer.json"])
def test_a_damaged_tokenizer_is_refused_by_all_that_only_count_with_it(
    damage: str, prompt_set: Path, copy: Path, tmp_path: Path
) -> None:
    name, change = DAMAGED[damage]
    (copy / name).write_bytes(change((copy / name).read_bytes()))
    new = tmp_path / "new.jsonl"
    assert "'copy' has no tokenizer" in _refused(_score(prompt_set, "oracle", copy, new))
    made = run_recall("generate", "--budget", 400, "--tokenizer", copy, "--format", "completion", "-o", new)
    assert "cannot be loaded: give `demo`, a local folder" in _refused(made)
    with MisbehavingServer() as server:
        options = ["--url", server.url("well"), "--tokenizer", copy]
        asked = run_recall("score", prompt_set, "--engine", "server", "--model", "m", *options, "-o", new)
    assert "is none that transformers can load" in _refused(asked)


@pytest.mark.parametrize(
    "fields", [{"num_hidden_layers": 0}, {"num_hidden_layers": -3}, {"hidden_act": "none-such"}, {"hidden_size": "x"}]
)
def test_plan_refuses_a_configuration_that_makes_no_model(fields: dict[str, object], copy: Path) -> None:
    config = copy / "config.json"
    config.write_bytes(_with(**fields)(config.read_bytes()))
    _refused(run_recall("plan", "--context", 512, "--model", copy))


def test_weights_that_are_pickled_are_never_loaded(prompt_set: Path, copy: Path, tmp_path: Path) -> None:
    weights = copy / "model.safetensors"
    torch.save(load_file(weights), copy / "pytorch_model.bin")
    weights.unlink()
    # What it holds is whole: transformers itself would load it.
    assert transformers.AutoModelForCausalLM.from_pretrained(copy).num_parameters() > 0
    for engine in ("ring", "hf"):
        sentence = _refused(_score(prompt_set, engine, copy, tmp_path / "new.jsonl"))
        assert "no file named model.safetensors" in sentence
    _refused(run_recall("probe", "--model", copy))


OWN_CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
Path({mark!r}).touch()
class OwnConfig(LlamaConfig):
    model_type = "own-code"
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def with_code(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return a model that brings code of its own, and the file that this code makes when it is run."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    config, mark = copy / "config.json", tmp_path / "was-run"
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    config.write_bytes(
        _with(model_type="own-code", architectures=["OwnForCausalLM"], auto_map=own)(config.read_bytes())
    )
    (copy / "own.py").write_text(OWN_CODE.format(mark=str(mark)))
    return copy, mark


def test_code_that_a_model_brings_is_run_only_when_asked_for(
    with_code: tuple[Path, Path], model: Path, prompt_set: Path, tmp_path: Path
) -> None:
    folder, mark = with_code
    for engine in ("ring", "hf"):
        sentence = _refused(_score(prompt_set, engine, folder, tmp_path / "new.jsonl"))
        assert "'copy' brings Python code of its own, which is not run unasked; read it, then give --trust" in sentence
    for command in (["probe"], ["plan", "--context", 512], ["export-gguf", "-o", tmp_path / "new.gguf"]):
        assert "brings Python code of its own" in _refused(run_recall(*command, "--model", folder))
    assert not mark.exists()
    for engine in ("ring", "hf"):
        trusted, plain = tmp_path / f"{engine}-trusted.jsonl", tmp_path / f"{engine}.jsonl"
        assert _score(prompt_set, engine, folder, trusted, "--trust-remote-code").code == 0
        assert _score(prompt_set, engine, model, plain).code == 0
        assert [row.reply_ids for row in read_results(trusted)] == [row.reply_ids for row in read_results(plain)]
    assert mark.exists()


def test_an_engine_without_a_model_takes_no_code(prompt_set: Path, model: Path, tmp_path: Path) -> None:
    ended = _score(prompt_set, "oracle", model, tmp_path / "new.jsonl", "--trust-remote-code")
    assert "--trust-remote-code is for --engine ring and hf; leave it out with --engine oracle" in _refused(ended)


def _spoil(folder: Path, tensor: str, place: Any, value: float = float("nan")) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[tensor][place] = value
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _all_failed(ended: Ended, rows: list[ResultRow]) -> None:
    assert ended.code == 3
    assert rows
    for row in rows:
        assert (row.status, row.answer, row.codes, row.outcome, row.found) == ("error", None, [], None, False)
        assert (row.reply, row.reply_ids, row.answer_tokens) == (None, None, None)
        assert "the model gives NaN logits" in (row.note or "")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("engine", ["ring", "hf"])
def test_a_model_with_a_spoiled_weight_gives_rows_of_errors_and_no_answers(
    engine: str, value: float, prompt_set: Path, copy: Path, tmp_path: Path
) -> None:
    _spoil(copy, "model.layers.1.mlp.down_proj.weight", (3, 5), value)
    output = tmp_path / "new.jsonl"
    _all_failed(_score(prompt_set, engine, copy, output), rows := read_results(output))
    assert len(rows) == len(read_prompts(prompt_set))
    compared = run_recall("compare", output)
    assert compared.code == 0
    assert "nan" not in compared.out.lower()


@pytest.mark.parametrize("engine", ["ring", "hf"])
def test_a_sweep_with_a_spoiled_weight_gives_rows_of_errors_and_no_answers(
    engine: str, copy: Path, tmp_path: Path
) -> None:
    _spoil(copy, "model.layers.1.mlp.down_proj.weight", (3, 5))
    sizes = ["--lengths", "400,600", "--depths", 2, "--seeds", 2, "--max-new", 4, "--format", "completion"]
    output = tmp_path / "sweep.jsonl"
    ended = run_recall("sweep", "--engine", engine, "--model", copy, *sizes, "-o", output)
    _all_failed(ended, rows := read_results(output))
    assert len(rows) == 8


@pytest.mark.parametrize("engine", ["ring", "hf"])
def test_an_answer_that_begins_well_and_ends_in_nan_is_no_answer(
    engine: str, prompt_set: Path, model: Path, copy: Path, tmp_path: Path
) -> None:
    assert _score(prompt_set, engine, model, tmp_path / "good.jsonl").code == 0
    ids = byte_tokenizer().encode(read_prompts(prompt_set)[0].text or "", add_special_tokens=False)
    first = read_results(tmp_path / "good.jsonl")[0]
    assert first.reply_ids
    assert first.reply_ids[0] not in ids  # so nothing is spoiled before the answer's second token
    _spoil(copy, "model.embed_tokens.weight", first.reply_ids[0])
    assert _score(prompt_set, engine, copy, tmp_path / "new.jsonl").code == 3
    row = read_results(tmp_path / "new.jsonl")[0]
    assert (row.status, row.reply) == ("error", None)
    assert "NaN" in (row.note or "")


def test_tokens_that_a_model_rules_out_are_none_of_the_likeliest() -> None:
    # Minus infinity is no number that a row could hold: JSON has none.
    logits = torch.tensor([[0.5, -torch.inf, 2.0, -torch.inf]])
    (choice,) = choices_of(*(told.tolist() for told in likeliest(logits, logits.argmax(-1))))
    assert (choice.id, [token for token, _ in choice.top]) == (2, [2, 0])
    token = answer_token(choice)
    assert AnswerToken.model_validate_json(token.model_dump_json()) == token
    for value in (torch.nan, torch.inf):
        logits[0, 1] = value
        with pytest.raises(EngineError, match="NaN logits"):
            choices_of(*(told.tolist() for told in likeliest(logits, torch.tensor([2]))))


def test_a_set_made_with_another_tokenizer_is_refused_by_every_engine_that_makes_ids(
    prompt_set: Path, merging_folder: Path, model: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(model, tmp_path / "other"))
    for file in merging_folder.iterdir():
        shutil.copy(file, other / file.name)
    for engine in ("ring", "hf", "oracle"):
        sentence = _refused(_score(prompt_set, engine, other, tmp_path / "new.jsonl"))
        assert re.search(r"prompt '.*': other makes other ids from it than tokenizer 'llama' did", sentence)
        assert "make the set with this model's --tokenizer" in sentence
