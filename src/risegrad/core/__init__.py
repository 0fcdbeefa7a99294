"""One gradient's way through a step: attachment, blocks, draws, shapers, arithmetic, shards."""
