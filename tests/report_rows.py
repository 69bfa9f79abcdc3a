"""A sweep made by hand: rows such as three engines would give, for the report to show."""

import random
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from recall.results import ResultRow
from recall.scoring import judge
from tests.made_rows import choices, write

LENGTHS = [4096, 8192, 16384, 32704]
DEPTHS = [place / 10 for place in range(11)]
SEEDS = 3
WINDOW, RECORD, HEAD = 1024, 30, 31  # tokens


def sweep_rows(engine: str, *, skill: float, **fields: Any) -> list[ResultRow]:
    """Return the rows of an engine that finds less the longer the prompt is, and least in its middle.

    Two engines of one skill give the same answers. `fields` take the place of a row's own.
    """
    return [
        _row(engine, length, depth, seed, skill).model_copy(update=fields)
        for length in LENGTHS
        for depth in DEPTHS
        for seed in range(SEEDS)
    ]


def report_runs(folder: Path) -> list[Path]:
    """Write the results files of three engines: two of one skill that part once, and a worse one with failed rows."""
    ring = sweep_rows("ring", skill=0.5)
    hf = sweep_rows("hf", skill=0.5, settings={"attention": "sdpa"}, cache_bytes=410_000_000, read_tok_s=910.0)
    # On one prompt rounding decides between two tokens, on another it does not explain what both think of them.
    near, far = 8, 77
    ring[near], hf[near] = _parted(ring[near], 0.001), _parted(hf[near], -0.001)
    ring[far], hf[far] = _parted(ring[far], 2.0), _parted(hf[far], -2.0)
    server = sweep_rows("server", skill=0.3, dtype=None, window=None, cache_bytes=None, asked_from_end=None)
    server = [row.model_copy(update={"answer_from_end": None}) for row in server]
    nothing: dict[str, Any] = {"found": False, "reply": None, "outcome": None, "record": None, "answer": None}
    lost = {"status": "error", "note": "the server hung up after 3 tries", "codes": []} | nothing
    cut = {"status": "invalid", "note": "the server read 8,190 of 16,384 tokens", "codes": [], "found": False}
    for number in (5, 50, 51):
        server[number] = server[number].model_copy(update=lost)
    server[90] = server[90].model_copy(update=cut)
    files: Mapping[str, list[ResultRow]] = {"ring": ring, "hf": hf, "llama-server": server}
    return [write(folder / f"{name}.jsonl", rows) for name, rows in files.items()]


def _row(engine: str, length: int, depth: float, seed: int, skill: float) -> ResultRow:
    drawn = random.Random(f"{length} {depth} {seed}")
    records = (length - 64 - HEAD) // RECORD
    source = random.Random(seed)
    codes = [str(source.randint(100000, 999999)) for _ in range(records)]
    asked = max(1, round(depth * records))
    tokens = HEAD + RECORD * records
    hardness = 0.25 + 0.3 * LENGTHS.index(length) - 0.6 * abs(depth - 0.5)
    if drawn.random() > hardness * (1.4 - skill):
        reply = codes[asked - 1]
    else:
        other = drawn.choice([drawn.randrange(records), records - 1 - drawn.randrange(min(30, records)), None, None])
        wrong = [f"{(int(codes[asked - 1]) + 3) % 1000000:06}", "I cannot find that record.", "111111 or 222222"]
        reply = drawn.choice(wrong) if other is None else codes[other]
    verdict = judge(reply, asked, codes)
    record = verdict.record[0] if isinstance(verdict.record, list) else verdict.record
    prompt_id = f"completion-s{seed}-c32768-b{length}-d{depth}"
    return ResultRow(
        prompt_id=prompt_id,
        prompt_sha256=sha256(prompt_id.encode()).hexdigest(),
        engine=engine,
        model="demo",
        dtype="fp32",
        device="cpu",
        settings={"mode": "eager"},
        context=32768,
        prompt_tokens=tokens,
        max_new=64,
        records=records,
        asked_record=asked,
        seed=seed,
        budget=length,
        depth=depth,
        code=codes[asked - 1],
        reply=f" {reply}.\n",
        finish="stop",
        window=WINDOW,
        asked_from_end=tokens - 20 - RECORD * (asked - 1),
        answer_from_end=None if record is None else tokens - 20 - RECORD * (record - 1),
        read_tok_s=1500 - length / 50 + seed,
        decode_tok_s=24 - length / 4096,
        cache_bytes=48_758_784,
        versions={"recall": "0.1.0", "torch": "2.13.0+cpu"},
        answer=None,
        codes=[],
        outcome=None,
        found=False,
        record=None,
    ).model_copy(update=verdict.fields())


def _parted(row: ResultRow, preferred: float) -> ResultRow:
    """Return the row with a reply of one token of two; the first is `preferred` to the second by so many nats."""
    reply = row.code if preferred > 0 else "123456"
    told = choices(dict(sorted({7: -1 + preferred, 8: -1.0}.items(), key=lambda token: -token[1])))
    verdict = judge(reply, 1, [row.code])
    fields = {"record": row.asked_record, "answer_from_end": row.asked_from_end} if verdict.record else {}
    return row.model_copy(update=verdict.fields() | told | {"reply": f" {reply}.\n", "answer_from_end": None} | fields)
