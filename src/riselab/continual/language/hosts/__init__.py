"""Language models that learn one task after another."""
