"""Continual learning in language: text classification as text to text, with LoRA."""
