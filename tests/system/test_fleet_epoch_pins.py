"""A caller that runs a pipeline itself asks its second stage by the epoch of the first: no mixture, or a clear no."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from real_fleets import ask, small_fleet
from tritonclient.utils import InferenceServerException

from bench.control.fleet_run import Shape
from bench.control.models import STAGES

pytestmark = pytest.mark.long

HEADER = "x-isochrone-epoch"


def _grpc(address: str, model: str, epoch: str) -> str:
    with tritonclient.grpc.InferenceServerClient(address) as client:
        given = tritonclient.grpc.InferInput("X", [1, 1], "FP32")
        given.set_data_from_numpy(np.ones((1, 1), np.float32))
        return str(client.infer(model, [given], headers={HEADER: epoch}).get_response().model_version)


def test_stages_asked_one_by_one_are_of_one_epoch(tmp_path: Path) -> None:
    with small_fleet(tmp_path, Shape(workers=1, gateways=2, controllers=1), versions=3) as fleet:
        one, other = fleet.gateways
        first = ask(one, "stage_a", x_isochrone_epoch="current")
        assert (first.version, first.headers[HEADER]) == ("1", "1")
        # Who does not ask is not told.
        assert HEADER not in ask(one, "stage_a").headers

        identity = fleet.api.start_rollout(dict.fromkeys((*STAGES, "chain"), "2"), "strict")
        assert fleet.api.wait(identity)["state"] == "done"
        # Through another gateway, after the change: what the first stage was of.
        second = ask(other, "stage_b", x_isochrone_epoch=first.headers[HEADER])
        assert (second.version, second.headers[HEADER]) == ("1", "1")
        assert _grpc(other, "stage_b", "1") == "1"
        whole = ask(other, "chain", x_isochrone_epoch="1")
        assert whole.version == "1"
        stages = {output["name"]: output["data"][0] for output in whole.body["outputs"]}
        assert (stages["STAGE_A"], stages["STAGE_B"]) == (1, 1)
        now = ask(other, "stage_b", x_isochrone_epoch="current")
        assert (now.version, now.headers[HEADER]) == ("2", "2")

        # Two changes later nobody has it any more.
        identity = fleet.api.start_rollout(dict.fromkeys((*STAGES, "chain"), "3"))
        assert fleet.api.wait(identity)["state"] == "done"
        gone = ask(one, "stage_b", x_isochrone_epoch="1")
        assert gone.status == 404
        assert gone.body["error"] == "epoch 1 is not served any more; this gateway serves 2 and 3"
        with pytest.raises(InferenceServerException, match="epoch 1 is not served any more") as caught:
            _grpc(one, "stage_b", "1")
        assert caught.value.status() == "StatusCode.NOT_FOUND"
        assert ask(one, "stage_b", x_isochrone_epoch="2").version == "2"
        early = ask(one, "stage_b", x_isochrone_epoch="99")
        assert early.status == 503
        assert "has not reached this gateway yet" in early.body["error"]
        strange = ask(one, "stage_b", x_isochrone_epoch="soon")
        assert strange.status == 400
        assert "expected a number or 'current', given 'soon'" in strange.body["error"]
