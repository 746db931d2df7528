"""Where shipped data is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from localmem import resources


def test_checkout_has_its_cards_at_the_top():
    assert (resources.data_dir("models") / "smollm2-135m-instruct.toml").is_file()


def test_installed_package_is_preferred_to_the_folder_beside_it(tmp_path: Path):
    package = tmp_path / "localmem"
    (package / "data" / "models").mkdir(parents=True)
    (tmp_path / "models").mkdir()
    shutil.copy(resources.__file__, package / "resources.py")
    command = "import localmem.resources as r; print(r.data_dir('models')); print(r.data_dir('grammars'))"

    shown = subprocess.run(
        [sys.executable, "-c", command],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert shown.stdout.split() == [str(package / "data" / "models"), str(tmp_path / "grammars")], (
        shown.stderr
    )
