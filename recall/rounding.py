"""Says how far rounding alone can move the log-probabilities of two engines that compute the same model."""

from recall.results import ResultRow

# By a run's arithmetic: the most that rounding moves a log-probability away from what exact arithmetic would give, in
# nats. Two runs lie at most the sum of theirs apart. Weights that are packed into fewer bits are not in the table: an
# engine that unpacks them in another order, or multiplies them by numbers that it rounds to 8 bits, is off by more
# than rounding, and by how much is up to the model.
ROUNDING = {
    # Seen between ring and hf, demo model, prompts of 952 and 4012 tokens: 4.4e-5 at most, 1.9e-6 in the median. Larger
    # models and longer contexts add up more numbers. A window one too narrow moved that model's by up to 0.03.
    "fp32": 0.001,
    # Seen between ring in bf16 and in fp32, demo model, 20 prompts of 172 to 4012 tokens: 0.26 at most, 0.03 median.
    # 8 bits of a number are kept, so that a logit of 32 to 64 alone is rounded by up to 0.125.
    "bf16": 0.5,
    # It computes in fp32, but takes GELU from a table of 16-bit numbers: its logits were 0.02 to 0.09 from those of an
    # fp32 engine, with every kind of KV cache that is no narrower than f16.
    "llama.cpp F32": 0.1,
}


def arithmetic(row: ResultRow) -> str:
    """Return in words what a run computed in; the words of a row whose rounding is known are a key of `ROUNDING`."""
    if row.dtype is None:
        return "numbers that it does not tell"
    if row.engine == "llama.cpp":
        cache = row.settings.get("kv_type")
        narrow = f", {cache} cache" if cache not in (None, "f16", "f32") else ""
        return f"llama.cpp {row.dtype}{narrow}"
    # A TPU may multiply numbers of 32 bits as numbers of 16.
    told = row.dtype == "fp32" and not (row.device or "").startswith(("cpu", "cuda"))
    return f"{row.dtype} on {row.device or 'a device that it does not tell'}" if told else row.dtype


def explained(a: ResultRow, b: ResultRow) -> float | None:
    """Return the largest difference of log-probabilities, in nats, that rounding explains; None: nobody knows."""
    known = [ROUNDING.get(arithmetic(row)) for row in (a, b)]
    return None if None in known else sum(value for value in known if value is not None)
