"""The rules of a model's queue, as its configuration says them."""

from __future__ import annotations

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from isochrone.clock import MICROSECOND, MILLISECOND
from isochrone.worker.catalog.queue_rules import queue_rules
from isochrone.worker.scheduling.batch_queue import LevelPolicy, QueueRules


def rules_of(text: str) -> QueueRules:
    return queue_rules(text_format.Parse('name: "m"' + text, model_config_pb2.ModelConfig()))


def test_a_model_without_dynamic_batching_runs_one_request_at_a_time() -> None:
    assert rules_of("max_batch_size: 8") == QueueRules(max_rows=1)


def test_queue_rules_say_what_the_configuration_says() -> None:
    rules = rules_of(
        """
        max_batch_size: 16
        dynamic_batching {
          preferred_batch_size: [8, 4]
          max_queue_delay_microseconds: 700
          priority_levels: 3
          default_priority_level: 2
          default_queue_policy { max_queue_size: 9 default_timeout_microseconds: 50 timeout_action: DELAY }
          priority_queue_policy { key: 1 value { max_queue_size: 2 } }
        }
        parameters { key: "priority_ageing_ms" value { string_value: "20" } }
        """
    )
    other = LevelPolicy(9, 50 * MICROSECOND, True)
    assert rules == QueueRules(
        max_rows=16,
        preferred=(4, 8),
        delay_ns=700 * MICROSECOND,
        levels=3,
        default_level=2,
        ageing_ns=20 * MILLISECOND,
        policies=(LevelPolicy(2, 0, False), other, other),
    )
