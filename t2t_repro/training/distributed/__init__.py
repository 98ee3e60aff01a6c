"""Training on several machines: how they meet, agree and stop together."""
