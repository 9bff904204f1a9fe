"""One module a claim: its arms, controls, thresholds and figures, written before the runs they judge."""
