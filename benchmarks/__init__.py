"""How fast Holdfast is, as ratios to hand-written SQL that does the same durable work in the same run."""
