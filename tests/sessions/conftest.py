from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from session_house import House

from flide_agent.default_model import DIRECTORY
from flide_agent.prompts import Prompts


@pytest.fixture(scope="session")
def prompts() -> Prompts:
    return Prompts.load(DIRECTORY)


@pytest.fixture
def house(tmp_path: Path, prompts: Prompts) -> Iterator[House]:
    house = House(tmp_path / "store", prompts)
    yield house
    house.store.close()


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., House]]:
    houses: list[House] = []

    def make(prompts: Prompts, **options: Any) -> House:
        houses.append(House(tmp_path / f"store-{len(houses)}", prompts, **options))
        return houses[-1]

    yield make
    for house in houses:
        house.store.close()
