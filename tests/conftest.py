"""What the tests share: the real demo model, small random models of several families, and a tokenizer of bytes."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from generators import PromptTokenizer
from recall import cli, demo
from tests.small_models import CONFIGS

# The same examples in every run, and none is refused for its time: the machine may be busy.
settings.register_profile(
    "same", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<user>{{ message['content'] }}</user>{% endfor %}"
    "{% if add_generation_prompt %}<model>{% endif %}"
)


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, and what it wrote on standard output and standard error."""

    code: int
    out: str
    err: str


def run_recall(*arguments: object) -> Ended:
    """Run `recall` with these arguments in this process, where torch and transformers are loaded already."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["recall", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return Ended(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def byte_tokenizer(
    merges: Sequence[tuple[str, str]] = (), *, bos: bool = False
) -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer with one token a byte, and one for each merge; with `bos` it adds its BOS by itself."""
    specials = ["<s>", "</s>", "<pad>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = [left + right for left, right in merges]
    vocabulary = {token: number for number, token in enumerate([*specials, *alphabet, *merged])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Begin every module on one thread: products as small as most here take longer on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The converted demo model: Gemma 3 270M, real weights."""
    return demo.demo_folder(print)


@pytest.fixture(scope="session")
def gemma(demo_folder: Path) -> PromptTokenizer:
    """Gemma's tokenizer, of a base model: it has no chat template."""
    return PromptTokenizer(demo_folder, name="demo")


@pytest.fixture(scope="session")
def byte_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with one token a byte, a chat template, and a BOS that it does not add by itself."""
    folder = tmp_path_factory.mktemp("tokenizers") / "bytes"
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def merging_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with a token for half of the pairs of digits: what a record costs depends on its digits.

    It adds its BOS by itself, and its chat template brings one, too.
    """
    folder = tmp_path_factory.mktemp("tokenizers") / "merging"
    tokenizer = byte_tokenizer([(left, right) for left in "02468" for right in "0123456789"], bos=True)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a small random model of a family, with the tokenizer of bytes; made once a session."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            torch.manual_seed(0)
            model = transformers.AutoModelForCausalLM.from_config(CONFIGS[family]())
            # Random weights of the usual size give logits so close to each other that any rounding decides.
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.ndim > 1:
                        parameter.mul_(4)
            made[family] = tmp_path_factory.mktemp("models") / family
            model.save_pretrained(made[family])
            byte_tokenizer().save_pretrained(made[family])
        return made[family]

    return folder
