"""What a step would do to what a model knows, before it is taken; and which rule to use."""
