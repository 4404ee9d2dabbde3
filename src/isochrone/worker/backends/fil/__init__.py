"""Decision trees under the name of Triton's backend, fil: XGBoost, LightGBM, and checkpoints of treelite."""
