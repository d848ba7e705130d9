"""The suite's exit code says what happened, although its processes leave by a way of their own (tests/support/leaving.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

CASES = {
    "def test_it(): pass": 0,
    "def test_it(): assert False": 1,
    "import os, signal\ndef test_it(): os.kill(os.getpid(), signal.SIGKILL)": 1,
    "import pytest\n@pytest.fixture(scope='session')\ndef late():\n yield\n assert False\ndef test_it(late): pass": 1,
    "import nothing_of_this_name": 1,
}


@pytest.mark.parametrize(("source", "code"), CASES.items())
def test_what_happened_in_a_worker_is_in_the_exit_code(tmp_path: Path, source: str, code: int) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_case.py").write_text(source)
    around = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "1", "-p", "tests.support.leaving", "test_case.py"],
        cwd=tmp_path,
        env=around | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("1 passed" in done.stdout) is (code == 0 or "late" in source), done.stdout
