"""The sample shop: what ships is what its maker makes, and it is as hard as it is meant to be."""

from __future__ import annotations

from pathlib import Path

from _shop import make_catalogue, write_catalogue

from trainers.demo import CATALOGUE


def test_what_ships_is_what_the_maker_makes_and_seeds_make_different_shops(tmp_path: Path) -> None:
    write_catalogue(tmp_path, seed=0)
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (CATALOGUE / file.name).read_bytes(), file.name
    assert make_catalogue(1).files() == make_catalogue(1).files() != make_catalogue(2).files()
