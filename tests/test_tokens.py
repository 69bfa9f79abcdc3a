"""A complete prompt text holds one BOS and its turn markers, whatever the tokenizer and its template bring."""

import hashlib
from pathlib import Path

import pytest

from generators import GeneratorError, Prompt, PromptTokenizer, make_prompts, seeded_specs, sha256_of_ids
from generators.records import Format
from tests.conftest import CHAT_TEMPLATE, byte_tokenizer

PLAIN_TEMPLATE = CHAT_TEMPLATE.removeprefix("{{ bos_token }}")


def _tokenizer(
    folder: Path, *, adds_bos: bool, template: str | None = None, markers: tuple[str, ...] = ()
) -> PromptTokenizer:
    tokenizer = byte_tokenizer(bos=adds_bos)
    tokenizer.add_special_tokens({"additional_special_tokens": list(markers)})
    if template is not None:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return PromptTokenizer(folder)


def _prompt(tokenizer: PromptTokenizer, form: Format) -> Prompt:
    (prompt,) = make_prompts(seeded_specs(form, seed=1, budgets=[600], contexts=[], depths=[0.5]), tokenizer, form)
    return prompt


@pytest.mark.parametrize(
    ("adds_bos", "template", "form"),
    [
        (True, CHAT_TEMPLATE, "chat"),
        (True, PLAIN_TEMPLATE, "chat"),
        (True, None, "completion"),
        (False, CHAT_TEMPLATE, "chat"),
    ],
    ids=["both bring one", "the tokenizer adds it", "no template", "the template brings it"],
)
def test_a_prompt_has_exactly_one_bos_in_front(
    tmp_path: Path, adds_bos: bool, template: str | None, form: Format
) -> None:
    tokenizer = _tokenizer(tmp_path, adds_bos=adds_bos, template=template)
    prompt = _prompt(tokenizer, form)
    ids = tokenizer.encode(prompt.text or "")
    assert ids[0] == 0
    assert ids.count(0) == 1
    assert (len(ids), sha256_of_ids(ids)) == (prompt.prompt_tokens, prompt.sha256)


@pytest.mark.parametrize(("template", "form"), [(None, "completion"), (PLAIN_TEMPLATE, "chat")])
def test_a_tokenizer_that_adds_no_bos_gets_none_from_us(tmp_path: Path, template: str | None, form: Format) -> None:
    tokenizer = _tokenizer(tmp_path, adds_bos=False, template=template)
    assert 0 not in tokenizer.encode(_prompt(tokenizer, form).text or "")


def test_gemma_prompts_have_exactly_one_bos_in_front(gemma: PromptTokenizer) -> None:
    for form in ("chat", "completion"):
        ids = gemma.encode(_prompt(gemma, form).text or "")
        assert ids[0] == 2
        assert ids.count(2) == 1


@pytest.mark.parametrize(
    "template",
    ["{{ bos_token }}" + CHAT_TEMPLATE, "\n" + CHAT_TEMPLATE, PLAIN_TEMPLATE + "{{ bos_token }}"],
    ids=["twice in front", "behind a blank line", "at the end"],
)
def test_a_template_that_doubles_the_bos_is_refused(tmp_path: Path, template: str) -> None:
    tokenizer = _tokenizer(tmp_path, adds_bos=True, template=template)
    with pytest.raises(GeneratorError, match="holds 2 BOS tokens where one, in front, is needed"):
        _prompt(tokenizer, "chat")


def test_a_chat_prompt_is_one_turn_of_the_tokenizers_own_template(byte_folder: Path) -> None:
    text = PromptTokenizer(byte_folder).complete("Hello", "chat")
    assert text == "<s><user>Hello</user><model>"


def test_a_gemma_tokenizer_without_a_template_gets_gemmas_turn_markers(gemma: PromptTokenizer) -> None:
    text = gemma.complete("Hello", "chat")
    assert text == "<bos><start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n"
    assert gemma.encode(text)[:3] == [2, 105, 2364]  # BOS, one token a marker, "user"


@pytest.mark.parametrize(("start", "end"), [("<start_of_turn>", "<end_of_turn>"), ("<|turn>", "<turn|>")])
def test_the_markers_are_those_of_the_vocabulary(tmp_path: Path, start: str, end: str) -> None:
    tokenizer = _tokenizer(tmp_path, adds_bos=True, markers=(start, end))
    assert tokenizer.complete("Hello", "chat") == f"<s>{start}user\nHello{end}\n{start}model\n"


def test_another_tokenizer_without_a_template_is_refused_in_chat_format(tmp_path: Path) -> None:
    tokenizer = _tokenizer(tmp_path, adds_bos=True)
    with pytest.raises(GeneratorError, match="has no chat template: use --format completion, or the tokenizer of"):
        _prompt(tokenizer, "chat")


def test_text_survives_encoding(gemma: PromptTokenizer) -> None:
    text = _prompt(gemma, "chat").text or ""
    assert gemma.decode(gemma.encode(text)) == text


def test_the_fingerprint_tells_vocabularies_apart_and_nothing_else(tmp_path: Path, byte_folder: Path) -> None:
    same = _tokenizer(tmp_path / "same", adds_bos=True)
    more = _tokenizer(tmp_path / "more", adds_bos=True, markers=("<|turn>",))
    assert same.fingerprint == PromptTokenizer(byte_folder).fingerprint
    assert same.fingerprint != more.fingerprint
    assert len(same.fingerprint) == 16


def test_gemmas_fingerprint_is_the_published_one(gemma: PromptTokenizer) -> None:
    assert gemma.fingerprint == "da16699cc0648c40"


def test_a_tokenizer_is_called_by_its_folder_and_not_by_its_path(tmp_path: Path) -> None:
    assert _tokenizer(tmp_path / "mine", adds_bos=True).name == "mine"
    assert PromptTokenizer(tmp_path / "mine", name="ours").name == "ours"


def test_ids_are_hashed_as_little_endian_32_bit_integers() -> None:
    assert sha256_of_ids([]) == hashlib.sha256(b"").hexdigest()
    assert sha256_of_ids([1, 262_143]) == hashlib.sha256(b"\x01\0\0\0\xff\xff\x03\0").hexdigest()


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer.json": "{"},
        {"tokenizer.json": "{}", "tokenizer_config.json": "{}"},
        {"tokenizer.json": "[1]", "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast"}'},
        {"config.json": '{"model_type": "no-such-model"}'},
    ],
    ids=["nothing", "cut", "empty objects", "a list", "unknown model"],
)
def test_a_folder_without_a_tokenizer_is_refused_in_one_sentence(tmp_path: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(GeneratorError, match="cannot be loaded: give `demo`, a local folder") as refused:
        PromptTokenizer(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_name_that_is_neither_folder_nor_hub_name_is_refused() -> None:
    with pytest.raises(GeneratorError, match=r"tokenizer 'no such\*name' cannot be loaded"):
        PromptTokenizer("no such*name")
