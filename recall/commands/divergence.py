"""`recall divergence`: how far two engines' next-token distributions lie apart on the prompts of a set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from recall.divergence import Place, Summary

_SPEC = "'ring', 'hf:demo,dtype=bf16', 'llama.cpp:FILE.gguf,kv_type=f32': ENGINE[:MODEL][,KEY=VALUE...]."


def divergence(
    a: Annotated[str, typer.Argument(help=f"The engine in question. {_SPEC}", metavar="A")],
    b: Annotated[str, typer.Argument(help="The one to compare it with, in the same way.", metavar="B")],
    prompts: Annotated[Path, typer.Option(help="A prompt set made by 'recall generate'.", metavar="SET")],
    last: Annotated[int, typer.Option(help="Positions compared at the end of each prompt.", min=1)] = 16,
    only: Annotated[
        str | None, typer.Option(help="Only these prompts: ids or prompt sizes in tokens, with commas between.")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens the engines hold.", show_default="each prompt's own", min=1, max=100_000_000),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Feed two engines the same ids and measure KL(A||B) between what they expect next, over each prompt's end.

    Both models are held at once. The logits that are compared take positions x vocabulary x 4 bytes, twice.

    Example: recall divergence ring:demo hf:demo,dtype=bf16 --prompts set.jsonl --last 32
    """
    import json
    from dataclasses import asdict

    from generators import read_prompts
    from recall.divergence import check_fit, diverge, summarize
    from recall.engine_specs import open_spec, parse_spec
    from recall.selection import choose

    chosen = choose(read_prompts(prompts), only)
    check_fit(chosen, context)
    specs = [parse_spec(a), parse_spec(b)]
    engines = [open_spec(spec) for spec in specs]
    places: list[Place] = []
    for number, found in enumerate(diverge(engines[0], engines[1], chosen, last, context), 1):
        places += found
        typer.echo(f"[{number}/{len(chosen)}] {found[0].prompt_id}  {_short(summarize(found))}", err=True)
    summary = summarize(places)
    if as_json:
        both = zip("ab", specs, engines, strict=True)
        opened = {name: {"spec": spec.shown, **asdict(engine.info)} for name, spec, engine in both}
        typer.echo(json.dumps({**opened, "prompts": len(chosen), "last": last, **asdict(summary)}, indent=2))
        return
    typer.echo(f"A: {specs[0].shown}\nB: {specs[1].shown}\n{_report(summary, len(chosen))}")


def _short(summary: "Summary") -> str:
    return f"mean KL {summary.mean_kl:.3g}, same top {summary.same_top} of {summary.places}"


def _report(summary: "Summary", prompts: int) -> str:
    error = "" if summary.standard_error is None else f", standard error {summary.standard_error:.2g}"
    percentiles = ", ".join(f"{value:.3g} ({share}%)" for share, value in summary.percentiles.items())
    largest = summary.largest
    low, high = summary.same_top_interval
    return "\n".join(
        [
            f"{summary.places} positions of {prompts} prompts; KL(A||B) in nats",
            f"mean KL      {summary.mean_kl:.4g}{error}",
            f"percentiles  {percentiles}",
            f"largest KL   {largest.kl:.3g}, prompt {largest.prompt_id}, position {largest.position}",
            f"same top     {summary.same_top} of {summary.places} "
            f"({summary.same_top / summary.places:.1%}, 95% interval {low:.1%} to {high:.1%})",
            f"logits       differ by up to {summary.logit_difference:.3g}, a row's shift taken away",
        ]
    )
