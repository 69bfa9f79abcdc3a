"""`recall doctor`: looks before a long run whether it can end well."""

from pathlib import Path
from typing import Annotated

import typer

from recall.commands.engine_options import EngineArguments, MaxNew, with_engine_options
from recall.commands.probe import ALARM


@with_engine_options
def doctor(
    engine: EngineArguments,
    prompts: Annotated[
        Path | None, typer.Argument(help="The prompt set of the run, made by 'recall generate'.", metavar="SET")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file of rows that the run would write.")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            help="Tokens the engine holds, prompt and answer.",
            show_default="the set's, or all it was trained for",
            min=1,
            max=100_000_000,
        ),
    ] = None,
    max_new: MaxNew = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Look before a long run whether it can end well: versions, memory, context, tokenizer, server, disk, time.

    Each check is a line: ok, a warning or a problem, with the mend. Weights are read only when memory for them is
    there. Give the options of the run itself. Exit code 4: a problem.

    Example: recall doctor set.jsonl --engine ring --model demo -o ring.jsonl
    """
    import json
    from dataclasses import asdict

    from generators import read_prompts
    from generators.lines import shown
    from recall.checkups.findings import IntendedRun, Verdict
    from recall.doctor import examine
    from recall.scoring import Run

    run = Run(max_new=max_new, context=context, references={})
    chosen = read_prompts(prompts) if prompts else []
    findings = []
    options = engine.options()
    for finding in examine(IntendedRun(engine.engine, options, chosen, run, output)):
        findings.append(finding)
        if not as_json:
            typer.echo(f"{finding.verdict:<8} {finding.check:<10} {shown(finding.says, 1000)}")
            if finding.mend:
                typer.echo(f"{'':<19} mend: {shown(finding.mend, 1000)}")
    problems = sum(finding.verdict is Verdict.PROBLEM for finding in findings)
    warnings = sum(finding.verdict is Verdict.WARNING for finding in findings)
    if as_json:
        told = {"engine": engine.engine, "model": options.model_name, "problems": problems, "warnings": warnings}
        typer.echo(json.dumps({**told, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        typer.echo(f"{engine.engine}, {shown(options.model_name)}: {_count(problems, 'problem')}, "
                   f"{_count(warnings, 'warning')}")  # fmt: skip
    if problems:
        raise typer.Exit(ALARM)


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'s' * (number != 1)}"
