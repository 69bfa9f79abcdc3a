"""The packages keep their arrows: `recall` uses `generators` and `engines`, those two use nobody; and all installs."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recall import published

ROOT = Path(__file__).parent.parent
ALLOWED = {"recall": {"recall", "generators", "engines"}, "generators": {"generators"}, "engines": {"engines"}}
MODELS = {"torch", "transformers"}
# These judge and lay out answers; they must run where no model can.
WITHOUT_MODELS = [
    "answers",
    "clusters",
    "comparison",
    "comparison_text",
    "delivery",
    "differences",
    "divergence",
    "engine_specs",
    "figures",
    "grids",
    "intervals",
    "overlaps",
    "plots",
    "published",
    "references",
    "report",
    "report_tables",
    "report_text",
    "rescoring",
    "results",
    "resume",
    "rounding",
    "runs",
    "scoring",
    "selection",
    "wrong_answers",
]


def _imports(file: Path, *, only_at_import: bool = False) -> Iterator[str]:
    """Yield the full name of every module that a file imports; or only of those imported with the file itself."""
    nodes: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}, line {node.lineno}: a relative import hides where it points"
            yield str(node.module)
        elif only_at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elif only_at_import and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes.extend(node.orelse)
        else:
            nodes.extend(ast.iter_child_nodes(node))


def _packages(file: Path, *, only_at_import: bool = False) -> set[str]:
    return {name.partition(".")[0] for name in _imports(file, only_at_import=only_at_import)}


def _files(package: str) -> list[Path]:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    return files


def _output(*command: str, cwd: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    for file in _files(package):
        ours = _packages(file) & {*ALLOWED, "tests"}
        assert ours <= ALLOWED[package], f"{file.relative_to(ROOT)} imports {ours - ALLOWED[package]}"


def test_generators_never_import_torch() -> None:
    for file in _files("generators"):
        assert "torch" not in _packages(file), file.name


@pytest.mark.parametrize("module", WITHOUT_MODELS)
def test_the_scorer_imports_no_model_code(module: str) -> None:
    assert not _packages(ROOT / "recall" / f"{module}.py") & MODELS


def test_what_the_command_line_starts_with_imports_only_typer_and_the_standard_library() -> None:
    for file in [ROOT / "recall" / "cli.py", *_files("recall/commands")]:
        foreign = _packages(file, only_at_import=True) - set(sys.stdlib_module_names) - {"typer", "recall"}
        assert not foreign, f"{file.relative_to(ROOT)} imports {foreign}"
        ours = {name for name in _imports(file, only_at_import=True) if name.startswith("recall.")}
        assert all(name.startswith("recall.commands.") for name in ours), f"{file.relative_to(ROOT)} imports {ours}"


@pytest.mark.parametrize("module", ["generators", "engines", *(f"recall.{name}" for name in WITHOUT_MODELS)])
def test_importing_what_needs_no_model_loads_no_model_code(module: str) -> None:
    assert _output("-c", f"import sys, {module}; print({MODELS} & set(sys.modules))") == "set()\n"


def test_every_package_module_says_what_it_promises() -> None:
    for package in ALLOWED:
        for file in _files(package):
            assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))), file.relative_to(ROOT)


def test_no_file_is_longer_than_400_lines() -> None:
    for package in [*ALLOWED, "tests"]:
        for file in _files(package):
            assert len(file.read_text(encoding="utf-8").splitlines()) < 400, file.relative_to(ROOT)


def test_the_data_folders_are_no_packages_and_hide_none() -> None:
    for kind in ("datasets", "results"):
        assert not list((ROOT / kind).rglob("*.py"))
    assert (
        _output("-c", "import datasets; print(datasets.__name__, callable(datasets.load_dataset))") == "datasets True\n"
    )


def test_a_wheel_carries_the_published_data_and_works_from_another_folder(tmp_path: Path) -> None:
    _output("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist"))
    (wheel,) = (tmp_path / "dist").glob("recall-*.whl")
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    _output("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    assert {entry.name for entry in site.iterdir() if not entry.name.startswith("recall-")} - {"bin"} == set(ALLOWED)

    program = "from recall import published as p; print(p.__file__); print(p.names('datasets'), p.names('results'))"
    where, names = _output("-c", program, cwd=elsewhere, PYTHONPATH=str(site)).splitlines()
    assert Path(where).is_relative_to(site)
    assert names == f"{published.names('datasets')} {published.names('results')}"
    assert {"laptop"} <= set(published.names("datasets"))
    assert {"laptop", "tpu-v5e-ring"} <= set(published.names("results"))
    compare = ["-m", "recall", "compare", "tpu-v5e-ring", "laptop"]
    table = _output(*compare, cwd=elsewhere, PYTHONPATH=str(site))
    assert "tpu-v5e-ring and laptop: the same answer on 5 of 5 prompts, 2 of them wrong ones" in table
    _output("-m", "recall", "report", "tpu-v5e-ring", "-o", "report.html", cwd=elsewhere, PYTHONPATH=str(site))
    assert "tpu-v5e-ring finds 3 of 5 records" in (elsewhere / "report.html").read_text(encoding="utf-8")
