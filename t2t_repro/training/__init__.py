"""Loss, schedule, optimizer, checkpoints, and the trainer that drives them (section 5)."""
