"""What the outcomes of runs mean: summaries, service-level objectives, ramps, comparisons. Pure, without a clock."""
