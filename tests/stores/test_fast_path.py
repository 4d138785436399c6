"""Which jobs and changes are ordinary, and how fast paths are switched off."""

import subprocess
import sys

import pytest

from perdure.storage.rules import fast_path


@pytest.mark.parametrize(("value", "expected"), [(None, True), ("1", True), ("0", False)])
def test_one_variable_of_the_environment_switches_all_fast_paths_off(value, expected):
    environment = {} if value is None else {"PERDURE_FAST_PATHS": value}
    code = "from perdure.storage.rules import fast_path; print(fast_path.enabled())"
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout == f"{expected}\n"


def test_a_test_can_switch_fast_paths_off(monkeypatch):
    monkeypatch.setattr(fast_path, "enabled", lambda: False)
    assert not fast_path.enabled()
