"""Where shipped data is found."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

from localmem import resources


def test_checkout_has_its_cards_at_the_top():
    assert (resources.data_dir("models") / "smollm2-135m-instruct.toml").is_file()


def test_installed_data_is_preferred_to_the_folder_beside_the_package(tmp_path: Path):
    package = tmp_path / "localmem"
    (package / "data" / "models").mkdir(parents=True)
    (tmp_path / "models").mkdir()
    there = runpy.run_path(str(shutil.copy(resources.__file__, package)))

    assert there["data_dir"]("models") == package / "data" / "models"
    assert there["data_dir"]("grammars") == tmp_path / "grammars"
