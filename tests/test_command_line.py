"""The calls that the project promises do what they say, and each that cannot be done ends in one sentence."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from generators import Prompt, PromptTokenizer, read_prompts
from recall import published
from recall.results import ResultRow, read_results
from tests.conftest import Ended, byte_tokenizer, run_recall

# Added to the promised calls: on one thread they cost the least where the processors are shared with others.
ONE_THREAD = "--threads 1"
COLUMNS = ["context", "prompt", "read s", "read tok/s", "decode", "answer", "found", "record"]

# The article's step 11.
ARTICLE = """
 context   prompt  read s read tok/s  decode   answer  found  record  laptop answer  same
   33024       61     0.1       1218    45.2   915965    yes       1         915965   yes
   33024     4081     0.7       5978    45.2   610395    yes      33         610395   yes
   33024    32761     5.0       6601    45.2   319550     no     723         319550   yes
  131328    32761     9.9       3305    38.5   390185    yes     272         390185   yes
  131328   130981    39.8       3288    38.1   567239     no      91         567239   yes
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the promised calls are made, one after the other."""
    return tmp_path_factory.mktemp("calls")


def _done(call: str, folder: Path) -> Ended:
    """Run a promised call with its files in `folder`; it must end well."""
    arguments = [str(folder / word) if word.endswith(".jsonl") else word for word in call.split()[1:]]
    ended = run_recall(*arguments)
    assert ended.code == 0, ended.err
    return ended


@pytest.fixture(scope="module")
def laptop(demo_folder: Path, folder: Path) -> list[Prompt]:
    _done("recall generate --preset laptop --tokenizer demo --format chat -o laptop.jsonl", folder)
    return read_prompts(folder / "laptop.jsonl")


@pytest.fixture(scope="module")
def prompts(demo_folder: Path, folder: Path) -> list[Prompt]:
    call = "recall generate --seed 7 --budget 1024 --budget 4096 --context 8192 --depth 0.25 --count 3"
    _done(f"{call} --tokenizer demo --format completion -o set.jsonl", folder)
    return read_prompts(folder / "set.jsonl")


@pytest.fixture(scope="module")
def one_of_each_size(prompts: list[Prompt]) -> str:
    """Keeps the scoring short: the first prompt of each budget."""
    return f"--only {prompts[0].id},{prompts[3].id} {ONE_THREAD}"


@pytest.fixture(scope="module")
def ring(folder: Path, one_of_each_size: str) -> list[ResultRow]:
    call = "recall score set.jsonl --engine ring --model demo --context 8192 -o ring.jsonl"
    _done(f"{call} {one_of_each_size}", folder)
    return read_results(folder / "ring.jsonl")


@pytest.fixture(scope="module")
def hf(folder: Path, one_of_each_size: str, ring: list[ResultRow]) -> list[ResultRow]:
    call = "recall score set.jsonl --engine hf --model demo -o hf.jsonl --reference ring.jsonl"
    _done(f"{call} {one_of_each_size}", folder)
    return read_results(folder / "hf.jsonl")


def _table(printed: str) -> list[list[str]]:
    """Return the cells of a printed table, its header first; two blanks part two cells of the header."""
    lines = [line for line in printed.splitlines() if re.match(r"\s*(context|\d+ +\d)", line)]
    return [re.split(r"\s{2,}", line.strip()) for line in lines]


def test_generate_makes_the_laptop_set(laptop: list[Prompt]) -> None:
    sizes = [(prompt.context, prompt.prompt_tokens) for prompt in laptop]
    assert sizes == [(33_024, 61), (33_024, 4_081), (33_024, 32_761), (131_328, 32_761), (131_328, 130_981)]
    manifest = read_prompts(published.folder("datasets") / "laptop.jsonl")
    assert [prompt.manifest_line() for prompt in laptop] == manifest


def test_generate_makes_a_set_by_seed(prompts: list[Prompt]) -> None:
    assert [(prompt.budget, prompt.seed) for prompt in prompts] == [(b, s) for b in (1024, 4096) for s in (7, 8, 9)]
    for prompt in prompts:
        assert prompt.budget is not None
        assert prompt.budget - 64 - 30 < prompt.prompt_tokens <= prompt.budget - 64
        assert (prompt.context, prompt.depth, prompt.record) == (8192, 0.25, prompt.records // 4)
        assert (prompt.format, prompt.tokenizer.name) == ("completion", "demo")


def test_ring_and_hf_give_the_demo_model_the_same_answers(ring: list[ResultRow], hf: list[ResultRow]) -> None:
    assert len(ring) == len(hf) == 2
    for mine, other in zip(ring, hf, strict=True):
        assert mine.reply_ids == other.reply_ids
        assert other.agreement["ring"].same is True
        assert other.agreement["ring"].answer == mine.answer
        for row in (mine, other):
            assert (row.status, row.context, row.dtype, row.device) == ("ok", 8192, "fp32", "cpu")
            assert None not in (row.read_s, row.read_tok_s, row.decode_tok_s, row.cache_bytes, row.reply)


def test_compare_lays_two_results_files_side_by_side(folder: Path, ring: list[ResultRow], hf: list[ResultRow]) -> None:
    ended = _done("recall compare ring.jsonl hf.jsonl", folder)
    header, *rows = _table(ended.out)
    assert header == [*COLUMNS, "hf answer", "same"]
    answers = [row.answer or "none" for row in ring]
    assert [[cells[0], cells[1], cells[5], cells[8], cells[9]] for cells in rows] == [
        ["8192", str(row.prompt_tokens), answer, answer, "yes"] for row, answer in zip(ring, answers, strict=True)
    ]
    assert "ring and hf: the same answer on 2 of 2 prompts" in ended.out


def test_compare_of_one_file_shows_the_references_it_was_scored_with(folder: Path, hf: list[ResultRow]) -> None:
    ended = _done("recall compare hf.jsonl", folder)
    assert _table(ended.out)[0] == [*COLUMNS, "ring answer", "same"]
    assert "hf and ring: the same answer on 2 of 2 prompts" in ended.out


def test_the_demo_model_is_scored_on_the_laptop_set_beside_the_laptops_answers(
    folder: Path, laptop: list[Prompt]
) -> None:
    call = "recall score laptop.jsonl --engine ring --model demo --context 33024 --reference laptop --only 61,4081"
    _done(f"{call} -o demo-laptop.jsonl {ONE_THREAD}", folder)
    rows = read_results(folder / "demo-laptop.jsonl")
    assert [(row.prompt_tokens, row.context) for row in rows] == [(61, 33_024), (4_081, 33_024)]
    assert [row.agreement["laptop"].answer for row in rows] == ["915965", "610395"]
    for row in rows:
        assert row.agreement["laptop"].same == (row.answer == row.code)


def test_compare_prints_the_articles_table_of_the_published_runs() -> None:
    ended = run_recall("compare", "tpu-v5e-ring", "laptop")
    assert ended.code == 0
    header, *rows = _table(ended.out)
    article = ARTICLE.strip("\n").splitlines()
    assert header == [*COLUMNS, "laptop answer", "same"]
    assert " ".join(header).split() == article[0].split()
    assert rows == [line.split() for line in article[1:]]
    lines = ended.out.splitlines()
    assert "tpu-v5e-ring and laptop: the same answer on 5 of 5 prompts, 2 of them wrong ones" in lines
    for name in ("tpu-v5e-ring", "laptop"):
        assert [name, "3", "5", "60.0%"] in [line.split()[:4] for line in lines]


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        ([], {"torch", "transformers", "numpy", "pydantic"}),
        (["--help"], {"torch", "transformers", "numpy", "pydantic"}),
        (["generate", "--help"], {"torch", "transformers", "numpy"}),  # typer's own options load pydantic
        (["score", "--help"], {"torch", "transformers", "numpy"}),
        (["compare", "--help"], {"torch", "transformers", "numpy"}),
    ],
)
def test_help_imports_nothing_heavy(arguments: list[str], heavy: set[str]) -> None:
    program = (
        "import sys\n"
        "from recall.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        f"print({heavy} & set(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert "Usage:" in done.stdout
    assert done.stderr == "set()\n"


def test_help_names_every_command_and_the_exit_codes() -> None:
    out = run_recall("--help").out
    assert all(word in out for word in ("generate", "score", "compare", "Exit codes: 0 done; 2", "3 done, but"))


# Cheap sets from here on: a byte is a token, and the answers need no model.


@pytest.fixture(scope="module")
def small_folder(byte_folder: Path, merging_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds tokenizers, a set, its oracle's rows, and files that are no use."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "bytes").symlink_to(byte_folder)
    (folder / "merging").symlink_to(merging_folder)
    byte_tokenizer().save_pretrained(folder / "plain")
    bytes_512 = f"recall generate --budget 512 --tokenizer {folder / 'bytes'}"
    _done(f"{bytes_512} --budget 1024 -o set.jsonl", folder)
    _done(f"{bytes_512} --manifest -o manifest.jsonl", folder)
    _done(f"recall score set.jsonl --engine oracle --model {folder / 'bytes'} -o oracle.jsonl", folder)
    (folder / "empty.jsonl").touch()
    (folder / "cut.jsonl").write_text((folder / "set.jsonl").read_text()[:500])
    (folder / "folder").mkdir()
    rows = (folder / "oracle.jsonl").read_text()
    (folder / "folder" / "oracle.jsonl").write_text(rows)
    (folder / "other.jsonl").write_text(re.sub(r'"code":"\d{6}"', '"code":"000000"', rows))
    return folder


@pytest.fixture
def small(small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Ended]:
    """Return what runs a command in a copy of that folder."""
    shutil.copytree(small_folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return lambda call: run_recall(*call.split())


REFUSED = {
    # generate
    "generate -o new.jsonl": "no --budget given: say how many tokens a prompt may have",
    "generate --budget 512 --tokenizer bytes -o set.jsonl": "set.jsonl is there already: remove it, or give another -o",
    "generate --budget 512 --tokenizer bytes -o none/new.jsonl": "none/new.jsonl: its folder is not there; make it",
    "generate --budget 512 --tokenizer folder -o new.jsonl": "tokenizer 'folder' cannot be loaded: give `demo`, a ",
    "generate --budget 512 --tokenizer plain -o new.jsonl": "tokenizer 'plain' has no chat template: use --format",
    "generate --budget 99 --tokenizer bytes -o new.jsonl": "--budget 99 is too small for one record",
    "generate --budget 512 --context 256 -o new.jsonl": "--budget 512 does not fit into --context 256",
    "generate --budget 512 --depth 2 -o new.jsonl": "--depth 2.0: give a share of the way in, from 0 to 1",
    "generate --budget 512 --record 0 -o new.jsonl": "--record 0: records are numbered from 1",
    "generate --budget 512 --record 99 --tokenizer bytes -o new.jsonl": "--record 99: a prompt of --budget 512 holds",
    "generate --budget 512 --count 0 -o new.jsonl": "--count 0: give 1 or more",
    "generate --budget 512 --seed -1 -o new.jsonl": "--seed -1: give 0 or more",
    "generate --budget 512 --budget 512 -o new.jsonl": "is given twice: give each value once",
    "generate --preset desktop -o new.jsonl": "--preset 'desktop' is unknown: give one of laptop",
    "generate --preset laptop --budget 512 -o new.jsonl": "--preset laptop fixes its own --budget: leave --budget out",
    "generate --preset laptop --seed 0 -o new.jsonl": "--preset laptop fixes its own --seed: leave --seed out",
    "generate --preset laptop --depth 0 -o new.jsonl": "--preset laptop fixes its own --depth: leave --depth out",
    # score
    "score none.jsonl --engine oracle -o new.jsonl": "none.jsonl: cannot be read (No such file or directory)",
    "score cut.jsonl --engine oracle -o new.jsonl": "cut.jsonl, line 1: not a prompt row (the line: Invalid JSON",
    "score oracle.jsonl --engine oracle -o new.jsonl": "oracle.jsonl, line 1: not a prompt row (",
    "score empty.jsonl --engine oracle -o new.jsonl": "empty.jsonl: holds no prompts; make a set with",
    "score manifest.jsonl --engine oracle --model bytes -o new.jsonl": "has no text: this is a manifest",
    "score set.jsonl --engine none -o new.jsonl": "--engine 'none' is unknown: give one of ring, hf, llama.cpp, server",
    "score set.jsonl --engine oracle --model folder -o new.jsonl": "--model 'folder' has no tokenizer that",
    "score set.jsonl --engine hf --model folder -o new.jsonl": "--model 'folder': transformers cannot load it (",
    "score set.jsonl --engine ring --model plain -o new.jsonl": "--model 'plain': transformers cannot load it (",
    "score set.jsonl --engine ring --model demo --device tpu9 -o new.jsonl": "--device 'tpu9'",
    "score set.jsonl --engine recorded --model none -o new.jsonl": "'none' is neither a results file nor a published",
    "score set.jsonl --engine recorded --model empty.jsonl -o new.jsonl": "holds no rows",
    "score set.jsonl --engine oracle --model merging -o new.jsonl": "merging makes other ids from it than tokenizer",
    "score set.jsonl --engine oracle --model bytes -o set.jsonl": "set.jsonl, line 1: not a result row (",
    "score set.jsonl --engine oracle --model bytes -o folder": "folder: cannot be written (Is a directory); give",
    "score set.jsonl --engine oracle --model bytes -o none/new.jsonl": "none/new.jsonl: cannot be written (No such",
    "score set.jsonl --engine oracle --context 400 -o new.jsonl": "they do not fit into --context 400; give a larger",
    "score set.jsonl --engine oracle --only 7 -o new.jsonl": "--only 7: the set has no prompt of that id or size; its",
    "score set.jsonl --engine oracle --only , -o new.jsonl": "--only names no prompts: give ids or sizes with commas",
    "score set.jsonl --engine oracle --reference none -o new.jsonl": "'none' is neither a results file nor a publis",
    "score set.jsonl --engine oracle --reference other.jsonl -o new.jsonl": "other: its row for prompt 'chat-s0-c1024",
    "score set.jsonl --engine oracle --reference oracle.jsonl --reference folder/oracle.jsonl -o new.jsonl": (
        "--reference folder/oracle.jsonl: another one is called oracle too; rename one of the two files"
    ),
    # compare
    "compare none.jsonl": "'none.jsonl' is neither a results file nor a published run: give a path, or one of",
    "compare set.jsonl": "set.jsonl, line 1: not a result row (",
    "compare empty.jsonl": "empty.jsonl: holds no rows yet; score the set first",
    "compare oracle.jsonl other.jsonl": "oracle and other answer different prompts under the id 'chat-s0-c1024-b512",
    "compare oracle.jsonl oracle.jsonl oracle.jsonl": "oracle.jsonl is given twice: give each results file once",
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_cannot_be_done_is_refused_in_one_sentence_with_exit_code_2(
    small: Callable[[str], Ended], call: str
) -> None:
    ended = small(call)
    assert ended.code == 2
    (sentence,) = ended.err.splitlines()
    assert sentence.startswith("recall: ")
    assert REFUSED[call] in sentence
    assert ended.out == ""
    assert not Path("new.jsonl").exists() or not Path("new.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        ("generate --budget 512", "Missing option '-o'"),
        ("generate --budget 0 -o new.jsonl", "--budget"),
        ("generate --budget many -o new.jsonl", "--budget"),
        ("generate --budget 512 --format essay -o new.jsonl", "--format"),
        ("generate --budget 512 --answer-room -1 -o new.jsonl", "--answer-room"),
        ("score set.jsonl -o new.jsonl", "Missing option '--engine'"),
        ("score set.jsonl --engine oracle --dtype fp8 -o new.jsonl", "--dtype"),
        ("score set.jsonl --engine oracle --max-new 0 -o new.jsonl", "--max-new"),
        ("compare", "Missing argument"),
        ("compare --colour red laptop", "--colour"),
        ("translate", "translate"),
    ],
)
def test_a_call_that_is_written_wrongly_ends_with_exit_code_2(
    small: Callable[[str], Ended], call: str, complaint: str
) -> None:
    ended = small(call)
    assert ended.code == 2
    assert complaint in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("start", [["-m", "recall"], ["-c", "from recall.cli import main; main()"]])
def test_a_process_of_its_own_ends_in_the_same_way(tmp_path: Path, start: list[str]) -> None:
    command = [sys.executable, *start, "score", "none.jsonl", "--engine", "oracle", "-o", "new.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"recall: none\.jsonl: cannot be read .*\n", done.stderr)


def test_a_prompt_that_ends_in_an_error_gives_exit_code_3_also_when_started_again(
    small: Callable[[str], Ended],
) -> None:
    first = Path("oracle.jsonl").read_text().splitlines(keepends=True)[0]
    Path("one.jsonl").write_text(first)
    for _ in range(2):
        ended = small("score set.jsonl --engine recorded --model one.jsonl -o new.jsonl")
        assert ended.code == 3
        assert "new.jsonl: 2 rows, 1 found" in ended.err
    assert [row.status for row in read_results(Path("new.jsonl"))] == ["ok", "error"]


def test_compare_tells_errors_several_codes_shared_records_and_rows_that_one_side_lacks(
    small: Callable[[str], Ended],
) -> None:
    good = [json.loads(line) for line in Path("oracle.jsonl").read_text().splitlines()]
    nothing: dict[str, Any] = {"answer": None, "codes": [], "found": False, "record": None}
    several = nothing | {"codes": ["111111", "222222"], "outcome": "several-codes", "reply": "111111, 222222"}
    shared = {"answer": "333333", "codes": ["333333"], "outcome": "other-record", "found": False, "record": [2, 3]}
    error = nothing | {"status": "error", "outcome": None, "reply": None, "note": "it broke"}
    rows = [good[0] | several, good[1] | shared, good[1] | error | {"prompt_id": "a"}, good[1] | {"prompt_id": "b"}]
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    theirs = [good[0] | several, good[1] | {"prompt_id": "a"}, good[1] | error | {"prompt_id": "b"}]
    Path("theirs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in theirs))
    ended = small("compare mine.jsonl theirs.jsonl")
    assert ended.code == 0
    code = good[1]["code"]
    assert [cells[5:] for cells in _table(ended.out)[1:]] == [
        ["several", "no", "-", "several", "yes"],
        ["333333", "no", "2|3", "-", "-"],
        ["error", "-", "-", code, "-"],
        [code, "yes", str(good[1]["record"]), "error", "-"],
    ]
    lines = ended.out.splitlines()
    assert "mine and theirs: the same answer on 1 of 1 prompts, 1 of them wrong ones" in lines
    assert lines[-1] == "1 of 4 prompts of mine have no row in theirs"
    words = [line.split() for line in lines]
    assert ["mine", "1", "3", "33.3%", "6.1%", "to", "79.2%", "0", "1"] in words
    assert ["theirs", "1", "2", "50.0%", "9.5%", "to", "90.5%", "0", "1"] in words


def test_only_takes_ids_and_sizes_and_keeps_the_sets_order(small: Callable[[str], Ended]) -> None:
    first, second = read_prompts(Path("set.jsonl"))
    call = "score set.jsonl --engine oracle --model bytes --only"
    assert small(f"{call} {second.prompt_tokens},{first.id},{first.id} -o new.jsonl").code == 0
    assert [row.prompt_id for row in read_results(Path("new.jsonl"))] == [first.id, second.id]


def test_a_preset_that_comes_out_otherwise_than_its_manifest_is_refused(
    gemma: PromptTokenizer, small: Callable[[str], Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (published.folder("datasets") / "laptop.jsonl").read_text()
    Path("laptop.jsonl").write_text(re.sub(r'"sha256":"[0-9a-f]{64}"', f'"sha256":"{"0" * 64}"', rows, count=1))
    monkeypatch.setattr(published, "folder", lambda kind: Path())
    ended = small("generate --preset laptop --tokenizer demo -o new.jsonl")
    assert (ended.code, Path("new.jsonl").exists()) == (2, False)
    assert "prompt 'laptop-33024-1' came out otherwise than its published manifest says" in ended.err
