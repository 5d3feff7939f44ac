"""What is computed: the model contract, HSTU, and how weights are loaded. Knows nothing of tiers."""
