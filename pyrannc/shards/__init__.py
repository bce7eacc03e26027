"""The optimizer's state, shared out over the replicas of a stage (ZeRO, stage 1)."""
