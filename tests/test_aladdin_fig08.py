"""Aladdin's Figure 8: pages and a line through them."""

from __future__ import annotations

import pandas as pd

from experiments.aladdin import fig08_kv_model as fig08

TOKEN = {"llama-2-13b": 2 * 40 * 40 * 128 * 2, "llama-2-70b": 2 * 80 * 8 * 128 * 2}


def rows(**values) -> tuple[pd.DataFrame, fig08.KvModel]:
    parameters = fig08.KvModel(**{"seeds": 2, "requests": 100, "batches": 20, **values})
    found = [{**case, **row} for case in fig08.cases(parameters) for row in fig08.run(case)]
    return pd.DataFrame(found), parameters


def verdicts(claims):
    return [claim.verdict for claim in claims]


def test_whole_pages_by_hand():
    found = fig08.paged_bytes("llama-2-13b", [1, 16, 17], 16)
    assert found.tolist() == [16 * TOKEN["llama-2-13b"]] * 2 + [32 * TOKEN["llama-2-13b"]]
    assert fig08.paged_bytes("llama-2-70b", 3, 1) == 3 * TOKEN["llama-2-70b"]


def test_without_pages_the_line_is_exact():
    frame, parameters = rows(page_tokens=1)
    assert (frame["predicted"] / frame["bytes"] - 1).abs().max() < 1e-9
    assert verdicts(fig08.claims(frame, parameters)) == ["reproduced"] * 4


def test_large_pages_are_no_line():
    frame, parameters = rows(page_tokens=256)
    found = fig08.claims(frame, parameters)
    request, batch = found[:2]
    assert request.verdict == "not reproduced"
    assert "pages of 256 tokens" in request.reason
    assert request.ours.mean > batch.ours.mean  # a batch's errors cancel in part
    assert found[-1].ours.mean > 2
    fig08.plot(frame, parameters)
