"""Vision: backbones, adapters, heads, and the way from images to features."""
