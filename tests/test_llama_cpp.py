"""llama.cpp gives the ring engine's tokens where the weights are the same; none of its processes is left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from engines import EngineError, EngineOptions, LlamaCppOptions, Request
from engines.gguf_export import export_gguf
from engines.llama_cpp import LlamaCppEngine
from engines.ring import RingEngine
from generators import Prompt, PromptTokenizer, make_prompts, seeded_specs, write_prompts
from recall.results import ResultRow, read_results
from recall.scoring import Run, score
from tests.conftest import run_recall

CONTEXT = 4352


@pytest.fixture(scope="module")
def f32(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The demo model's weights as ring has them, in F32; a gigabyte."""
    file = tmp_path_factory.mktemp("gguf") / "demo-f32.gguf"
    export_gguf(EngineOptions(demo_folder, "demo"), file, lambda _: None)
    yield file
    file.unlink()


@pytest.fixture(scope="module")
def prompts(gemma: PromptTokenizer) -> list[Prompt]:
    """Prompts of about 0.5k, 1k, 2k and 4k tokens."""
    specs = seeded_specs("completion", seed=5, budgets=[512, 1024, 2048], contexts=[CONTEXT], depths=[0.3])
    # Of another seed: 4,096 tokens of seed 5 lead to two tokens 0.001 apart, closer than llama.cpp rounds.
    specs += seeded_specs("completion", seed=7, budgets=[4096], contexts=[CONTEXT], depths=[0.9])
    return list(make_prompts(specs, gemma, "completion"))


def _open(file: Path, threads: int = 1, **own: Any) -> LlamaCppEngine:
    return LlamaCppEngine(EngineOptions(file, file.stem, threads=threads, llama_cpp=LlamaCppOptions(**own)))


@pytest.fixture
def small(small_gguf: Path) -> Iterator[LlamaCppEngine]:
    engine = _open(small_gguf, threads=1)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def small_gguf(small_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of a few kilobytes."""
    file = tmp_path_factory.mktemp("gguf") / "small.gguf"
    export_gguf(EngineOptions(small_model("llama"), "small"), file, lambda _: None)
    return file


def _request(ids: list[int], **others: Any) -> Request:
    return Request("asked", ids, **{"max_new": 8, "context": 512} | others)


def _children() -> list[int]:
    """Return the processes that this one has started and that are not gone."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8")
    return [int(child) for child in listed.split()]


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ring_and_llama_cpp_give_the_same_tokens_on_the_same_weights(
    demo_folder: Path, f32: Path, prompts: list[Prompt]
) -> None:
    ring = RingEngine(EngineOptions(demo_folder, "demo", threads=1))
    llama_cpp = _open(f32)
    for prompt in prompts:
        assert prompt.text is not None
        ids = ring.encode(prompt.text)
        assert llama_cpp.encode(prompt.text) == ids
        request = Request(prompt.id, ids, max_new=12, context=CONTEXT, stop=prompt.stop)
        mine, other = ring.complete(request, lambda _: None), llama_cpp.complete(request, lambda _: None)
        # llama-server leaves out the token that holds `stop`, the line's end.
        assert other.ids
        assert mine.ids is not None
        assert mine.ids[: len(other.ids)] == other.ids
        assert (mine.text.strip(), mine.finish) == (other.text.strip(), other.finish)
        assert len(mine.ids) - len(other.ids) == (mine.finish == "stop")
        assert other.tokens_read == len(ids)
        assert mine.choices is not None
        assert other.choices is not None
        for choice, its in zip(mine.choices, other.choices, strict=False):
            assert choice.logprob == pytest.approx(its.logprob, abs=0.03)
    llama_cpp.close()


def test_the_demo_file_is_scored_and_its_rows_name_its_weights(tmp_path: Path, prompts: list[Prompt]) -> None:
    write_prompts(tmp_path / "set.jsonl", prompts[:2])
    output = tmp_path / "demo.jsonl"
    ended = run_recall("score", tmp_path / "set.jsonl", "--engine", "llama.cpp", "--threads", 1, "-o", output)
    assert ended.code == 0, ended.err
    for row, prompt in zip(read_results(output), prompts, strict=False):
        assert (row.engine, row.model, row.dtype, row.device) == ("llama.cpp", "demo", "Q4_K_M", "cpu")
        assert row.settings == {"kv_type": "f16", "flash_attention": True, "threads": 1}
        assert (row.status, row.window, row.context) == ("ok", 512, CONTEXT)
        assert row.tokens_sent == row.tokens_read == prompt.prompt_tokens
        assert row.versions["xllamacpp"]
        assert None not in (row.read_s, row.read_tok_s, row.decode_tok_s, row.reply_ids, row.answer_tokens)


def test_a_file_is_scored_end_to_end_and_agrees_with_ring(f32: Path, tmp_path: Path, prompts: list[Prompt]) -> None:
    write_prompts(tmp_path / "set.jsonl", prompts[:1])
    ring, llama_cpp = tmp_path / "ring.jsonl", tmp_path / "llama.jsonl"
    call = ("score", tmp_path / "set.jsonl", "--threads", 1)
    assert run_recall(*call, "--engine", "ring", "-o", ring).code == 0
    options = ("--kv-type", "f32", "--no-flash-attention", "--reference", ring)
    ended = run_recall(*call, "--engine", "llama.cpp", "--model", f32, *options, "-o", llama_cpp)
    assert ended.code == 0, ended.err
    (row,) = read_results(llama_cpp)
    assert (row.model, row.dtype) == ("demo-f32", "F32")
    assert row.settings == {"kv_type": "f32", "flash_attention": False, "threads": 1}
    assert row.agreement["ring"].same is True


@pytest.fixture(scope="module")
def short(demo_folder: Path, gemma: PromptTokenizer) -> tuple[Request, list[int]]:
    """A short prompt, and what the ring engine answers."""
    specs = seeded_specs("completion", seed=5, budgets=[256], contexts=[512], depths=[0.3])
    (prompt,) = make_prompts(specs, gemma, "completion")
    ring = RingEngine(EngineOptions(demo_folder, "demo", threads=1))
    request = Request(prompt.id, ring.encode(prompt.text or ""), max_new=4, context=512)
    return request, ring.complete(request, lambda _: None).ids or []


@pytest.mark.parametrize(
    ("kv_type", "flash_attention"), [("f32", True), ("f32", False), ("f16", True), ("f16", False), ("q8_0", True)]
)
def test_every_setting_gives_the_same_tokens_on_the_same_weights(
    f32: Path, short: tuple[Request, list[int]], kv_type: str, flash_attention: bool
) -> None:
    request, ids = short
    engine = _open(f32, kv_type=kv_type, flash_attention=flash_attention)
    assert engine.complete(request, lambda _: None).ids == ids
    engine.close()


def test_gemmas_tokenizer_is_written_whole(f32: Path, gemma: PromptTokenizer, demo_folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(demo_folder)
    texts = [
        "<bos><start_of_turn>user\nHi<end_of_turn>\n",
        "  two  blanks\t\ttabs\n\n\n",
        "naïve ½ → 東京 🤗",
        "123,456.",
    ]
    engine = _open(f32)
    for text in texts:
        assert engine.encode(text) == tokenizer.encode(text, add_special_tokens=False)
    engine.close()


def test_a_prompt_that_does_not_fit_is_refused_before_llama_cpp_is_started(small: LlamaCppEngine) -> None:
    before = _children()
    with pytest.raises(EngineError, match="they do not fit into a context of 512"):
        small.complete(_request([0] * 505), lambda _: None)
    assert _children() == before


def test_a_context_longer_than_the_model_was_trained_for_is_noted(small: LlamaCppEngine) -> None:
    assert small.complete(_request([0, 5], context=4096), lambda _: None).note is None
    note = small.complete(_request([0, 5], context=4097), lambda _: None).note
    assert note == "the context of 4097 is longer than the 4096 tokens the model was trained for"


def test_another_context_gets_another_process_and_the_old_one_is_gone(small: LlamaCppEngine) -> None:
    before = set(_children())
    started = []
    for context in (512, 512, 1024):
        small.complete(_request([0, 5, 6], context=context), lambda _: None)
        (process,) = set(_children()) - before
        started.append(process)
    assert started[0] == started[1] != started[2]
    small.close()
    assert set(_children()) == before


class _Killed(LlamaCppEngine):
    """Its process is killed in the middle of its second answer."""

    asked = 0

    def complete(self, request: Request, on_read: Callable[[int], None]) -> Any:
        self.asked += 1
        if self.asked == 2:
            (process,) = [child for child in _children() if "llama_cpp_process" in _command(child)]
            os.kill(process, signal.SIGSTOP)  # so that no answer is faster than its end
            threading.Timer(0.3, os.kill, (process, signal.SIGKILL)).start()
        return super().complete(request, on_read)


def _command(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8")


class _Silent:
    """Progress that nobody looks at."""

    def prompt_begins(self, prompt: Prompt) -> None:
        pass

    def tokens_read(self, count: int) -> None:
        pass

    def prompt_ends(self, row: ResultRow) -> None:
        pass


def test_a_killed_process_is_an_error_row_and_the_next_prompt_is_answered(
    small_gguf: Path, small_model: Callable[[str], Path]
) -> None:
    counter = PromptTokenizer(small_model("llama"), name="bytes")
    specs = seeded_specs("completion", seed=1, budgets=[512], contexts=[], depths=[0.5], count=3)
    few = list(make_prompts(specs, counter, "completion"))
    engine = _Killed(EngineOptions(small_gguf, "small", threads=1))
    rows = list(score(engine, few, Run(max_new=4, context=1024, references={}), _Silent()))
    engine.close()
    assert [row.status == "error" for row in rows] == [False, True, False]
    assert rows[1].note is not None
    assert "llama.cpp's process ended (exit code -9); the next prompt gets a new one" in rows[1].note


def test_an_answer_that_takes_too_long_is_given_up_and_the_next_prompt_is_answered(small_gguf: Path) -> None:
    engine = _open(small_gguf, threads=1, timeout_s=4.0)
    answer = engine.complete(_request([0, 5, 6]), lambda _: None)
    (process,) = [child for child in _children() if "llama_cpp_process" in _command(child)]
    os.kill(process, signal.SIGSTOP)
    with pytest.raises(EngineError, match=r"prompt 'asked': llama\.cpp took longer than 4 s .* a larger --timeout"):
        engine.complete(_request([0, 5, 6]), lambda _: None)
    assert engine.complete(_request([0, 5, 6]), lambda _: None).ids == answer.ids
    engine.close()


OPEN_AND_SAY = """
import sys
from pathlib import Path
from engines import EngineOptions, Request
from engines.llama_cpp import LlamaCppEngine
engine = LlamaCppEngine(EngineOptions(Path(sys.argv[1]), "small", threads=1))
engine.complete(Request("asked", [0, 5], max_new=4, context=512), lambda _: None)
print(engine._process._process.pid, flush=True)
"""


@pytest.mark.parametrize("end", ["", "sys.stdin.read()"])
def test_no_process_is_left_behind_when_its_parent_ends_or_is_killed(small_gguf: Path, end: str) -> None:
    command = [sys.executable, "-c", OPEN_AND_SAY + end, str(small_gguf)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        process = int(parent.stdout.readline())
        if end:
            assert _alive(process)
            parent.kill()
    assert parent.returncode == (-signal.SIGKILL if end else 0)
    _wait_until(lambda: not _alive(process))


def test_a_process_ends_with_its_parent_while_it_still_loads(f32: Path) -> None:
    command = [sys.executable, "-c", OPEN_AND_SAY, str(f32)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        _wait_until(lambda: bool(children.read_text(encoding="utf-8")))
        process = int(children.read_text(encoding="utf-8"))
        parent.kill()
    _wait_until(lambda: not _alive(process))


def test_what_llama_cpp_itself_cannot_run_is_said_in_its_own_words(tmp_path: Path, small_gguf: Path) -> None:
    strange = tmp_path / "strange.gguf"
    strange.write_bytes(small_gguf.read_bytes().replace(b"llama", b"lmama"))
    engine = _open(strange, threads=1)
    with pytest.raises(EngineError, match="unknown model architecture: 'lmama'"):
        engine.encode("a")


def test_settings_that_llama_cpp_does_not_have_together_are_refused(small_gguf: Path) -> None:
    with pytest.raises(EngineError, match="--kv-type q8_0 works with --flash-attention only"):
        _open(small_gguf, kv_type="q8_0", flash_attention=False)


def test_a_missing_package_is_one_sentence(small_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.llama_cpp.find_spec", lambda _: None)
    with pytest.raises(EngineError, match=r"the package xllamacpp, .* pip install 'recall\[llama-cpp\]'"):
        _open(small_gguf)
