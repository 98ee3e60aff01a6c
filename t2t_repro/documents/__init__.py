"""Long text: split into sentences that the model takes, and joined from their translations."""
