"""Writes a model that scores card payments for fraud: gradient-boosted trees of XGBoost, served by the backend fil.

    python examples/build_fraud_model.py [REPOSITORY]
    isochrone serve REPOSITORY

The payments are invented from a fixed seed, so the model is the same every time. What is real is the shape of the work:
a dozen features per payment, a few hundred small trees on a CPU, one payment per request, traffic that comes in bursts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

try:
    import xgboost
except ImportError:
    sys.exit("build_fraud_model: xgboost is missing; install it with: pip install xgboost-cpu")

FEATURES = (
    "amount_eur",
    "amount_over_usual",  # 1: as much as the card's average payment
    "hour_of_day",
    "minutes_since_last_payment",
    "payments_last_hour",
    "kilometres_from_last_payment",
    "kilometres_from_home",
    "is_card_present",
    "is_new_merchant",
    "merchant_fraud_rate",
    "failed_pins_last_day",
    "account_age_days",
)
TREES, DEPTH, PAYMENTS = 200, 5, 8000

CONFIG = f"""\
# Trees of XGBoost: 1/xgboost.json, as Booster.save_model writes it. See docs/backends.md.
name: "fraud"
backend: "fil"

# Up to 64 payments in one run. A run of one payment takes tens of microseconds: no request waits for others.
max_batch_size: 64
dynamic_batching {{ }}

# One row per payment; build_fraud_model.py names the features. A missing value is NaN.
input [ {{ name: "payment" data_type: TYPE_FP32 dims: [ {len(FEATURES)} ] }} ]
# The probability of fraud.
output [ {{ name: "fraud" data_type: TYPE_FP32 dims: [ 1 ] }} ]

parameters [
  {{ key: "model_type" value {{ string_value: "xgboost_json" }} }},
  {{ key: "is_classifier" value {{ string_value: "true" }} }},
  # The probability instead of the class. Without it, "threshold" decides the class.
  {{ key: "predict_proba" value {{ string_value: "true" }} }}
]
"""

Rows = npt.NDArray[np.float32]


def payments(count: int, seed: int) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Invented payments, and which of them are fraud: about one in twenty."""
    random = np.random.default_rng(seed)
    fraud = random.random(count) < 0.05
    usual = random.lognormal(3.4, 0.6, count)
    over_usual = random.lognormal(np.where(fraud, 1.2, 0.0), 0.7)
    columns = {
        "amount_eur": usual * over_usual,
        "amount_over_usual": over_usual,
        "hour_of_day": np.where(fraud, random.uniform(0, 24, count), random.normal(14, 4, count) % 24),
        "minutes_since_last_payment": random.exponential(np.where(fraud, 40, 900)),
        "payments_last_hour": random.poisson(np.where(fraud, 3.0, 0.4)),
        "kilometres_from_last_payment": random.exponential(np.where(fraud, 300, 12)),
        "kilometres_from_home": random.exponential(np.where(fraud, 400, 25)),
        "is_card_present": random.random(count) < np.where(fraud, 0.25, 0.7),
        "is_new_merchant": random.random(count) < np.where(fraud, 0.8, 0.3),
        "merchant_fraud_rate": random.beta(np.where(fraud, 3, 1), 60),
        "failed_pins_last_day": random.poisson(np.where(fraud, 0.8, 0.05)),
        "account_age_days": random.exponential(np.where(fraud, 400, 1500)),
    }
    rows = np.stack([columns[name] for name in FEATURES], axis=1).astype(np.float32)
    # Terminals do not always know where they are.
    rows[random.random(count) < 0.1, FEATURES.index("kilometres_from_last_payment")] = np.nan
    return rows, fraud.astype(np.int64)


def train() -> xgboost.Booster:
    rows, fraud = payments(PAYMENTS, seed=20240501)
    data = xgboost.DMatrix(rows, fraud, feature_names=list(FEATURES))
    # One thread: sums in another order would be another model.
    settings = {"objective": "binary:logistic", "max_depth": DEPTH, "eta": 0.1, "nthread": 1, "seed": 1}
    return xgboost.train(settings, data, TREES)


def build(repository: Path) -> int:
    """Write files that are missing or differ; return their number."""
    files = {"fraud/config.pbtxt": CONFIG.encode(), "fraud/1/xgboost.json": bytes(train().save_raw("json"))}
    written = 0
    for name, content in files.items():
        path = repository / name
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        written += 1
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a model repository with a fraud model.")
    default = Path(__file__).resolve().parent / "models"
    parser.add_argument("repository", nargs="?", type=Path, default=default, help="where to (default: %(default)s)")
    repository: Path = parser.parse_args().repository
    try:
        written = build(repository)
    except OSError as error:
        sys.exit(f"build_fraud_model: cannot write {error.filename}: {error.strerror}")
    print(f"{repository}: model fraud, {written} files written" if written else f"{repository}: up to date")


if __name__ == "__main__":
    main()
