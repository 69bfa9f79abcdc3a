"""The `recall` command: puts the commands together and turns what users can mend into one sentence and exit code 2."""

import os
import sys

import typer

from recall.commands.compare import compare
from recall.commands.divergence import divergence
from recall.commands.doctor import doctor
from recall.commands.export_gguf import export_gguf
from recall.commands.generate import generate
from recall.commands.merge import merge
from recall.commands.plan import plan
from recall.commands.probe import probe
from recall.commands.report import report
from recall.commands.rescore import rescore
from recall.commands.score import score
from recall.commands.sweep import sweep

app = typer.Typer(
    help="Long-context recall evaluation: does a model still find one record among thousands, and does your engine "
    "give the same answers as the others, the wrong ones included?\n\n"
    "Make prompts by seed (generate), put them to engines (score), lay the answers side by side (compare).\n\n"
    "Exit codes: 0 done; 2 a file, row or option needs mending; 3 done, but some prompts ended in an error or did not "
    "reach the model whole; 4 an alarm of probe, a problem of doctor, or compare "
    "--fail-below.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(generate)
app.command()(score)
app.command()(sweep)
app.command()(rescore)
app.command()(merge)
app.command()(compare)
app.command()(report)
app.command()(divergence)
app.command()(doctor)
app.command()(plan)
app.command()(probe)
app.command()(export_gguf)


def main() -> None:
    """Run the command line."""
    # An installed torch_tpu loads itself with PyTorch, and says so; only a run on a TPU has a use for that.
    if "tpu" not in " ".join(sys.argv):
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    try:
        app()
    except (OSError, ValueError) as error:
        # Imported here: a healthy start must not pay for them.
        from engines import EngineError
        from generators import GeneratorError
        from generators.lines import shown
        from recall.errors import RecallError

        if isinstance(error, (EngineError, GeneratorError, RecallError)):
            sentence = str(error)
        elif isinstance(error, OSError) and error.filename is not None:
            sentence = f"{error.filename}: {error.strerror}; give another name, or make room or access for it"
        else:
            raise
        # What a file holds may be in it: nothing that moves a cursor, and no end of the sentence but its own.
        print(f"recall: {shown(sentence, 2000)}", file=sys.stderr)
        sys.exit(2)
