"""The options that put a run on a Ray cluster: the same ones for every command that scores."""

from typing import Annotated

import typer

_PANEL = "On several GPUs or machines"

RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        help="Answer on a Ray cluster: HOST:PORT of its head. 'auto': that of RAY_ADDRESS, or the one started here by "
        "'ray start', or else one for this run on this machine. 'local': always the last.",
        rich_help_panel=_PANEL,
    ),
]
RayWorkers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Engines on the cluster, each with a GPU (--device cuda), --threads CPUs, or an even share of them.",
        show_default="as many as it has room for; without --threads one a machine",
        rich_help_panel=_PANEL,
        min=1,
    ),
]
