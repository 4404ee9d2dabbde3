"""Ensembles that a server must refuse to load, and neighbours of theirs that it must not, each with the words for it.

``STEPS`` are the models of their steps. A case is one ensemble, or several that belong together; the one that is loaded
has the case's name. Verdicts and words are real Triton's, and ``tests/peers`` asks it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ensemble_repository import Ensemble, Model, Step, tensor

BROKEN = """
raise RuntimeError("no such weights")
"""

STEPS: dict[str, Model | Ensemble] = {
    "plain": Model((tensor("IN"),), (tensor("OUT"),)),
    "batched": Model((tensor("IN"),), (tensor("OUT"),), batch=8),
    "ints": Model((tensor("IN", datatype="INT32"),), (tensor("OUT", datatype="INT32"),)),
    "wide": Model((tensor("IN", (8,)),), (tensor("OUT", (8,)),)),
    "matrix": Model((tensor("IN", (2, 2)),), (tensor("OUT", (2, 2)),)),
    "rows": Model((tensor("IN", (-1, 4)),), (tensor("OUT", (-1, 4)),)),
    "free": Model((tensor("IN", (-1,)),), (tensor("OUT", (-1,)),)),
    "free_batched": Model((tensor("IN", (-1,)),), (tensor("OUT", (-1,)),), batch=8),
    "reshaped": Model((tensor("IN", (4,), more="reshape { shape: [2, 2] }"),), (tensor("OUT", (2, 2)),)),
    "two": Model((tensor("IN0"), tensor("IN1")), (tensor("OUT0"), tensor("OUT1"))),
    "optional": Model((tensor("IN0"), tensor("IN1", more="optional: true")), (tensor("OUT0"), tensor("OUT1"))),
    "stream": Model((tensor("IN"),), (tensor("OUT"),), decoupled=True, body="def answer(given):\n    yield {}\n"),
    "versioned": Model((tensor("IN"),), (tensor("OUT"),), versions=(1, 3), more="version_policy { all { } }"),
    "broken": Model((tensor("IN"),), (tensor("OUT"),), body=BROKEN),
}

IN, OUT = (tensor("X"),), (tensor("Y"),)


def step(model: str, given: str = "X", made: str = "Y", version: int | None = -1) -> Step:
    return Step(model, {"IN": given}, {"OUT": made}, version)


def chain(*models: str, batch: int = 0, **changes: tuple[str, ...]) -> Ensemble:
    """Steps one after the other, X → t1 → … → Y."""
    tensors = ["X", *(f"t{index}" for index in range(1, len(models))), "Y"]
    steps = tuple(step(model, *tensors[index : index + 2]) for index, model in enumerate(models))
    return Ensemble(changes.get("inputs", IN), changes.get("outputs", OUT), steps, batch)


MADE_TWICE = "expected a tensor that is not already made by ensemble_scheduling.step[0], given 'Y'"
#: What Triton answers where a configuration alone is wrong; its log says why, and our answer does.
UNREADABLE = "failed to poll from model repository"


@dataclass(frozen=True)
class Case:
    ensemble: Ensemble
    #: In our refusal; "": we accept it.
    words: str = ""
    #: Other ensembles that it needs.
    others: dict[str, Ensemble] = field(default_factory=dict)
    #: In Triton's refusal; None: as in ours.
    theirs: str | None = None

    @property
    def their_words(self) -> str:
        return self.words if self.theirs is None else self.theirs


def refused(ensemble: Ensemble, words: str, **others: Ensemble) -> Case:
    return Case(ensemble, words, others)


def unreadable(ensemble: Ensemble, words: str) -> Case:
    return Case(ensemble, words, theirs=UNREADABLE)


CASES: dict[str, Case] = {
    # The models of steps.
    "missing_model": refused(
        chain("plain", "nowhere"), "ensemble missing_model contains models that are not available or ambiguous: nowhere"
    ),
    "two_missing_models": refused(chain("lost", "nowhere"), "not available or ambiguous: lost"),
    "broken_model": refused(chain("plain", "broken"), "depends on 'broken' which has no loaded version"),
    "missing_version": refused(
        Ensemble(IN, OUT, (step("versioned", version=2),)),
        "depends on 'versioned' whose required version 2 is not loaded",
    ),
    "present_version": Case(Ensemble(IN, OUT, (step("versioned", version=3),))),
    # Triton takes a version that is left out for version 0; ours for -1, as what is left out elsewhere.
    "no_version_said": Case(
        Ensemble(IN, OUT, (step("plain", version=None),)), theirs="whose required version 0 is not loaded"
    ),
    "itself": refused(chain("itself"), "circular dependency between ensembles"),
    "circle": refused(chain("circle_back"), "circular dependency between ensembles", circle_back=chain("circle")),
    "long_circle": refused(
        chain("plain", "long_circle_a"),
        "circular dependency between ensembles",
        long_circle_a=chain("long_circle_b"),
        long_circle_b=chain("plain", "long_circle"),
    ),
    "nested": Case(
        Ensemble(IN, OUT, (Step("nested_inner", {"X": "X"}, {"Y": "t"}), step("plain", "t"))),
        others={"nested_inner": chain("plain", "free")},
    ),
    "nested_by_wrong_names": refused(
        chain("nested_by_wrong_names_inner"),
        "mapping to non-existing input IN in model nested_by_wrong_names_inner",
        nested_by_wrong_names_inner=chain("plain"),
    ),
    "nested_faulty": refused(
        chain("nested_faulty_inner"), "depends on 'nested_faulty_inner' which", nested_faulty_inner=chain("ints")
    ),
    # Names of tensors.
    "unknown_input": refused(
        Ensemble(IN, OUT, (Step("plain", {"IN": "X", "NOPE": "X"}, {"OUT": "Y"}),)),
        "ensemble tensor X is mapping to non-existing input NOPE in model plain",
    ),
    "unknown_output": refused(
        Ensemble(IN, OUT, (Step("plain", {"IN": "X"}, {"NOPE": "Y"}),)),
        "ensemble tensor Y is mapped from non-existing output NOPE in model plain",
    ),
    "missing_input": refused(
        Ensemble(IN, (tensor("Y"), tensor("Z")), (Step("two", {"IN0": "X"}, {"OUT0": "Y", "OUT1": "Z"}),)),
        "input IN1 in model two is not mapped to any ensemble tensors",
    ),
    "missing_optional_input": Case(Ensemble(IN, OUT, (Step("optional", {"IN0": "X"}, {"OUT0": "Y"}),))),
    "missing_required_beside_optional": refused(
        Ensemble(IN, OUT, (Step("optional", {"IN1": "X"}, {"OUT0": "Y"}),)),
        "input IN0 in model optional is not mapped to any ensemble tensors",
    ),
    "one_tensor_for_two_inputs": Case(
        Ensemble(IN, OUT, (Step("two", {"IN0": "X", "IN1": "X"}, {"OUT0": "Y"}),)),
    ),
    "unmapped_output": Case(Ensemble(IN, OUT, (Step("two", {"IN0": "X", "IN1": "X"}, {"OUT1": "Y"}),))),
    # The graph.
    "two_writers": unreadable(
        Ensemble(IN, OUT, (step("plain"), step("free"))),
        MADE_TWICE,
    ),
    "two_outputs_of_one_step": unreadable(
        Ensemble(IN, OUT, (Step("two", {"IN0": "X", "IN1": "X"}, {"OUT0": "Y", "OUT1": "Y"}),)),
        MADE_TWICE,
    ),
    "unused_input": unreadable(
        Ensemble((*IN, tensor("SPARE")), OUT, (step("plain"),)),
        "input[1].name: expected an input that some step's input_map uses, given 'SPARE'",
    ),
    "unmade_output": unreadable(
        Ensemble(IN, (*OUT, tensor("LOST")), (step("plain"),)),
        "output[1].name: expected a tensor that some step's output_map makes (Y), given 'LOST'",
    ),
    "unused_tensor": unreadable(
        Ensemble(IN, OUT, (Step("two", {"IN0": "X", "IN1": "X"}, {"OUT0": "Y", "OUT1": "spare"}),)),
        "output_map['OUT1']: expected a tensor that another step's input_map or the ensemble's output uses",
    ),
    "undefined_tensor": unreadable(
        Ensemble(IN, OUT, (Step("two", {"IN0": "X", "IN1": "nobody"}, {"OUT0": "Y"}),)),
        "input_map['IN1']: expected a tensor the ensemble has (X, Y), given 'nobody'",
    ),
    "cycle_of_steps": unreadable(
        Ensemble(
            IN,
            OUT,
            (
                Step("two", {"IN0": "X", "IN1": "late"}, {"OUT0": "early"}),
                Step("two", {"IN0": "early", "IN1": "early"}, {"OUT0": "late", "OUT1": "Y"}),
            ),
        ),
        "expected steps without a cycle",
    ),
    "own_output_as_input": unreadable(
        Ensemble(IN, OUT, (Step("two", {"IN0": "X", "IN1": "Y"}, {"OUT0": "Y"}),)), "expected steps without a cycle"
    ),
    "steps_in_any_order": Case(Ensemble(IN, OUT, (step("plain", "t", "Y"), step("free", "X", "t")))),
    "no_steps": unreadable(Ensemble(IN, OUT, ()), "ensemble_scheduling.step: expected at least one step"),
    "no_input_map": unreadable(
        Ensemble(IN, OUT, (Step("plain", {}, {"OUT": "Y"}),)),
        "step[0].input_map: expected at least one entry",
    ),
    "no_output_map": unreadable(
        Ensemble(IN, OUT, (Step("plain", {"IN": "X"}, {}),)), "step[0].output_map: expected at least one entry"
    ),
    "no_model_name": unreadable(Ensemble(IN, OUT, (step(""),)), "step[0].model_name: expected a model name"),
    "instance_group": unreadable(
        Ensemble(IN, OUT, (step("plain"),), more="instance_group { count: 1 }"),
        "instance_group: expected none: an ensemble has no instances of its own",
    ),
    # Triton accepts a step that writes an input of the ensemble, and then runs with one or the other.
    "written_input": Case(
        Ensemble(IN, OUT, (step("plain", "X", "Y"), step("free", "Y", "X"))),
        "a tensor that is not already made by input[0], given 'X'",
        theirs="",
    ),
    # Types and shapes.
    "type_of_input": refused(
        chain("ints"), "ensemble tensor X: inconsistent data type: TYPE_FP32 is inferred from model type_of_input"
    ),
    "type_between_steps": refused(chain("plain", "ints"), "ensemble tensor t1: inconsistent data type"),
    "type_of_output": refused(
        chain("plain", outputs=(tensor("Y", datatype="FP64"),)), "ensemble tensor Y: inconsistent data type: TYPE_FP64"
    ),
    "shape_of_input": refused(
        chain("wide"), "ensemble tensor X: inconsistent shape: [4] is inferred from model shape_of_input while [8]"
    ),
    "shape_between_steps": refused(
        chain("plain", "wide", outputs=(tensor("Y", (8,)),)), "tensor t1: inconsistent shape"
    ),
    "shape_of_output": refused(chain("plain", outputs=(tensor("Y", (2,)),)), "tensor Y: inconsistent shape: [2]"),
    "rank_of_input": refused(chain("matrix", outputs=(tensor("Y", (2, 2)),)), "tensor X: inconsistent shape: [4]"),
    "free_size": Case(chain("free", "plain")),
    "free_then_other_rank": refused(
        chain("free", "matrix", outputs=(tensor("Y", (2, 2)),)), "ensemble tensor t1: inconsistent shape"
    ),
    "free_between_two_shapes": Case(
        Ensemble(
            (tensor("X", (-1,)),),
            (tensor("Y"), tensor("Z", (8,))),
            (step("free", "X", "t"), step("plain", "t", "Y"), step("wide", "t", "Z")),
        )
    ),
    # Batching.
    "batch_too_large": refused(
        chain("batched", batch=16),
        "ensemble batch_too_large allows maximum batch size 16, but it contains model batched which only allows"
        " maximum batch size to be 8",
    ),
    "batch_smaller": Case(chain("batched", batch=4)),
    "batch_without": Case(chain("batched", batch=0)),
    "mixed": Case(chain("plain", "batched", batch=8)),
    "mixed_with_rows": Case(
        chain("batched", "rows", batch=8),
    ),
    "mixed_full_shape": Case(chain("batched", inputs=(tensor("X", (-1, 4)),), outputs=(tensor("Y", (-1, 4)),))),
    "mixed_wrong_rank": refused(
        chain("free_batched", "matrix", batch=8, inputs=(tensor("X", (-1,)),), outputs=(tensor("Y", (3,)),)),
        "ensemble tensor",
    ),
    # Reshape.
    "reshape_of_ensemble": Case(
        chain(
            "matrix",
            inputs=(tensor("X", (4,), more="reshape { shape: [2, 2] }"),),
            outputs=(tensor("Y", (4,), more="reshape { shape: [2, 2] }"),),
        )
    ),
    "reshape_of_ensemble_unfit": refused(
        chain("plain", inputs=(tensor("X", (4,), more="reshape { shape: [2, 2] }"),)),
        "tensor X: inconsistent shape: [2,2]",
    ),
    "reshape_of_step": Case(chain("reshaped", outputs=(tensor("Y", (2, 2)),))),
    "reshape_of_step_is_its_own": refused(
        chain("matrix", "reshaped", inputs=(tensor("X", (2, 2)),), outputs=(tensor("Y", (2, 2)),)),
        "ensemble tensor t1: inconsistent shape",
    ),
    # Decoupled steps.
    "decoupled": Case(chain("plain", "stream", "plain")),
    "decoupled_beside_input": refused(
        Ensemble(IN, OUT, (step("stream", "X", "t"), Step("two", {"IN0": "X", "IN1": "t"}, {"OUT0": "Y"}))),
        "receives inputs originated from different decoupled models",
    ),
    "two_decoupled_joined": refused(
        Ensemble(
            IN,
            OUT,
            (step("stream", "X", "a"), step("stream", "X", "b"), Step("two", {"IN0": "a", "IN1": "b"}, {"OUT0": "Y"})),
        ),
        "receives inputs originated from different decoupled models",
    ),
    "decoupled_and_plain_outputs": refused(
        Ensemble(IN, (*OUT, tensor("Z")), (step("stream", "X", "Y"), step("plain", "X", "Z"))),
        "receives inputs originated from different decoupled models",
    ),
    "decoupled_in_a_row": Case(chain("stream", "stream")),
}
