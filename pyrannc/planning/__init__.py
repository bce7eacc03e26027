"""The planner's inputs, its candidates for this job, and what they are predicted to take."""
