"""The `recall` command: puts the commands together and turns what users can mend into one sentence and exit code 2."""

import os
import sys

import typer

from recall.commands.compare import compare
from recall.commands.generate import generate
from recall.commands.plan import plan
from recall.commands.probe import probe
from recall.commands.score import score

app = typer.Typer(
    help="Long-context recall evaluation: does a model still find one record among thousands, and does your engine "
    "give the same answers as the others, the wrong ones included?\n\n"
    "Make prompts by seed (generate), put them to engines (score), lay the answers side by side (compare).\n\n"
    "Exit codes: 0 done; 2 a file, row or option needs mending; 3 done, but some prompts ended in an error; 4 an "
    "alarm of probe.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(generate)
app.command()(score)
app.command()(compare)
app.command()(plan)
app.command()(probe)


def main() -> None:
    """Run the command line."""
    # An installed torch_tpu loads itself with PyTorch, and says so; only a run on a TPU has a use for that.
    if "tpu" not in " ".join(sys.argv):
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    try:
        app()
    except ValueError as error:
        # Imported here: a healthy start must not pay for them.
        from engines import EngineError
        from generators import GeneratorError
        from recall.errors import RecallError

        if not isinstance(error, (EngineError, GeneratorError, RecallError)):
            raise
        print(f"recall: {error}", file=sys.stderr)
        sys.exit(2)
