"""Places for logits in turn: a place is taken again only when what lay in it has been copied out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flide_engine.cuda import landing
from flide_engine.cuda.landing import LANDINGS, Landing, Landings


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Landings:
    """On a machine without a GPU: memory that is not pinned."""
    monkeypatch.setattr(landing.torch, "empty", lambda *size, dtype=None, pin_memory=False: torch.zeros(*size, dtype=dtype))
    return Landings()


def passed(places: Landings, value: float, *, fails: bool = False) -> Landing:
    """A pass that writes this value to each of its logits, at once."""
    got = places.take(3)
    places.buffer[got.at : got.at + 3] = value
    if not fails:
        places.make_room()
    return got


@pytest.mark.parametrize("failing", [(), (2,), (5, 6, 7, 8, 9)])
def test_results_outlive_their_places(places: Landings, failing: tuple[int, ...]) -> None:
    assert places.reserve(3)
    assert not places.reserve(3)
    all_ = [passed(places, float(i), fails=i in failing) for i in range(3 * LANDINGS)]
    assert len({each.at for each in all_}) == LANDINGS
    for i, each in enumerate(all_):
        assert np.array_equal(each.result(), np.full(3, i, np.float32))


def test_a_buffer_that_grows_leaves_results_behind(places: Landings) -> None:
    places.reserve(3)
    before = passed(places, 1.0)
    assert places.reserve(1 << 16)
    passed(places, 2.0)
    assert before.result().tolist() == [1.0] * 3
    assert places.empty(4).result().tolist() == [0.0] * 4
