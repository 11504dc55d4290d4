"""The cost model hands the table's answers on."""

from __future__ import annotations

import numpy as np

from smartree.cost import CostModel, CostPoint, CostTable


def test_the_model_answers_what_the_table_measured() -> None:
    table = CostTable([CostPoint(2, 2, 0, 1.0), CostPoint(2, 10, 0, 5.0)])
    model = CostModel(table)
    assert model.autoregressive(2, 0) == 1.0
    np.testing.assert_allclose(model.verify(2, np.array([2, 6, 10]), 0), [1.0, 3.0, 5.0])
    assert model.overhead == 0.0
    assert not model.draft.by_level
    assert model.draft.seconds_per_step == 0.0
