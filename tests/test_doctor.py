"""`recall doctor` finds what would end a run before its weights are read, and nothing where all is well."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from engines import EngineOptions, memory
from engines.gguf_file import read_gguf
from engines.loading import load_config
from engines.plan import Costs
from engines.shapes import shape_config
from recall import demo
from recall.checkups import installed
from recall.recording import recording
from tests.conftest import CHAT_TEMPLATE, byte_tokenizer, run_recall
from tests.doctored import Doctored, prompt_set


@pytest.fixture(scope="module")
def folder(small_model: Callable[[str], Path]) -> Path:
    return small_model("mistral")


@pytest.fixture(scope="module")
def made_set(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompt_set(tmp_path_factory.mktemp("sets") / "set.jsonl", folder)


@pytest.fixture(scope="module")
def chat_set(byte_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompt_set(tmp_path_factory.mktemp("sets") / "chat.jsonl", byte_folder, form="chat")


@pytest.fixture
def model_with(folder: Path, tmp_path: Path) -> Callable[[transformers.PreTrainedTokenizerFast], Path]:
    """Return the small model with another tokenizer."""

    def make(tokenizer: transformers.PreTrainedTokenizerFast) -> Path:
        made = tmp_path / "model"
        shutil.copytree(folder, made)
        tokenizer.save_pretrained(made)
        return made

    return make


def _installed(monkeypatch: pytest.MonkeyPatch, site: Path, name: str, version: str, *fields: str) -> None:
    """Put a package in front of all others; only what it says of itself is there."""
    about = site / f"{name}-{version}.dist-info"
    about.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *fields]
    (about / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))


def _chatting(template: str) -> transformers.PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_a_run_that_can_end_well_has_no_flaw(folder: Path, made_set: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    found = Doctored(made_set, "--engine", "ring", "--model", folder, "-o", output)
    assert (found.code, found.flawed) == (0, [])
    before = {"versions", "device", "model", "memory", "context", "output", "tokenizer", "set"}
    assert found.checks == before | {"window", "time"}
    assert not output.exists()


def test_each_finding_is_a_line_and_each_mend_another(folder: Path) -> None:
    ended = run_recall("doctor", "--engine", "ring", "--model", folder, "--threads", 1000, "--context", 512)
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[0].startswith("ok       versions   python ")
    at = next(number for number, line in enumerate(lines) if line.startswith("warning  device     1000 threads on "))
    assert "mend: --threads " in lines[at + 1]
    assert lines[-1] == "ring, mistral: no problems, 1 warning"


def test_a_package_that_is_too_old_is_a_problem_and_nothing_is_opened(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _installed(monkeypatch, tmp_path, "torch", "2.1.0")
    found = Doctored("--engine", "ring", "--model", folder)
    assert found.code == 4
    assert "torch 2.1.0 is not >=2.13; pip install 'torch>=2.13'" in found.of("versions", "problem")
    assert "is not opened" in found.of("engine", "warning")
    assert "window" not in found.checks


def test_a_python_that_the_project_does_not_take_is_a_problem(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _installed(monkeypatch, tmp_path, "recall", "0.1.0", "Requires-Python: >=9.0")
    assert "is not >=9.0" in Doctored("--engine", "ring", "--model", folder).of("versions", "problem")


def test_a_package_that_is_missing_is_a_problem(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(installed._IMPORTED, "ring", ["torch", "no-such-package"])
    found = Doctored("--engine", "ring", "--model", folder)
    assert "no-such-package is not installed; pip install" in found.of("versions", "problem")


def test_a_device_that_is_not_there_is_a_problem(folder: Path) -> None:
    found = Doctored("--engine", "ring", "--model", folder, "--device", "cuda:99")
    assert found.code == 4
    assert "--device cuda:99" in found.of("device", "problem")
    assert "nothing tells what cuda:99 has free" in found.of("memory", "warning")


@pytest.mark.parametrize("engine", ["ring", "hf"])
def test_a_model_larger_than_memory_is_a_problem_and_its_weights_are_not_looked_for(
    tmp_path: Path, engine: str
) -> None:
    config = shape_config("gemma-4-31b")
    config.intermediate_size *= 10_000
    config.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    found = Doctored("--engine", engine, "--model", tmp_path, "--context", 4096)
    assert found.code == 4
    assert "--dtype bf16, which takes half" in found.of("memory", "problem")
    assert found.flawed == ["memory", "engine"]


def test_hf_needs_memory_for_the_mask_of_the_whole_prompt_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 50_000_000)
    more = ["--model", folder, "--context", 4096]
    assert Doctored("--engine", "ring", *more).flawed == []
    found = Doctored("--engine", "hf", *more)
    assert "mask of the whole prompt 0.08 GB" in found.of("memory", "problem")


def test_layers_that_no_ring_holds_are_a_problem_for_ring_and_a_warning_for_hf(tmp_path: Path) -> None:
    config = transformers.Qwen3NextConfig(num_hidden_layers=4, hidden_size=64)
    config.save_pretrained(tmp_path)
    assert "the ring cannot hold" in Doctored("--engine", "ring", "--model", tmp_path).of("memory", "problem")
    assert "nothing here tells" in Doctored("--engine", "hf", "--model", tmp_path).of("memory", "warning")


def test_a_model_that_fills_memory_is_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs(load_config(EngineOptions(folder, "mistral")), 256, "fp32")
    monkeypatch.setattr(memory, "free_bytes", lambda device: costs.weight_bytes + costs.cache_bytes)
    found = Doctored("--engine", "ring", "--model", folder, "--context", 256)
    assert "what computing takes is not counted" in found.of("memory", "warning")
    assert found.code == 0


def test_the_free_memory_is_the_machine_s_or_what_a_container_has_left(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:  5000 kB\n", encoding="ascii")
    assert memory.free_bytes("cpu", tmp_path) == 5_120_000
    (group / "memory.current").write_text("3000000\n", encoding="ascii")
    (group / "memory.stat").write_text("anon 1\ninactive_file 500000\n", encoding="ascii")
    (group / "memory.max").write_text("max\n", encoding="ascii")
    assert memory.free_bytes("cpu", tmp_path) == 5_120_000
    (group / "memory.max").write_text("4000000\n", encoding="ascii")
    assert memory.free_bytes("cpu", tmp_path) == 1_500_000
    assert memory.free_bytes("tpu", tmp_path) is None


def test_what_a_gguf_file_needs_lies_between_all_layers_sliding_and_none() -> None:
    file = read_gguf(demo.demo_gguf(print))
    weights, position = file.path.stat().st_size, 18 * 512 * 2  # 18 layers of a key and a value, 256 numbers of f16
    assert memory.needed_by_llama_cpp(file, 8192, "f16") == (weights + 1024 * position, weights + 8192 * position)
    assert memory.needed_by_llama_cpp(file, 512, "f32") == (weights + 1024 * position,) * 2
    assert file.bos == (2, "<bos>")


def test_a_context_beyond_what_the_model_was_trained_for_is_a_warning(folder: Path) -> None:
    found = Doctored("--engine", "ring", "--model", folder, "--context", 5000)
    assert "the model was trained for 4,096" in found.of("context", "warning")
    assert (found.code, found.flawed) == (0, ["context"])


def test_a_prompt_that_does_not_fit_the_context_is_a_problem(folder: Path, made_set: Path) -> None:
    found = Doctored(made_set, "--engine", "ring", "--model", folder, "--context", 700)
    assert found.code == 4
    assert "do not fit into --context 700" in found.of("context", "problem")


def test_a_results_file_of_another_run_is_a_problem(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    with recording(output):
        busy = Doctored("--engine", "ring", "--model", folder, "-o", output)
    assert "another run is writing to it" in busy.of("output", "problem")
    output.touch()
    assert Doctored("--engine", "ring", "--model", folder, "-o", output).flawed == []


@pytest.mark.parametrize(
    ("where", "what"),
    [("/proc/rows.jsonl", "0.00 GB free; make room"), ("/no/rows.jsonl", "there is no folder"), ("/", "is a folder")],
)
def test_a_results_file_that_cannot_be_written_is_a_problem(folder: Path, where: str, what: str) -> None:
    found = Doctored("--engine", "ring", "--model", folder, "-o", where)
    assert found.code == 4
    assert what in found.of("output", "problem")


def test_a_chat_template_that_brings_two_bos_is_a_problem(model_with: Callable[[Any], Path]) -> None:
    tokenizer = byte_tokenizer(bos=True)
    tokenizer.chat_template = "{{ bos_token }}" + CHAT_TEMPLATE
    found = Doctored("--engine", "ring", "--model", model_with(tokenizer))
    assert "2 BOS tokens where one, in front, is needed" in found.of("tokenizer", "problem")


def test_a_set_of_another_tokenizer_is_a_problem(folder: Path, merging_folder: Path, tmp_path: Path) -> None:
    other = prompt_set(tmp_path / "set.jsonl", merging_folder)
    found = Doctored(other, "--engine", "ring", "--model", folder)
    assert "other ids than tokenizer 'merging' made" in found.of("set", "problem")


def test_the_same_ids_of_another_vocabulary_are_a_warning(made_set: Path, model_with: Callable[[Any], Path]) -> None:
    tokenizer = byte_tokenizer([("Ä", "Ä")])
    found = Doctored(made_set, "--engine", "ring", "--model", model_with(tokenizer))
    assert "the vocabulary is another one" in found.of("set", "warning")
    assert found.code == 0


def test_a_manifest_is_a_problem(folder: Path, made_set: Path, tmp_path: Path) -> None:
    from generators import read_prompts, write_prompts

    manifest = tmp_path / "manifest.jsonl"
    write_prompts(manifest, [prompt.manifest_line() for prompt in read_prompts(made_set)])
    assert "this is a manifest" in Doctored(manifest, "--engine", "ring", "--model", folder).of("set", "problem")


def test_chat_prompts_that_end_as_the_template_does_are_fine(chat_set: Path, model_with: Callable[[Any], Path]) -> None:
    found = Doctored(chat_set, "--engine", "ring", "--model", model_with(_chatting(CHAT_TEMPLATE)))
    assert (found.code, found.flawed) == (0, [])
    assert "'<model>'" in found.of("chat", "ok")


@pytest.mark.parametrize(
    ("template", "what"),
    [
        (None, "no chat template"),
        (CHAT_TEMPLATE.replace("{% if add_generation_prompt %}<model>{% endif %}", ""), "adds nothing for the model's"),
        (CHAT_TEMPLATE.replace("<model>", "<assistant>"), "does not end with '<assistant>'"),
    ],
)
def test_chat_prompts_that_the_model_would_not_answer_are_a_problem(
    chat_set: Path, model_with: Callable[[Any], Path], template: str | None, what: str
) -> None:
    tokenizer = byte_tokenizer() if template is None else _chatting(template)
    found = Doctored(chat_set, "--engine", "ring", "--model", model_with(tokenizer))
    assert found.code == 4
    assert what in found.of("chat", "problem")


@pytest.mark.parametrize(
    ("engine", "what"), [("ring", "transformers cannot load it"), ("hf", "cannot load"), ("llama.cpp", "is a folder")]
)
def test_a_model_that_is_not_there_is_one_problem(tmp_path: Path, engine: str, what: str) -> None:
    found = Doctored("--engine", engine, "--model", tmp_path)
    assert found.code == 4
    assert what in found.of("model", "problem")
    assert found.flawed == ["model", "engine"]
